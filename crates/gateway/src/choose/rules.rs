//! The rules of `auto`, in order of precedence. The guide shows them as the same table (docs/guide/transports.md, "The
//! rules of `auto`"), and a test compares the two.

use Carry::{Modelled, Tcp, Whatever};
use Figure::{Loss, Need, RoundTrip};
use When::{Bbr, Below, From, Unmeasured};
use phoebus_net::CongestionControl;

/// Properties of a segment, and what then carries it.
#[derive(Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// All of these must hold.
    pub(crate) when: &'static [When],
    pub(crate) carry: Carry,
    pub(crate) streams: Streams,
    /// Why, after "because".
    pub(crate) why: &'static str,
}

/// A condition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum When {
    /// The peer has not answered yet.
    Unmeasured,
    /// Whether this process may use bbr and the profile asks for no other control.
    Bbr(bool),
    Below(Figure, f64),
    From(Figure, f64),
}

/// A measured or derived property of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// In seconds.
    RoundTrip,
    /// The share of sent packets that was lost.
    Loss,
    /// How many parallel flows of a congestion control that takes all loss for congestion the segment could carry
    /// (Mathis et al., CCR 27(3), 1997). Below 1, one flow is enough.
    Need,
}

/// What carries sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// The preferred one of those available.
    Whatever,
    /// TCP with this control.
    Tcp(CongestionControl),
    /// The preferred available one of QUIC and UDT, with congestion control by a model of the path.
    Modelled,
}

/// Connections of one hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    One,
    /// As many as are needed, up to [`STREAMS_MAX`].
    Needed,
}

/// The most connections that a rule makes of one hop. More would take an unfair share from other traffic, and cost the
/// receiver memory for bytes out of order.
pub(crate) const STREAMS_MAX: u16 = 8;

/// The assumed capacity of a segment, in bits per second, where its profile gives none and no higher rate was measured.
pub(crate) const CARRIES: f64 = 1e9;

/// The assumed loss where none was measured: good long paths lose a packet now and then.
pub(crate) const LEAST_LOSS: f64 = 1e-5;

/// The factor by which a figure must pass its bound before the current rule is given up.
pub(crate) const MARGIN: f64 = 1.5;

/// Applies instead of [`RULES`] where only the order of the allowed transports counts.
pub(crate) const PREFERRED: Rule = Rule {
    name: "preferred",
    when: &[],
    carry: Whatever,
    streams: Streams::One,
    why: "it is the first available one in order",
};

/// The first rule applies whose conditions hold and whose transport is allowed and available.
pub(crate) const RULES: [Rule; 8] = [
    Rule {
        name: "unmeasured",
        when: &[Unmeasured],
        carry: Whatever,
        streams: Streams::One,
        why: "nothing was measured yet",
    },
    Rule {
        name: "near",
        when: &[Below(RoundTrip, 0.002)],
        carry: Tcp(CongestionControl::Auto),
        streams: Streams::One,
        why: "a short path repairs losses quickly, and TCP costs the least processor time",
    },
    Rule {
        name: "bbr",
        when: &[Bbr(true), Below(Loss, 0.02)],
        carry: Tcp(CongestionControl::Bbr),
        streams: Streams::One,
        why: "bbr keeps its rate over some loss, and the kernel does the work",
    },
    Rule {
        name: "lossy",
        when: &[From(Loss, 0.02)],
        carry: Modelled,
        streams: Streams::One,
        why: "at such loss every control of TCP collapses",
    },
    Rule {
        name: "enough",
        when: &[Bbr(false), Below(Need, 1.0)],
        carry: Tcp(CongestionControl::System),
        streams: Streams::One,
        why: "a control that takes all loss for congestion still fills this path",
    },
    Rule {
        name: "far",
        when: &[Bbr(false), From(Need, 1.0)],
        carry: Modelled,
        streams: Streams::One,
        why: "bbr is not available, and another control of TCP would not fill this path",
    },
    Rule {
        name: "bundle",
        when: &[Bbr(false), From(Need, 1.0)],
        carry: Tcp(CongestionControl::System),
        streams: Streams::Needed,
        why: "neither bbr nor UDP is available, and one connection would not fill this path",
    },
    Rule {
        name: "left",
        when: &[],
        carry: Whatever,
        streams: Streams::One,
        why: "no more suitable transport is available",
    },
];
