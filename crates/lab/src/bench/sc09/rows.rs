//! The compared rows: GridFTP direct and through gateways, and the programs for comparison.

use crate::bench::hop::Wan;
use crate::bench::plot::Colour;
use crate::testbed::Security;

/// A row of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) program: Program,
    pub(super) way: RowRoute,
    pub(super) ends: EndsControl,
    pub(super) colour: Colour,
}

/// The program that moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// `globus-url-copy` to `globus-gridftp-server`, in MODE E on this many streams.
    Gridftp(u32),
    /// The same over GCT's own UDT driver.
    GridftpUdt,
    /// OpenSSH.
    Scp,
    /// One stream of iperf3.
    Iperf,
}

/// How the bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowRoute {
    /// By the network alone.
    Direct,
    /// Through both gateways, joined by the [`Wan`] of this name; the first hop is the program's own TCP connection.
    Through(&'static str),
    /// The same with an agent at `src`; the second name is the transport of the first hop.
    ByAgent(&'static str, &'static str),
}

/// The congestion control of TCP at the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndsControl {
    /// cubic, the default of most hosts; bbr on request.
    Cubic,
    /// cubic, even if a program requests another one.
    CubicAlone,
    /// bbr for all.
    Bbr,
}

const fn row(id: &'static str, title: &'static str, program: Program, way: RowRoute, colour: Colour) -> Row {
    Row { id, title, program, way, ends: EndsControl::Cubic, colour }
}

/// A row of the second table: bbr is not permitted at the ends.
const fn alone(id: &'static str, title: &'static str, program: Program, way: RowRoute, colour: Colour) -> Row {
    Row { ends: EndsControl::CubicAlone, ..row(id, title, program, way, colour) }
}

/// The row of one stream through Phoebus, which targets refer to.
pub(super) const PHOEBUS: &str = "phoebus-tcp";
pub(super) const DIRECT: &str = "direct";
pub(super) const DIRECT_8: &str = "direct-x8";
pub(super) const DIRECT_UDT: &str = "direct-udt";
pub(super) const PHOEBUS_UDT: &str = "phoebus-udt";
pub(super) const PHOEBUS_8: &str = "phoebus-x8";
pub(super) const IPERF: &str = "phoebus-iperf3";

use Program::{Gridftp, GridftpUdt, Iperf, Scp};
use RowRoute::{ByAgent, Direct, Through};

pub(super) const ROWS: [Row; 16] = [
    row("scp", "scp", Scp, Direct, Colour::Green),
    row(DIRECT, "direct TCP", Gridftp(1), Direct, Colour::LightGrey),
    Row {
        ends: EndsControl::Bbr,
        ..row("direct-bbr", "direct TCP, hosts with bbr", Gridftp(1), Direct, Colour::Purple)
    },
    row(DIRECT_UDT, "direct UDT", GridftpUdt, Direct, Colour::Grey),
    row(DIRECT_8, "direct TCP, 8 streams", Gridftp(8), Direct, Colour::Black),
    row(PHOEBUS, "Phoebus-TCP", Gridftp(1), Through("bbr"), Colour::Orange),
    row(PHOEBUS_UDT, "Phoebus-UDT", Gridftp(1), Through("udt"), Colour::Vermilion),
    row("phoebus-quic", "Phoebus-QUIC", Gridftp(1), Through("quic"), Colour::Sky),
    row(PHOEBUS_8, "Phoebus-TCP, 8 streams", Gridftp(8), Through("bbr"), Colour::Blue),
    // The shim requests bbr before it connects; a route's congestion control would override that.
    Row { ends: EndsControl::Bbr, ..row(IPERF, "iperf3 through Phoebus-TCP", Iperf, Through("bbr"), Colour::Green) },
    alone("alone-tcp", "Phoebus-TCP", Gridftp(1), Through("bbr"), Colour::Orange),
    alone("alone-udt", "Phoebus-UDT", Gridftp(1), Through("udt"), Colour::Vermilion),
    alone("alone-quic", "Phoebus-QUIC", Gridftp(1), Through("quic"), Colour::Sky),
    alone("alone-x8", "Phoebus-TCP, 8 streams", Gridftp(8), Through("bbr"), Colour::Blue),
    alone("agent-quic", "QUIC from the host on", Gridftp(1), ByAgent("quic", "quic"), Colour::Purple),
    // The port on which the gateways of a testbed accept it.
    alone("agent-udt", "UDT from the host on", Gridftp(1), ByAgent("udt", "udt/5007"), Colour::Green),
];

impl Row {
    /// The transport between the gateways, if the row uses gateways.
    pub(super) fn wan(&self, security: Security) -> Option<Wan> {
        let (RowRoute::Through(name) | RowRoute::ByAgent(name, _)) = self.way else { return None };
        name.parse::<Wan>().ok().map(|wan| wan.secured(security))
    }

    /// The transport between the gateways, as the sessions' reports name it.
    pub(super) fn transport(&self) -> &'static str {
        match self.way {
            RowRoute::Direct => "",
            RowRoute::Through("bbr") => "tcp",
            RowRoute::Through(name) | RowRoute::ByAgent(name, _) => name,
        }
    }
}

impl EndsControl {
    /// As an attribute of a route (ip-route(8)): for sockets that request nothing, or for all.
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
    fn rows_are_unique_and_their_wans_valid() {
        let ids: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), ROWS.len());
        for row in ROWS {
            assert_eq!(row.wan(Security::Encrypt).is_some(), row.way != RowRoute::Direct, "{}", row.id);
        }
        for id in [PHOEBUS, DIRECT, DIRECT_8, DIRECT_UDT, PHOEBUS_UDT, PHOEBUS_8, IPERF] {
            assert!(ids.contains(id), "{id}");
        }
    }
}
