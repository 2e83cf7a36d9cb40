//! The CBOR form of the messages (`docs/protocol/session.md` §4; RFC 8949).
//!
//! A message is a length prefix and a CBOR map with ascending unsigned keys. Key 0 is the message type. The decoder
//! skips unknown keys, so that later versions can add fields; a field that must not be skipped is announced as a
//! required feature. Only definite lengths occur, so that skipping a field needs no allocation and no recursion.

mod items;

use super::datagrams::DatagramGrant;
use super::list::{Item, List};
use super::message::{Attach, Auth, Challenge, Hello, Message, Open, Opened, Proved, Refused, Requirements, Security};
use super::principal::{GROUPS_MAX, PrincipalRef};
use super::wire::{MESSAGE_MAX, PREFIX_LEN, ProtocolError, TEXT_MAX};
use super::{Code, Mode, SessionId};
use crate::endpoint::{EndpointRef, PATH_MAX};
use crate::text::is_unprintable;
use minicbor::decode::Decoder;
use minicbor::encode::write::Cursor;
use minicbor::encode::{Encoder, Write};

/// Most mechanisms in a CHALLENGE.
const MECHANISMS_MAX: usize = 16;
/// The bytes of [`Open::padding`], at its maximum length.
static PADDING: [u8; Open::PADDING_MAX as usize] = [0; Open::PADDING_MAX as usize];

impl<'a> Message<'a> {
    /// Writes the prefix and the message to the start of `out` and returns the length of both.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if `out` is too short or the message is longer than [`MESSAGE_MAX`].
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, ProtocolError> {
        let room = out.len();
        let body = out.get_mut(PREFIX_LEN..).ok_or(ProtocolError::NoRoom(room))?;
        let mut e = Encoder::new(Cursor::new(&mut *body));
        self.write(&mut e).map_err(|_| ProtocolError::NoRoom(room))?;
        let len = e.writer().position();
        let prefix = u32::try_from(len).ok().filter(|_| len <= MESSAGE_MAX).ok_or(ProtocolError::NoRoom(len))?;
        out[..PREFIX_LEN].copy_from_slice(&prefix.to_be_bytes());
        Ok(PREFIX_LEN + len)
    }

    /// Decodes the message in `body`, the bytes after the prefix.
    ///
    /// # Errors
    /// [`ProtocolError::Malformed`], naming the message and the field.
    pub fn decode(body: &'a [u8]) -> Result<Self, ProtocolError> {
        let mut d = Decoder::new(body);
        let fields = d.map().ok().flatten().ok_or(ProtocolError::Malformed("message", "a map was expected"))?;
        let kind = match (d.u64(), d.u64()) {
            (Ok(0), Ok(kind)) => kind,
            _ => return Err(ProtocolError::Malformed("message", "the type (key 0) must come first")),
        };
        let fields = Fields { d, left: fields.saturating_sub(1), last: 0 };
        match kind {
            1 => Hello::read(fields).map(Self::Hello).map_err(|e| ProtocolError::Malformed("HELLO", e)),
            2 => Challenge::read(fields).map(Self::Challenge).map_err(|e| ProtocolError::Malformed("CHALLENGE", e)),
            3 => Auth::read(fields).map(Self::Auth).map_err(|e| ProtocolError::Malformed("AUTH", e)),
            4 => Open::read(fields).map(Self::Open).map_err(|e| ProtocolError::Malformed("OPEN", e)),
            5 => Opened::read(fields).map(Self::Opened).map_err(|e| ProtocolError::Malformed("OPENED", e)),
            6 => Refused::read(fields).map(Self::Refused).map_err(|e| ProtocolError::Malformed("REFUSED", e)),
            7 => Attach::read(fields).map(Self::Attach).map_err(|e| ProtocolError::Malformed("ATTACH", e)),
            8 => Proved::read(fields).map(Self::Proved).map_err(|e| ProtocolError::Malformed("PROVED", e)),
            _ => Err(ProtocolError::Malformed("message", "the type is not known")),
        }
    }

