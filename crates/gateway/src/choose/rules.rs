//! The rules by which `auto` chooses, in the order in which they count; the guide shows them as the same table
//! (docs/guide/transports.md, "Let it choose"), and a test holds the two together.

use Carry::{Modelled, Tcp, Whatever};
use Figure::{Loss, Need, RoundTrip};
use When::{Bbr, Below, From, Unmeasured};
use phoebus_net::CongestionControl;

/// What a segment is like, and what is then to carry it.
#[derive(Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// All of these.
    pub(crate) when: &'static [When],
    pub(crate) carry: Carry,
    pub(crate) streams: Streams,
    /// Why, after "because".
    pub(crate) why: &'static str,
}

/// Something that is so or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum When {
    /// No answer of the peer has been seen yet.
    Unmeasured,
    /// Whether this process may send by bbr, and the profile does not ask for another.
    Bbr(bool),
    Below(Figure, f64),
    From(Figure, f64),
}

/// What is measured of a segment, or follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// In seconds.
    RoundTrip,
    /// The share of what was sent that was lost.
    Loss,
    /// How many flows of a control that takes all loss for congestion the segment could carry beside each other (Mathis et
    /// al., CCR 27(3), 1997): below 1, one is enough.
    Need,
}

/// What carries sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// The preferred one of those that are to be had.
    Whatever,
    /// TCP with this control.
    Tcp(CongestionControl),
    /// The preferred one of QUIC and UDT that is to be had, with its control by a model of the path.
    Modelled,
}

/// Connections of one hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    One,
    /// As many as are needed, up to [`STREAMS_MAX`].
    Needed,
}

/// The most connections that a rule makes of one hop. More take from other traffic what is not theirs, and cost the receiver
/// as much memory as they put out of order.
pub(crate) const STREAMS_MAX: u16 = 8;

/// What a segment is taken to carry when its profile does not say, and no more was seen.
pub(crate) const CARRIES: f64 = 1e9;

/// What is lost where nothing was seen to be: packets that good long paths lose now and then.
pub(crate) const LEAST_LOSS: f64 = 1e-5;

/// How much further than its bound a figure must go for what is in force to be given up.
pub(crate) const MARGIN: f64 = 1.5;

/// What counts instead of [`RULES`] where the order of what is allowed does.
pub(crate) const PREFERRED: Rule = Rule {
    name: "preferred",
    when: &[],
    carry: Whatever,
    streams: Streams::One,
    why: "it is the first in order that is to be had",
};

/// The first that fits, and whose transport is allowed and to be had.
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
        why: "what is lost on a short path is there again at once, and TCP costs the least processor time",
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
        why: "bbr is not to be had, and another control of TCP would not fill this path",
    },
    Rule {
        name: "bundle",
        when: &[Bbr(false), From(Need, 1.0)],
        carry: Tcp(CongestionControl::System),
        streams: Streams::Needed,
        why: "neither bbr nor UDP is to be had, and one connection would not fill this path",
    },
    Rule {
        name: "left",
        when: &[],
        carry: Whatever,
        streams: Streams::One,
        why: "what would suit better is not to be had",
    },
];
