//! `phoebus_report`, `phoebus_hop`: what a session got, for C programs.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::boundary::{address, fill, get, string};
use crate::failure::code;
use phoebus_client::Report;
use std::ffi::{CString, c_char, c_int};

/// `phoebus_report`: a report with its texts as C strings.
#[derive(Debug)]
pub(crate) struct Shown {
    session: CString,
    destination: CString,
    note: CString,
    text: CString,
    json: CString,
    rtt_us: u64,
    opened_in_us: u64,
    hops: Vec<ShownHop>,
}

#[derive(Debug)]
struct ShownHop {
    from: CString,
    to: CString,
    transport: CString,
    congestion_control: CString,
    security: CString,
    note: CString,
    rtt_us: u64,
    send_buffer: u64,
    receive_buffer: u64,
    rate: u64,
    streams: u32,
    warm: u32,
}

/// The C structure `phoebus_hop`, member by member.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Hop {
    pub(crate) from: *const c_char,
    pub(crate) to: *const c_char,
    pub(crate) transport: *const c_char,
    pub(crate) congestion_control: *const c_char,
    pub(crate) security: *const c_char,
    pub(crate) note: *const c_char,
    pub(crate) rtt_us: u64,
    pub(crate) send_buffer: u64,
    pub(crate) receive_buffer: u64,
    pub(crate) rate: u64,
    pub(crate) streams: u32,
    pub(crate) warm: u32,
}

impl From<&Report> for Shown {
    fn from(report: &Report) -> Self {
        Self {
            session: string(report.session.as_str()),
            destination: string(report.destination.as_str()),
            note: string(report.note.as_str()),
            text: string(report.to_string()),
            // Keys are strings and values are plain, so this cannot fail.
            json: string(serde_json::to_string(report).unwrap_or_default()),
            rtt_us: report.rtt_us,
            opened_in_us: report.opened_in_us,
            hops: report.hops.iter().map(ShownHop::from).collect(),
        }
    }
}

impl From<&phoebus_client::Hop> for ShownHop {
    fn from(hop: &phoebus_client::Hop) -> Self {
        Self {
            from: string(hop.from.as_str()),
            to: string(hop.to.as_str()),
            transport: string(hop.transport.as_str()),
            congestion_control: string(hop.congestion_control.as_str()),
            security: string(hop.security.as_str()),
            note: string(hop.note.as_str()),
            rtt_us: hop.rtt_us,
            send_buffer: hop.send_buffer,
            receive_buffer: hop.receive_buffer,
            rate: hop.rate,
            streams: hop.streams.into(),
            warm: hop.warm.into(),
        }
    }
}

impl ShownHop {
    fn view(&self) -> Hop {
        Hop {
            from: self.from.as_ptr(),
            to: self.to.as_ptr(),
            transport: self.transport.as_ptr(),
            congestion_control: self.congestion_control.as_ptr(),
            security: self.security.as_ptr(),
            note: self.note.as_ptr(),
            rtt_us: self.rtt_us,
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            rate: self.rate,
            streams: self.streams,
            warm: self.warm,
        }
    }
}

export! {
    /// See the header.
    fn phoebus_report_session(report: *const Shown) -> *const c_char, or address(None), {
        address(get(report).map(|report| &report.session))
    }

    /// See the header.
    fn phoebus_report_destination(report: *const Shown) -> *const c_char, or address(None), {
        address(get(report).map(|report| &report.destination))
    }

    /// See the header.
    fn phoebus_report_note(report: *const Shown) -> *const c_char, or address(None), {
        address(get(report).map(|report| &report.note))
    }

    /// See the header.
    fn phoebus_report_text(report: *const Shown) -> *const c_char, or address(None), {
        address(get(report).map(|report| &report.text))
    }

    /// See the header.
    fn phoebus_report_json(report: *const Shown) -> *const c_char, or address(None), {
        address(get(report).map(|report| &report.json))
    }

    /// See the header.
    fn phoebus_report_rtt_us(report: *const Shown) -> u64, or 0, {
        get(report).map_or(0, |report| report.rtt_us)
    }

    /// See the header.
    fn phoebus_report_opened_in_us(report: *const Shown) -> u64, or 0, {
        get(report).map_or(0, |report| report.opened_in_us)
    }

    /// See the header.
    fn phoebus_report_hops(report: *const Shown) -> usize, or 0, {
        get(report).map_or(0, |report| report.hops.len())
    }

    /// See the header.
    fn phoebus_report_hop(report: *const Shown, index: usize, hop: *mut Hop, size: usize) -> c_int, or code::BUG, {
        match get(report).and_then(|report| report.hops.get(index)) {
            Some(found) if !hop.is_null() => {
                fill(&found.view(), hop, size);
                code::OK
            }
            _ => code::ARGUMENT,
        }
    }
}