    fn write<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        match self {
            Self::Hello(m) => {
                let more = u64::from(m.beacon) + u64::from(m.instance != 0);
                e.map(7 + more)?.u8(0)?.u8(1)?.u8(1)?.u16(m.version_min)?.u8(2)?.u16(m.version_max)?;
                e.u8(3)?.u64(m.features)?.u8(4)?.u64(m.required)?.u8(5)?.str(m.name)?.u8(6)?.str(m.software)?;
                if m.beacon {
                    e.u8(7)?.bool(true)?;
                }
                if m.instance != 0 {
                    e.u8(8)?.u64(m.instance)?;
                }
            }
            Self::Challenge(m) => {
                e.map(3)?.u8(0)?.u8(2)?.u8(1)?;
                m.mechanisms.encode(e)?;
                e.u8(2)?.bytes(m.data)?;
            }
            Self::Auth(m) => {
                e.map(3)?.u8(0)?.u8(3)?.u8(1)?.str(m.mechanism)?.u8(2)?.bytes(m.data)?;
            }
            Self::Open(m) => {
                let optional = u64::from(m.origin.is_some())
                    + u64::from(m.padding > 0)
                    + u64::from(m.streams > 1)
                    + u64::from(m.datagrams)
                    + u64::from(m.principal.is_named());
                e.map(10 + optional)?.u8(0)?.u8(4)?.u8(1)?.bytes(&m.session.0)?.u8(2)?;
                m.destination.encode(e)?;
                e.u8(3)?;
                m.path.encode(e)?;
                e.u8(4)?;
                m.visited.encode(e)?;
                if let Some(origin) = m.origin {
                    e.u8(5)?;
                    origin.encode(e)?;
                }
                e.u8(6)?.str(m.principal.subject)?.u8(7)?.u8(mode_number(m.mode))?.u8(8)?;
                m.requirements.write(e)?;
                e.u8(9)?.bool(m.resumable)?.u8(10)?.u64(m.required)?;
                if m.padding > 0 {
                    e.u8(11)?.bytes(padding(m.padding))?;
                }
                if m.streams > 1 {
                    e.u8(12)?.u16(m.streams)?;
                }
                if m.datagrams {
                    e.u8(13)?.bool(true)?;
                }
                if m.principal.is_named() {
                    e.u8(14)?;
                    m.principal.write(e)?;
                }
            }
            Self::Opened(m) => {
                let bundle = m.streams > 1;
                let fields = 4 + 2 * u64::from(bundle) + u64::from(m.datagrams.is_some());
                e.map(fields)?.u8(0)?.u8(5)?.u8(1)?.bytes(&m.session.0)?;
                e.u8(2)?.u8(mode_number(m.mode))?.u8(3)?;
                m.hops.encode(e)?;
                if bundle {
                    e.u8(4)?.u16(m.streams)?.u8(5)?.bytes(m.token)?;
                }
                if let Some(grant) = &m.datagrams {
                    e.u8(6)?;
                    grant.write(e)?;
                }
            }
            Self::Refused(m) => {
                e.map(5 + u64::from(m.redirect.is_some()))?.u8(0)?.u8(6)?.u8(1)?.u16(m.code.number())?;
                e.u8(2)?.str(m.reason)?.u8(3)?.str(m.hop)?.u8(4)?;
                m.limits.write(e)?;
                if let Some(redirect) = m.redirect {
                    e.u8(5)?;
                    redirect.encode(e)?;
                }
            }
            Self::Proved(m) => {
                e.map(3)?.u8(0)?.u8(8)?.u8(1)?.str(m.mechanism)?.u8(2)?.bytes(m.data)?;
            }
            Self::Attach(m) => {
                e.map(4 + u64::from(m.padding > 0))?.u8(0)?.u8(7)?.u8(1)?.bytes(&m.session.0)?;
                e.u8(2)?.bytes(m.token)?.u8(3)?.u16(m.index)?;
                if m.padding > 0 {
                    e.u8(4)?.bytes(padding(m.padding))?;
                }
            }
        }
        Ok(())
    }
}

/// `len` padding bytes, at most [`Open::PADDING_MAX`].
fn padding(len: u16) -> &'static [u8] {
    &PADDING[..len.min(Open::PADDING_MAX).into()]
}

