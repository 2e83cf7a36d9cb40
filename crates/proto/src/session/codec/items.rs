//! The CBOR form of list items: endpoints, texts, hop reports.

use super::{Fields, Read, text};
use crate::endpoint::{EndpointRef, HostRef, is_name};
use crate::session::list::Item;
use crate::session::message::HopReport;
use minicbor::decode::Decoder;
use minicbor::encode::{Encoder, Write};
use std::net::IpAddr;

impl<'a> Item<'a> for EndpointRef<'a> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.array(2)?;
        match self.host {
            HostRef::Addr(IpAddr::V4(addr)) => e.bytes(&addr.octets())?,
            HostRef::Addr(IpAddr::V6(addr)) => e.bytes(&addr.octets())?,
            HostRef::Name(name) => e.str(name)?,
        };
        e.u16(self.port)?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'a>) -> Read<Self> {
        if !matches!(d.array(), Ok(Some(2))) {
            return Err("an endpoint is not a pair of host and port");
        }
        let host = match d.datatype() {
            Ok(minicbor::data::Type::Bytes) => {
                let octets = d.bytes().map_err(|_| "an address is cut short")?;
                let addr = match (<[u8; 4]>::try_from(octets), <[u8; 16]>::try_from(octets)) {
                    (Ok(v4), _) => IpAddr::from(v4),
                    (_, Ok(v6)) => IpAddr::from(v6),
                    _ => return Err("an address has neither 4 nor 16 bytes"),
                };
                HostRef::Addr(addr)
            }
            _ => HostRef::Name(
                Some(text(d)?)
                    .filter(|name| is_name(name) && !name.bytes().any(|b| b.is_ascii_uppercase()))
                    .ok_or("a host name is not valid")?,
            ),
        };
        let port = d.u16().ok().filter(|port| *port != 0).ok_or("a port is not between 1 and 65535")?;
        Ok(Self { host, port })
    }
}

impl<'a> Item<'a> for &'a str {
    fn encode<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.str(self)?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'a>) -> Read<Self> {
        text(d)
    }
}

impl<'a> Item<'a> for HopReport<'a> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(10 + u64::from(self.streams > 1) + u64::from(self.rate > 0))?;
        for (key, text) in (1u64..).zip([self.from, self.to, self.transport, self.congestion_control, self.security]) {
            e.u64(key)?.str(text)?;
        }
        for (key, number) in (6u64..).zip([self.rtt_us, self.send_buffer, self.receive_buffer]) {
            e.u64(key)?.u64(number)?;
        }
        e.u8(9)?.bool(self.warm)?.u8(10)?.str(self.note)?;
        if self.streams > 1 {
            e.u8(11)?.u16(self.streams)?;
        }
        if self.rate > 0 {
            e.u8(12)?.u64(self.rate)?;
        }
        Ok(())
    }

    fn decode(d: &mut Decoder<'a>) -> Read<Self> {
        let mut fields = Fields::of(d.clone())?;
        let mut hop = Self::default();
        while let Some(key) = fields.next()? {
            match key {
                1 => hop.from = fields.text()?,
                2 => hop.to = fields.text()?,
                3 => hop.transport = fields.text()?,
                4 => hop.congestion_control = fields.text()?,
                5 => hop.security = fields.text()?,
                6 => hop.rtt_us = fields.u64()?,
                7 => hop.send_buffer = fields.u64()?,
                8 => hop.receive_buffer = fields.u64()?,
                9 => hop.warm = fields.bool()?,
                10 => hop.note = fields.text()?,
                11 => hop.streams = fields.u16()?,
                12 => hop.rate = fields.u64()?,
                _ => fields.skip()?,
            }
        }
        d.set_position(fields.d.position());
        Ok(hop)
    }
}
