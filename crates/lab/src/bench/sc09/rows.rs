//! What is compared: GridFTP direct and through gateways, with what stands beside it.

use crate::bench::hop::Wan;
use crate::bench::plot::Colour;
use crate::testbed::Security;

/// Something that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) program: Program,
    pub(super) way: Way,
    pub(super) ends: Ends,
    pub(super) colour: Colour,
}

/// What moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// `globus-url-copy` to `globus-gridftp-server`, in MODE E on so many streams.
    Gridftp(u32),
    /// The same over GCT's own UDT driver.
    GridftpUdt,
    /// OpenSSH.
    Scp,
    /// One stream of iperf3.
    Iperf,
}

/// How they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By the network alone.
    Direct,
    /// Through both gateways, joined by this, as [`Wan`] names it; the first hop is the program's own TCP connection.
    Through(&'static str),
    /// The same by an agent at `src`, which carries the first hop by the second.
    ByAgent(&'static str, &'static str),
}

/// Under what TCP sends at the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ends {
    /// cubic, as most hosts have it; bbr for those who ask.
    Cubic,
    /// cubic, whoever asks for what.
    CubicAlone,
    /// bbr for all.
    Bbr,
}

const fn row(id: &'static str, title: &'static str, program: Program, way: Way, colour: Colour) -> Row {
    Row { id, title, program, way, ends: Ends::Cubic, colour }
}

/// A row of the second table: where bbr is not permitted at the ends.
const fn alone(id: &'static str, title: &'static str, program: Program, way: Way, colour: Colour) -> Row {
    Row { ends: Ends::CubicAlone, ..row(id, title, program, way, colour) }
}

/// What one stream through Phoebus is, where targets ask for it.
pub(super) const PHOEBUS: &str = "phoebus-tcp";
pub(super) const DIRECT: &str = "direct";
pub(super) const DIRECT_8: &str = "direct-x8";
pub(super) const DIRECT_UDT: &str = "direct-udt";
pub(super) const PHOEBUS_UDT: &str = "phoebus-udt";
pub(super) const PHOEBUS_8: &str = "phoebus-x8";
pub(super) const IPERF: &str = "phoebus-iperf3";

use Program::{Gridftp, GridftpUdt, Iperf, Scp};
use Way::{ByAgent, Direct, Through};

pub(super) const ROWS: [Row; 16] = [
    row("scp", "scp", Scp, Direct, Colour::Green),
    row(DIRECT, "direct TCP", Gridftp(1), Direct, Colour::LightGrey),
    Row { ends: Ends::Bbr, ..row("direct-bbr", "direct TCP, hosts with bbr", Gridftp(1), Direct, Colour::Purple) },
    row(DIRECT_UDT, "direct UDT", GridftpUdt, Direct, Colour::Grey),
    row(DIRECT_8, "direct TCP, 8 streams", Gridftp(8), Direct, Colour::Black),
    row(PHOEBUS, "Phoebus-TCP", Gridftp(1), Through("bbr"), Colour::Orange),
    row(PHOEBUS_UDT, "Phoebus-UDT", Gridftp(1), Through("udt"), Colour::Vermilion),
    row("phoebus-quic", "Phoebus-QUIC", Gridftp(1), Through("quic"), Colour::Sky),
    row(PHOEBUS_8, "Phoebus-TCP, 8 streams", Gridftp(8), Through("bbr"), Colour::Blue),
    // The shim asks for bbr before it connects, which a route's congestion control would stand before.
    Row { ends: Ends::Bbr, ..row(IPERF, "iperf3 through Phoebus-TCP", Iperf, Through("bbr"), Colour::Green) },
    alone("alone-tcp", "Phoebus-TCP", Gridftp(1), Through("bbr"), Colour::Orange),
    alone("alone-udt", "Phoebus-UDT", Gridftp(1), Through("udt"), Colour::Vermilion),
    alone("alone-quic", "Phoebus-QUIC", Gridftp(1), Through("quic"), Colour::Sky),
    alone("alone-x8", "Phoebus-TCP, 8 streams", Gridftp(8), Through("bbr"), Colour::Blue),
    alone("agent-quic", "QUIC from the host on", Gridftp(1), ByAgent("quic", "quic"), Colour::Purple),
    // Where the gateways of a testbed take it.
    alone("agent-udt", "UDT from the host on", Gridftp(1), ByAgent("udt", "udt/5007"), Colour::Green),
];

impl Row {
    /// What joins the gateways, if any are on the way.
    pub(super) fn wan(&self, security: Security) -> Option<Wan> {
        let (Way::Through(name) | Way::ByAgent(name, _)) = self.way else { return None };
        name.parse::<Wan>().ok().map(|wan| wan.secured(security))
    }

    /// What reports of its sessions say of the hop between the gateways.
    pub(super) fn transport(&self) -> &'static str {
        match self.way {
            Way::Direct => "",
            Way::Through("bbr") => "tcp",
            Way::Through(name) | Way::ByAgent(name, _) => name,
        }
    }
}

impl Ends {
    /// As an attribute of a route (ip-route(8)): what a socket has that asks for nothing, or whatever it asks for.
    pub(super) fn congctl(self) -> &'static str {
        match self {
            Self::Cubic => "congctl cubic",
            Self::CubicAlone => "congctl lock cubic",
            Self::Bbr => "congctl bbr",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_there_once_and_leads_somewhere() {
        let ids: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), ROWS.len());
        for row in ROWS {
            assert_eq!(row.wan(Security::Encrypt).is_some(), row.way != Way::Direct, "{}", row.id);
        }
        for id in [PHOEBUS, DIRECT, DIRECT_8, DIRECT_UDT, PHOEBUS_UDT, PHOEBUS_8, IPERF] {
            assert!(ids.contains(id), "{id}");
        }
    }
}