/// The error tells what is wrong with a field. [`Message::decode`] adds the message's name.
type Read<T> = Result<T, &'static str>;

/// The fields of a map, in ascending order of their keys.
struct Fields<'a> {
    d: Decoder<'a>,
    left: u64,
    last: u64,
}

impl<'a> Fields<'a> {
    fn of(mut d: Decoder<'a>) -> Read<Self> {
        let left = d.map().ok().flatten().ok_or("a map was expected")?;
        Ok(Self { d, left, last: 0 })
    }

    /// The next key, or `None` after the last. The caller must then read its value or call [`Fields::skip`].
    fn next(&mut self) -> Read<Option<u64>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let key = self.d.u64().map_err(|_| "a key is not an unsigned number")?;
        if key <= self.last {
            return Err("the keys do not ascend");
        }
        self.last = key;
        Ok(Some(key))
    }

    fn skip(&mut self) -> Read<()> {
        self.d.skip().map_err(|_| "an unknown field cannot be skipped")
    }

    fn text(&mut self) -> Read<&'a str> {
        text(&mut self.d)
    }

    fn bytes(&mut self) -> Read<&'a [u8]> {
        self.d.bytes().map_err(|_| "bytes were expected")
    }

    fn u64(&mut self) -> Read<u64> {
        self.d.u64().map_err(|_| "an unsigned number was expected")
    }

    fn u16(&mut self) -> Read<u16> {
        self.d.u16().map_err(|_| "a number below 65536 was expected")
    }

    fn bool(&mut self) -> Read<bool> {
        self.d.bool().map_err(|_| "true or false was expected")
    }

    /// A number of connections, at least 1.
    fn streams(&mut self) -> Read<u16> {
        Some(self.u16()?).filter(|streams| *streams > 0).ok_or("the number of connections is 0")
    }

    fn padding(&mut self) -> Read<u16> {
        u16::try_from(self.bytes()?.len()).map_err(|_| "the padding is too long")
    }

    fn session(&mut self) -> Read<SessionId> {
        self.bytes()?.try_into().map(SessionId).map_err(|_| "the session identifier does not have 16 bytes")
    }

    fn mode(&mut self) -> Read<Mode> {
        match self.u64()? {
            0 => Ok(Mode::Raw),
            1 => Ok(Mode::Framed),
            _ => Err("the mode is not known"),
        }
    }
}

const fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Raw => 0,
        Mode::Framed => 1,
    }
}

/// A text of bounded length and without control characters, which can be printed and logged as it is.
fn text<'a>(d: &mut Decoder<'a>) -> Read<&'a str> {
    let text = d.str().map_err(|_| "a text was expected")?;
    if text.len() > TEXT_MAX {
        return Err("a text is longer than 1024 bytes");
    }
    if text.chars().any(is_unprintable) {
        return Err("a text contains control characters");
    }
    Ok(text)
}

impl<'a> Hello<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let mut hello = Self { version_min: 0, version_max: 0, software: "", features: 0, ..Self::of("") };
        while let Some(key) = fields.next()? {
            match key {
                1 => hello.version_min = fields.u16()?,
                2 => hello.version_max = fields.u16()?,
                3 => hello.features = fields.u64()?,
                4 => hello.required = fields.u64()?,
                5 => hello.name = fields.text()?,
                6 => hello.software = fields.text()?,
                7 => hello.beacon = fields.bool()?,
                8 => hello.instance = fields.u64()?,
                _ => fields.skip()?,
            }
        }
        if hello.version_min == 0 || hello.version_max < hello.version_min {
            return Err("the versions are missing or in the wrong order");
        }
        Ok(hello)
    }
}

impl<'a> Challenge<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let mut challenge = Self { mechanisms: List::default(), data: &[] };
        while let Some(key) = fields.next()? {
            match key {
                1 => challenge.mechanisms = List::decode(&mut fields.d, MECHANISMS_MAX)?,
                2 => challenge.data = fields.bytes()?,
                _ => fields.skip()?,
            }
        }
        if challenge.mechanisms.is_empty() {
            return Err("no mechanism is offered");
        }
        Ok(challenge)
    }
}

