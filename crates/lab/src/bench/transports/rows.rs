//! The compared rows: direct connections, and every first hop with every transport between the gateways.

use super::Path;
use crate::bench::compared::FirstHop;
use crate::bench::hop::Wan;
use crate::bench::plot::Colour;

/// A row of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) kind: RowRoute,
    /// From `dst` to `src`.
    pub(super) reverse: bool,
}

/// How a row's bytes travel.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowRoute {
    /// Over the three links, without the WAN's delay and without loss.
    Link,
    /// By the network alone.
    Direct {
        /// TCP, or bare UDT or QUIC.
        carrier: &'static str,
        /// The sender's congestion control; the transport's default if absent.
        cc: Option<&'static str>,
    },
    /// Only over the LAN of `dst`, from `dst`.
    Ceiling,
    /// Through gateways.
    Through {
        /// The first hop, from `src` to the first gateway.
        hop: FirstHop,
        /// The transport between the gateways.
        wan: Wan,
    },
}

/// The rows for these first hops and these transports between the gateways, and the reference rows.
pub(super) fn throughput(hops: &[FirstHop], wans: &[Wan]) -> Vec<Row> {
    let row = |id: &str, kind| Row { id: id.into(), kind, reverse: false };
    let direct = |carrier, cc| RowRoute::Direct { carrier, cc };
    let mut rows = vec![
        row("link", RowRoute::Link),
        row("direct-cubic", direct("tcp", Some("cubic"))),
        row("direct-bbr", direct("tcp", Some("bbr"))),
        row("direct-udt", direct("udt", None)),
        row("direct-quic", direct("quic", None)),
    ];
    rows.extend(through(hops, wans));
    let back = |id: &str, kind| Row { reverse: true, ..row(id, kind) };
    rows.push(back("reverse-ceiling", RowRoute::Ceiling));
    rows.push(back("reverse-direct", direct("tcp", Some("cubic"))));
    rows.extend(wans.iter().map(|wan| {
        let kind = RowRoute::Through { hop: FirstHop::Cubic, wan: wan.clone() };
        back(&format!("reverse-wan-{}", wan.name), kind)
    }));
    rows
}

/// Every first hop with every transport between the gateways.
pub(super) fn through(hops: &[FirstHop], wans: &[Wan]) -> impl Iterator<Item = Row> {
    let row = |hop: FirstHop, wan: &Wan| Row {
        id: format!("{}wan-{}", hop.prefix(), wan.name),
        kind: RowRoute::Through { hop, wan: wan.clone() },
        reverse: false,
    };
    hops.iter().flat_map(move |hop| wans.iter().map(move |wan| row(*hop, wan)))
}

/// The rows of each first hop, together with the reference rows, for drawings in which a colour stands for a
/// transport. Each set has a name for files.
pub(super) fn by_hop<'a>(rows: &[&'a Row]) -> Vec<(&'static str, Vec<&'a Row>)> {
    let hop = |row: &Row| match row.kind {
        RowRoute::Through { hop, .. } => Some(hop),
        _ => None,
    };
    let hops = [
        (FirstHop::Cubic, "hop-cubic"),
        (FirstHop::Bbr, "hop-bbr"),
        (FirstHop::Quic, "hop-quic"),
        (FirstHop::Udt, "hop-udt"),
    ];
    let of = |(one, name)| {
        let shown = rows.iter().copied().filter(|row| hop(row).is_none_or(|hop| hop == one)).collect();
        rows.iter().any(|row| hop(row) == Some(one)).then_some((name, shown))
    };
    hops.into_iter().filter_map(of).collect()
}

/// The protection between the gateways and the settings of their hosts, for the conditions of an experiment.
pub(super) fn conditions(rows: &[Row]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for row in rows {
        if let RowRoute::Through { wan, .. } = &row.kind {
            let name = format!("gateways joined by {}", wan.name);
            if all.iter().all(|(other, _)| *other != name) {
                all.push((name, format!("security = \"{}\"", wan.protection())));
            }
        }
    }
    if !all.is_empty() {
        all.push(("hosts of joined gateways".into(), "tcp_slow_start_after_idle 0, as gateways advise".into()));
    }
    all
}

impl Row {
    /// The path that it needs.
    pub(super) fn path(&self) -> Path {
        match &self.kind {
            RowRoute::Link => Path::Clean,
            RowRoute::Direct { .. } | RowRoute::Ceiling => Path::Direct,
            RowRoute::Through { wan, .. } => Path::Joined(wan.clone()),
        }
    }

