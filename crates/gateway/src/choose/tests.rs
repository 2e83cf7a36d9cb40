//! The results of the rules on typical paths, and properties that hold on all paths.

use super::*;
use proptest::prelude::*;

const ALL: [&str; 3] = ["tcp", "quic", "udt"];

#[derive(Debug, Clone)]
struct Path {
    rtt_ms: f64,
    loss: Option<f64>,
    bbr: bool,
    capacity: Option<u64>,
    can: Vec<&'static str>,
    control: CongestionControl,
}

impl Path {
    fn of(rtt_ms: f64, loss: f64, bbr: bool) -> Self {
        let loss = Some(loss);
        Self { rtt_ms, loss, bbr, capacity: None, can: ALL.to_vec(), control: CongestionControl::Auto }
    }

    fn with(self, can: &[&'static str]) -> Self {
        Self { can: can.to_vec(), ..self }
    }

    fn decide(&self, held: Option<usize>) -> (Decision, &'static str) {
        let candidates = ALL.map(|transport| Candidate { transport, can: self.can.contains(&transport) });
        let situation = Situation {
            figures: Figures {
                round_trip: Some(Duration::from_secs_f64(self.rtt_ms / 1e3)),
                loss: self.loss,
                rate: None,
            },
            capacity: self.capacity.map(BitRate),
            bbr: self.bbr,
            control: self.control,
            candidates: &candidates,
        };
        let decision = choose(&situation, held);
        let transport = ALL[decision.candidate];
        (decision, transport)
    }

    /// Rule, transport, control, streams.
    fn chosen(&self) -> (&'static str, &'static str, String, u16) {
        let (decision, transport) = self.decide(None);
        (decision.rule.name, transport, decision.control.to_string(), decision.streams)
    }
}

#[test]
fn rules_choose_as_expected_on_typical_paths() {
    let is = |path: Path, rule: &str, transport: &str, control: &str, streams: u16| {
        let chosen = path.chosen();
        assert_eq!(chosen, (rule, transport, control.to_owned(), streams), "{path:?}");
    };
    is(Path::of(0.2, 0.0, false), "near", "tcp", "system", 1);
    is(Path::of(0.2, 0.1, true), "near", "tcp", "bbr", 1);
    is(Path::of(100.0, 0.001, true), "bbr", "tcp", "bbr", 1);
    is(Path { loss: None, ..Path::of(100.0, 0.0, true) }, "bbr", "tcp", "bbr", 1);
    is(Path::of(100.0, 0.03, true), "lossy", "quic", "model", 1);
    is(Path::of(100.0, 0.03, false).with(&["tcp", "udt"]), "lossy", "udt", "model", 1);
    is(Path::of(100.0, 0.03, true).with(&["tcp"]), "left", "tcp", "bbr", 1);
    is(Path::of(3.0, 0.0, false), "enough", "tcp", "system", 1);
    is(Path::of(25.0, 0.0, false), "far", "quic", "model", 1);
    // One flow carries 178 Mbit/s there.
    is(Path { capacity: Some(100_000_000), ..Path::of(25.0, 0.0, false) }, "enough", "tcp", "system", 1);
    is(Path::of(10.0, 0.0, false).with(&["tcp"]), "bundle", "tcp", "system", 3);
    is(Path::of(100.0, 0.001, false).with(&["tcp"]), "bundle", "tcp", "system", 8);
    is(Path::of(100.0, 0.0, true).with(&["udt"]), "left", "udt", "model", 1);
    // A configured congestion control is used, and the rules account for it.
    let cubic = Path { control: CongestionControl::Cubic, ..Path::of(3.0, 0.0, true) };
    is(cubic, "enough", "tcp", "cubic", 1);
}

#[test]
fn preference_decides_before_measurement() {
    let candidates = ["quic", "tcp"].map(|transport| Candidate { transport, can: true });
    let situation = Situation {
        figures: Figures::default(),
        capacity: None,
        bbr: true,
        control: CongestionControl::Auto,
        candidates: &candidates,
    };
    let decision = choose(&situation, None);
    assert_eq!((decision.rule.name, decision.candidate), ("unmeasured", 0));
}

#[test]
fn window_grows_with_measured_rate() {
    let window = |rate: f64, ms: u64, capacity: Option<u64>| {
        let candidates = [Candidate { transport: "quic", can: true }];
        let figures = Figures { round_trip: Some(Duration::from_millis(ms)), loss: Some(0.05), rate: Some(rate) };
        let capacity = capacity.map(BitRate);
        let control = CongestionControl::Auto;
        choose(&Situation { figures, capacity, bbr: false, control, candidates: &candidates }, None).buffer
    };
    assert_eq!(window(1e9, 100, None), Buffer::Auto);
    assert_eq!(window(1e10, 100, None), Buffer::Bytes(ByteSize(256 << 20)));
    assert_eq!(window(1e12, 300, None), Buffer::Bytes(ByteSize(512 << 20)));
    assert_eq!(window(1e10, 100, Some(10_000_000_000)), Buffer::Auto);
}

#[test]
fn in_order_takes_first_available_transport_on_every_path() {
    let decide = |can: [bool; 3], figures: Figures, bbr: bool| {
        let transports = ["quic", "udt", "tcp"];
        let candidates: Vec<_> =
            transports.into_iter().zip(can).map(|(transport, can)| Candidate { transport, can }).collect();
        let control = CongestionControl::Auto;
        let decision = in_order(&Situation { figures, capacity: None, bbr, control, candidates: &candidates });
        (decision.wished.1, transports[decision.candidate], decision.control, decision.streams)
    };
    let near = Figures { round_trip: Some(Duration::from_micros(100)), loss: Some(0.0), rate: Some(1e9) };
    let far = Figures { round_trip: Some(Duration::from_millis(200)), loss: Some(0.01), rate: Some(1e7) };
    for figures in [Figures::default(), near, far] {
        for bbr in [false, true] {
            let tcp = if bbr { CongestionControl::Bbr } else { CongestionControl::System };
            let all = |can| decide(can, figures, bbr);
            assert_eq!(all([true; 3]), (0, "quic", CongestionControl::Model, 1));
            assert_eq!(all([false, true, true]), (0, "udt", CongestionControl::Model, 1));
            assert_eq!(all([false, false, true]), (0, "tcp", tcp, 1));
            assert_eq!(all([false; 3]), (0, "quic", CongestionControl::Model, 1));
        }
    }
}

/// The table in the guide equals the rules.
#[test]
fn guide_shows_the_rules() {
    let rows = RULES.iter().map(|rule| {
        let when: Vec<_> = rule.when.iter().map(ToString::to_string).collect();
        let when = if when.is_empty() { "else".to_owned() } else { when.join(", ") };
        let (by, control) = match rule.carry {
            Carry::Whatever => ("the first available", "`auto`".to_owned()),
            Carry::Tcp(control) => ("`tcp`", format!("`{control}`")),
            Carry::Modelled => ("the first available of `quic` and `udt`", "`model`".to_owned()),
        };
        let streams = match rule.streams {
            Streams::One => "1".to_owned(),
            Streams::Needed => format!("as needed, up to {STREAMS_MAX}"),
        };
        format!("| `{}` | {when} | {by} | {control} | {streams} | {} |\n", rule.name, rule.why)
    });
    let head = "| rule | when | transport | control | streams | because |\n|---|---|---|---|---|---|\n";
    let table: String = std::iter::once(head.to_owned()).chain(rows).collect();
    let guide = include_str!("../../../../docs/guide/transports.md");
    assert!(guide.contains(&table), "docs/guide/transports.md does not have this table:\n{table}");
}

fn paths() -> impl Strategy<Value = Path> {
    let can = proptest::sample::subsequence(ALL.to_vec(), 1..=3);
    let loss = proptest::option::of((-6.0..-0.3_f64).prop_map(|exponent| 10_f64.powf(exponent)));
    let capacity = proptest::option::of(1_000_000..100_000_000_000_u64);
    let rtt = (-1.0..3.0_f64).prop_map(|exponent| 10_f64.powf(exponent));
    (rtt, loss, any::<bool>(), capacity, can).prop_map(|(rtt_ms, loss, bbr, capacity, can)| Path {
        rtt_ms,
        loss,
        bbr,
        capacity,
        can,
        control: CongestionControl::Auto,
    })
}

#[test]
fn bundle_yields_to_rule_whose_transport_is_now_allowed() {
    let path = Path {
        rtt_ms: 5.567423732462251,
        loss: None,
        bbr: false,
        capacity: None,
        can: vec!["tcp", "udt"],
        control: CongestionControl::Auto,
    };
    let bundle = RULES.iter().position(|rule| rule.name == "bundle");
    let (decision, transport) = path.decide(bundle);
    assert_eq!((decision.streams, transport), (1, "udt"));
}

proptest! {
    /// The chosen transport is available.
    #[test]
    fn chosen_transport_is_available(path in paths(), held in proptest::option::of(0..RULES.len())) {
        let (decision, transport) = path.decide(held);
        prop_assert!(path.can.contains(&transport), "{transport} of {:?}", path.can);
        prop_assert!((1..=STREAMS_MAX).contains(&decision.streams));
        prop_assert!(decision.streams == 1 || !path.bbr && path.can == ["tcp"]);
    }

    /// Equal figures change nothing.
    #[test]
    fn equal_figures_keep_decision(path in paths(), held in proptest::option::of(0..RULES.len())) {
        let (first, _) = path.decide(held);
        prop_assert_eq!(&path.decide(Some(first.wished.0)).0, &first);
    }

    /// Figures that vary by a fifth change nothing, whichever bound they are near.
    #[test]
    fn jitter_keeps_decision(path in paths(), jitter in proptest::collection::vec((0.9..1.1_f64, 0.9..1.1_f64), 1..40)) {
        let mut held: Option<(usize, &str)> = None;
        for (rtt, loss) in jitter {
            let shaken =
                Path { rtt_ms: path.rtt_ms * rtt, loss: path.loss.map(|p| p * loss * loss), ..path.clone() };
            let (decision, transport) = shaken.decide(held.map(|(rule, _)| rule));
            if let Some(held) = held {
                prop_assert_eq!(held, (decision.wished.0, transport), "{:?}", shaken);
            }
            held = Some((decision.wished.0, transport));
        }
    }

    /// A worse path never returns to a congestion control that takes loss for congestion.
    #[test]
    fn worse_path_never_returns_to_tcp(
        path in paths(), longer in 1.0..10.0_f64, more in 1.0..10.0_f64,
    ) {
        prop_assume!(path.rtt_ms >= 2.0);
        let worse = Path {
            rtt_ms: path.rtt_ms * longer,
            loss: path.loss.map(|p| (p * more).min(1.0)),
            ..path.clone()
        };
        let (_, now) = path.decide(None);
        let (_, then) = worse.decide(None);
        if now != "tcp" {
            prop_assert_eq!(then, now);
        }
    }
}