impl<'a> Auth<'a> {
    fn read(fields: Fields<'a>) -> Read<Self> {
        let (mechanism, data) = mechanism_and_data(fields)?;
        Ok(Self { mechanism, data })
    }
}

impl<'a> Proved<'a> {
    fn read(fields: Fields<'a>) -> Read<Self> {
        let (mechanism, data) = mechanism_and_data(fields)?;
        Ok(Self { mechanism, data })
    }
}

/// The fields of AUTH and PROVED.
fn mechanism_and_data<'a>(mut fields: Fields<'a>) -> Read<(&'a str, &'a [u8])> {
    let (mut mechanism, mut data) = ("", &[][..]);
    while let Some(key) = fields.next()? {
        match key {
            1 => mechanism = fields.text()?,
            2 => data = fields.bytes()?,
            _ => fields.skip()?,
        }
    }
    if mechanism.is_empty() {
        return Err("the mechanism is missing");
    }
    Ok((mechanism, data))
}

impl<'a> Open<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let (mut session, mut destination) = (None, None);
        let (mut path, mut visited) = (List::default(), List::default());
        let (mut origin, mut principal, mut mode) = (None, PrincipalRef::default(), Mode::Raw);
        let (mut requirements, mut resumable, mut required, mut padding) = (Requirements::default(), false, 0, 0);
        let (mut streams, mut datagrams) = (1, false);
        while let Some(key) = fields.next()? {
            match key {
                1 => session = Some(fields.session()?),
                2 => destination = Some(EndpointRef::decode(&mut fields.d)?),
                3 => path = List::decode(&mut fields.d, PATH_MAX)?,
                4 => visited = List::decode(&mut fields.d, PATH_MAX)?,
                5 => origin = Some(EndpointRef::decode(&mut fields.d)?),
                6 => principal.subject = fields.text()?,
                7 => mode = fields.mode()?,
                8 => requirements = Requirements::read(&mut fields.d)?,
                9 => resumable = fields.bool()?,
                10 => required = fields.u64()?,
                11 => padding = fields.padding()?,
                12 => streams = fields.streams()?,
                13 => datagrams = fields.bool()?,
                14 => principal = PrincipalRef::read(&mut fields.d, principal.subject)?,
                _ => fields.skip()?,
            }
        }
        let session = session.ok_or("the session identifier is missing")?;
        let destination = destination.ok_or("the destination is missing")?;
        if principal.subject.is_empty() {
            // Rules, records and the audit agree on whether somebody asks.
            principal = PrincipalRef::default();
        }
        Ok(Self {
            session,
            destination,
            path,
            visited,
            origin,
            principal,
            mode,
            requirements,
            resumable,
            required,
            padding,
            streams,
            datagrams,
        })
    }
}

impl<'a> PrincipalRef<'a> {
    /// Whether there is more than the subject, which older gateways know.
    fn is_named(&self) -> bool {
        !self.method.is_empty()
    }

    /// Writes all but the subject.
    fn write<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(4)?.u8(1)?.str(self.method)?.u8(2)?.str(self.user)?.u8(3)?;
        self.groups.encode(e)?;
        e.u8(4)?.str(self.spoken_for_by).map(drop)
    }

    fn read(d: &mut Decoder<'a>, subject: &'a str) -> Read<Self> {
        let mut fields = Fields::of(d.clone())?;
        let mut principal = Self { subject, ..Self::default() };
        while let Some(key) = fields.next()? {
            match key {
                1 => principal.method = fields.text()?,
                2 => principal.user = fields.text()?,
                3 => principal.groups = List::decode(&mut fields.d, GROUPS_MAX)?,
                4 => principal.spoken_for_by = fields.text()?,
                _ => fields.skip()?,
            }
        }
        d.set_position(fields.d.position());
        Ok(principal)
    }
}