    /// The carrier of the sink at `dst`.
    pub(super) fn carrier(&self) -> &'static str {
        match self.kind {
            RowRoute::Direct { carrier, .. } => carrier,
            _ => "tcp",
        }
    }

    /// The client's host.
    pub(super) fn from(&self) -> &'static str {
        if self.kind == RowRoute::Ceiling { "pg2" } else { "src" }
    }

    /// The client's carrier. On the first hop, the shim requests the congestion control.
    pub(super) fn client(&self) -> Vec<&'static str> {
        let cc = match self.kind {
            _ if self.reverse => None,
            RowRoute::Link => Some("bbr"),
            RowRoute::Direct { cc, .. } => cc,
            RowRoute::Ceiling | RowRoute::Through { .. } => None,
        };
        std::iter::once(self.carrier()).chain(cc.into_iter().flat_map(|cc| ["--cc", cc])).collect()
    }

    /// Further options of the flow. `dst` sends under cubic, as most hosts do.
    pub(super) fn wanted(&self) -> Vec<&'static str> {
        if self.reverse { vec!["--reverse", "--sink-cc", "cubic"] } else { Vec::new() }
    }
}

/// A row's title in tables and legends. For results of an earlier run, only the identifier is known.
pub(super) fn title(id: &str) -> String {
    match (id, id.rsplit_once("wan-")) {
        ("link", _) => "the link".into(),
        ("direct-udt", _) => "direct, UDT".into(),
        ("direct-quic", _) => "direct, QUIC".into(),
        ("reverse-ceiling", _) => "the LAN of dst alone, to pg2".into(),
        (_, Some(("reverse-", wan))) => format!("WAN {wan}"),
        (_, Some((hop, wan))) => format!("{}, WAN {wan}", first_hop(hop)),
        (other, None) => other.replace("reverse-direct", "direct-cubic").replace('-', ", "),
    }
}

/// The part of an identifier that names the first hop, in words.
pub(super) fn first_hop(prefix: &str) -> String {
    match prefix.trim_start_matches("hop-").trim_end_matches("wan-").trim_end_matches(['+', '-']) {
        "" | "reverse" => "first hop cubic".into(),
        hop => format!("first hop {hop}"),
    }
}

/// The colour of a row, by its identifier, in every chart.
pub(super) fn colour(id: &str) -> Colour {
    match id.rsplit_once("wan-").map_or(id, |(_, wan)| wan) {
        "direct-cubic" | "reverse-direct" => Colour::LightGrey,
        "direct-bbr" => Colour::Grey,
        "reverse-ceiling" => Colour::Black,
        "direct-udt" => Colour::Purple,
        "direct-quic" => Colour::Black,
        "cubic" => Colour::Sky,
        "bbr" => Colour::Blue,
        "udt" => Colour::Green,
        "quic" => Colour::Orange,
        "auto" => Colour::Vermilion,
        _ => Colour::Black,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_their_hops() {
        let wans = ["quic", "auto"].map(|name| name.parse().unwrap());
        let rows = throughput(&[FirstHop::Cubic, FirstHop::Bbr], &wans);
        let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(
            ids[5..],
            [
                "wan-quic",
                "wan-auto",
                "hop-bbr+wan-quic",
                "hop-bbr+wan-auto",
                "reverse-ceiling",
                "reverse-direct",
                "reverse-wan-quic",
                "reverse-wan-auto",
            ]
        );
        assert_eq!(rows[2].client(), ["tcp", "--cc", "bbr"]);
        assert_eq!(rows[3].client(), ["udt"]);
        assert_eq!(rows[9].client(), ["tcp"]);
        assert_eq!((rows[9].from(), rows[9].wanted()), ("pg2", vec!["--reverse", "--sink-cc", "cubic"]));
        let titles = ["link", "direct-bbr", "wan-quic", "hop-bbr+wan-udt", "reverse-wan-quic"].map(title);
        let expected = ["the link", "direct, bbr", "first hop cubic, WAN quic", "first hop bbr, WAN udt", "WAN quic"];
        assert_eq!(titles, expected);
        let sets = by_hop(&rows[1..].iter().take(8).collect::<Vec<_>>());
        let sets: Vec<_> = sets.iter().map(|(name, rows)| (*name, rows.len())).collect();
        assert_eq!(sets, [("hop-cubic", 6), ("hop-bbr", 6)]);
        let said: Vec<_> = conditions(&rows).into_iter().map(|(name, _)| name).collect();
        assert_eq!(said, ["gateways joined by quic", "gateways joined by auto", "hosts of joined gateways"]);
        assert_eq!(colour("hop-bbr+wan-quic"), colour("wan-quic"));
    }
}