impl DatagramGrant {
    fn write<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(4)?.u8(1)?.u16(self.port)?.u8(2)?.u64(self.flow)?;
        e.u8(3)?.bytes(&self.key)?.u8(4)?.u16(self.longest).map(drop)
    }

    fn read(d: &mut Decoder<'_>) -> Read<Self> {
        let mut fields = Fields::of(d.clone())?;
        let (mut port, mut flow, mut key, mut longest) = (0, None, None, 0);
        while let Some(field) = fields.next()? {
            match field {
                1 => port = fields.u16()?,
                2 => flow = Some(fields.u64()?),
                3 => key = Some(fields.bytes()?.try_into().map_err(|_| "the key of datagrams does not have 16 bytes")?),
                4 => longest = fields.u16()?,
                _ => fields.skip()?,
            }
        }
        d.set_position(fields.d.position());
        match (port, flow, key, longest) {
            (1.., Some(flow), Some(key), 1..) => Ok(Self { port, flow, key, longest }),
            _ => Err("the port, the flow, the key or the longest length of datagrams is missing"),
        }
    }
}

impl Requirements {
    fn write<W: Write>(&self, e: &mut Encoder<W>) -> Result<(), minicbor::encode::Error<W::Error>> {
        let numbers =
            [self.buffer, self.rate, self.duration, self.streams.map(u64::from), self.security.map(|s| s as u64)];
        e.map(numbers.iter().flatten().count() as u64)?;
        for (key, number) in (1u64..).zip(numbers) {
            if let Some(number) = number {
                e.u64(key)?.u64(number)?;
            }
        }
        Ok(())
    }

    fn read(d: &mut Decoder<'_>) -> Read<Self> {
        let mut fields = Fields::of(d.clone())?;
        let mut requirements = Self::default();
        while let Some(key) = fields.next()? {
            match key {
                1 => requirements.buffer = Some(fields.u64()?),
                2 => requirements.rate = Some(fields.u64()?),
                3 => requirements.duration = Some(fields.u64()?),
                4 => requirements.streams = Some(fields.u16()?),
                5 => {
                    requirements.security = Some(match fields.u64()? {
                        0 => Security::None,
                        1 => Security::Auth,
                        2 => Security::Encrypt,
                        _ => return Err("the security level is not known"),
                    });
                }
                _ => fields.skip()?,
            }
        }
        d.set_position(fields.d.position());
        Ok(requirements)
    }
}

impl<'a> Opened<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let (mut session, mut mode, mut hops) = (None, Mode::Raw, List::default());
        let (mut streams, mut token, mut datagrams) = (1, &[][..], None);
        while let Some(key) = fields.next()? {
            match key {
                1 => session = Some(fields.session()?),
                2 => mode = fields.mode()?,
                3 => hops = List::decode(&mut fields.d, PATH_MAX + 1)?,
                4 => streams = fields.streams()?,
                5 => token = fields.bytes()?,
                6 => datagrams = Some(DatagramGrant::read(&mut fields.d)?),
                _ => fields.skip()?,
            }
        }
        Ok(Self { session: session.ok_or("the session identifier is missing")?, mode, hops, streams, token, datagrams })
    }
}

impl<'a> Refused<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let (mut code, mut reason, mut hop) = (None, "", "");
        let (mut limits, mut redirect) = (Requirements::default(), None);
        while let Some(key) = fields.next()? {
            match key {
                1 => code = Some(Code::from_number(fields.u16()?)),
                2 => reason = fields.text()?,
                3 => hop = fields.text()?,
                4 => limits = Requirements::read(&mut fields.d)?,
                5 => redirect = Some(EndpointRef::decode(&mut fields.d)?),
                _ => fields.skip()?,
            }
        }
        Ok(Self { code: code.ok_or("the code is missing")?, reason, hop, limits, redirect })
    }
}

impl<'a> Attach<'a> {
    fn read(mut fields: Fields<'a>) -> Read<Self> {
        let (mut session, mut token, mut index, mut padding) = (None, &[][..], 0, 0);
        while let Some(key) = fields.next()? {
            match key {
                1 => session = Some(fields.session()?),
                2 => token = fields.bytes()?,
                3 => index = fields.u16()?,
                4 => padding = fields.padding()?,
                _ => fields.skip()?,
            }
        }
        Ok(Self { session: session.ok_or("the session identifier is missing")?, token, index, padding })
    }
}
