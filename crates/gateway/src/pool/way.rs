//! The ways to a peer, and which of them new connections take (P15): the one that is configured, or with `transport = "auto"`
//! what the rules make of what was measured (`crate::choose`), or for an agent the first that is to be had. Two gateways settle
//! it by trying: what the other one does not listen with is not to be had.
//!
//! Another way is taken up in the background, and only once a connection by it was greeted, so that no session waits for it.
//! When the way in force fails, the next one is tried at once, by the session that finds it so.

use super::{Pool, Warm, lock};
use crate::choose::{Candidate, Decision, Situation, choose, in_order};
use crate::config::AUTO;
use crate::refusal::Refusal;
use crate::survey::Mark;
use crate::transports::{has_streams, shows_death};
use phoebus_net::transport::Transport;
use phoebus_net::{Buffer, CongestionControl, Profile, Stats, tcp};
use phoebus_proto::session::Code;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// For how long a transport is first left alone whose connection was refused: whoever refuses is there, and may be about to
/// listen.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A way to reach a peer.
#[derive(Debug)]
pub(crate) struct Way {
    pub(super) transport: Box<str>,
    pub(super) over: Arc<dyn Transport>,
    /// The peer's port, if it is not the one of its address.
    pub(super) port: Option<u16>,
    /// Whether sessions are streams of one connection, once that is known.
    pub(super) has_streams: OnceLock<bool>,
}

/// How new connections are made.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// Which way.
    pub(super) way: usize,
    pub(super) profile: Arc<Profile>,
    /// Why, where something was chosen.
    pub(super) decision: Option<Decision>,
    /// What session reports say of it.
    pub(super) note: Option<Box<str>>,
    since: Instant,
}

/// What `auto` has chosen for a peer, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChoiceStatus {
    /// The rule (docs/guide/transports.md).
    pub rule: String,
    /// Its reason.
    pub because: String,
    /// Congestion control of new connections.
    pub congestion_control: String,
    /// Connections of one hop.
    pub streams: u16,
    /// For how long it has been so.
    pub since_s: f64,
    /// Transports that could not be had, and why.
    pub failed: Vec<(String, String)>,
}

impl Way {
    pub(crate) fn new(transport: &str, over: Arc<dyn Transport>, port: Option<u16>) -> Self {
        let known = has_streams(transport).map(OnceLock::from).unwrap_or_default();
        Self { transport: transport.into(), over, port, has_streams: known }
    }
}

impl Chosen {
    /// What is configured.
    pub(super) fn configured(profile: Arc<Profile>) -> Self {
        Self { way: 0, profile, decision: None, note: None, since: Instant::now() }
    }

    /// Whether connections made by either are as good as each other.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let like = |chosen: &Self| (chosen.way, chosen.profile.congestion_control);
        like(self) == like(other)
    }
}

impl Pool {
    pub(super) fn is_auto(&self) -> bool {
        self.peer.transport == AUTO
    }

    /// How new connections are made now.
    pub(super) fn chosen(&self) -> Arc<Chosen> {
        self.chosen.borrow().clone()
    }

    pub(super) fn way(&self, chosen: &Chosen) -> &Way {
        // Every choice is one of the ways.
        &self.ways[chosen.way]
    }

    /// What carries this connection.
    pub(crate) fn transport_of(&self, warm: &Warm) -> &str {
        &self.way(&warm.by).transport
    }

    /// How long each way may take while there is another.
    pub(super) fn patience(&self) -> Option<Duration> {
        (self.ways.len() > 1).then_some(self.limits.transport)
    }

    /// What the rules say now; of what could not be had only what may be tried again, if it is to be `tried`, and else nothing.
    fn decide(&self, tried: bool) -> Chosen {
        let now = Instant::now();
        self.decide_among(|way| match tried {
            true => self.survey.may_try(&way.transport, now),
            false => self.survey.failure(&way.transport).is_none(),
        })
    }

    /// The way in force, or the next one if that is among those that have `failed`.
    pub(super) fn next_after(&self, failed: &[(String, String)]) -> Arc<Chosen> {
        let is_left = |way: &Way| failed.iter().all(|(transport, _)| **transport != *way.transport);
        let chosen = self.chosen();
        if is_left(self.way(&chosen)) { chosen } else { self.decide_among(is_left).into() }
    }

    /// What the rules say where ways are to be had that `can`.
    fn decide_among(&self, can: impl Fn(&Way) -> bool) -> Chosen {
        let now = Instant::now();
        let ways = self.ways.iter();
        let candidates: Vec<_> = ways.map(|way| Candidate { transport: &way.transport, can: can(way) }).collect();
        let base = &self.peer.profile;
        let situation = Situation {
            figures: self.survey.figures(now),
            capacity: base.capacity.or(base.rate),
            bbr: self.may_bbr.load(Ordering::Relaxed),
            control: base.congestion_control,
            candidates: &candidates,
        };
        let held = self.chosen().decision.as_ref().map(|decision| decision.wished.0);
        let decision = if self.peer.in_order { in_order(&situation) } else { choose(&situation, held) };
        let or = |configured, chosen| if configured == Buffer::Auto { chosen } else { configured };
        let streams = if base.streams > 1 { base.streams } else { decision.streams };
        let profile = Profile {
            streams,
            congestion_control: decision.control,
            send_buffer: or(base.send_buffer, decision.buffer),
            receive_buffer: or(base.receive_buffer, decision.buffer),
            ..(**base).clone()
        };
        // What was given for one connection is for all of a hop.
        let profile = if streams > base.streams { profile.divided() } else { profile };
        Chosen {
            way: decision.way,
            profile: profile.into(),
            note: self.note(&decision).map(Into::into),
            decision: Some(decision),
            since: now,
        }
    }

    /// What is to be said of a decision: what it is instead of, and otherwise its reason, unless that is the order.
    fn note(&self, decision: &Decision) -> Option<String> {
        let transport = &self.ways[decision.way].transport;
        let wished = match self.peer.in_order {
            true => &self.ways[..decision.way],
            false => &self.ways[decision.wished.1..=decision.wished.1],
        };
        let failed = wished.iter().filter(|wished| wished.transport != *transport).filter_map(|wished| {
            let why = self.survey.failure(&wished.transport)?;
            Some(format!("{} could not be had: {why}", wished.transport))
        });
        let failed: Vec<_> = failed.collect();
        match failed.is_empty() {
            true if self.peer.in_order => None,
            true => Some(format!("auto has {transport}: {}", decision.rule.why)),
            false => Some(format!("auto has {transport}, since {}", failed.join("; "))),
        }
    }

    /// Looks whether something else suits better by now, and goes over to it if it is to be had.
    pub(super) async fn reconsider(&self) {
        if !self.is_auto() {
            return;
        }
        // Each failure leaves one fewer to try.
        for _ in &self.ways {
            let (held, next) = (self.chosen(), self.decide(true));
            if next.way == held.way {
                return self.adopt(next);
            }
            let by = Arc::new(next);
            match self.try_by(&by).await {
                Ok(warm) => {
                    // As the figures are now, the new connection's among them.
                    let next = self.decide(true);
                    if next.way == by.way {
                        self.adopt(next);
                    }
                    return self.keep(warm);
                }
                Err(refusal) => self.failed_by(self.way(&by), &refusal),
            }
        }
    }

    /// Finds out whether the way in force still leads there, and how long that takes.
    pub(super) async fn prove(&self) {
        let by = self.chosen();
        match self.try_by(&by).await {
            // Those that wait keep their places, for the windows that they have.
            Ok(warm) => warm.stream.disarm(),
            Err(refusal) => self.fall_back(&by, &refusal),
        }
    }

    /// A greeted connection, made in the background within the time that a way has.
    async fn try_by(&self, by: &Arc<Chosen>) -> Result<Warm, Refusal> {
        let limit = self.limits.transport;
        match timeout(limit, self.greet(by, limit)).await {
            Ok(result) => result,
            Err(_) => Err(self.unanswered(limit)),
        }
    }

    pub(super) fn unanswered(&self, limit: Duration) -> Refusal {
        let reason = format!("{} gave no answer within {}", self.peer.name, phoebus_proto::units::Span(limit));
        Refusal::at(&self.peer.name, Code::TimedOut, reason)
    }

    /// The way `by` has failed: the next one is in force, if this one still was. Where none is left, the others have failed at
    /// some time, and may be there by now: they are tried before this one is.
    pub(super) fn fall_back(&self, by: &Arc<Chosen>, refusal: &Refusal) {
        if !self.is_auto() || self.ways.len() < 2 || self.chosen().way != by.way {
            return;
        }
        self.failed_by(self.way(by), refusal);
        if self.ways.iter().all(|way| self.survey.failure(&way.transport).is_some()) {
            self.survey.forgive_others(&self.way(by).transport);
        }
        self.adopt(self.decide(false));
        self.wanted.notify_one();
    }

    /// Each way has failed, one after the other: it is the peer that is not there, so that it is no way's fault, and the rules
    /// decide again.
    pub(super) fn nowhere(&self) {
        if self.is_auto() && self.ways.len() > 1 {
            debug!(peer = self.peer.name, "by no transport is there an answer");
            self.survey.forgive();
            self.adopt(self.decide(false));
            self.wanted.notify_one();
        }
    }

    fn failed_by(&self, way: &Way, refusal: &Refusal) {
        let pause = if refusal.code == Code::Refused { REFUSED_PAUSE } else { self.limits.retry };
        let pause = self.survey.fails(&way.transport, &refusal.reason, Instant::now(), pause);
        warn!(
            peer = self.peer.name,
            transport = &*way.transport,
            retry_s = pause.0.as_secs(),
            "cannot be had: {}",
            refusal.reason
        );
    }

    /// Puts `next` in force, and says so if that changes anything.
    fn adopt(&self, next: Chosen) {
        let held = self.chosen();
        let Some(decision) = &next.decision else { return };
        let words = |chosen: &Chosen, decision: &Decision| {
            let streams = chosen.profile.streams;
            let streams = if streams > 1 { format!(" × {streams}") } else { String::new() };
            format!("{} ({}){streams}", self.way(chosen).transport, decision.control)
        };
        let old = held.decision.as_ref().map(|decision| words(&held, decision));
        let new = words(&next, decision);
        let is_like = next.is_like(&held);
        if old.as_ref() != Some(&new) || held.decision.as_ref().is_some_and(|held| held.rule.name != decision.rule.name)
        {
            info!(
                peer = self.peer.name,
                rule = decision.rule.name,
                figures = %self.survey.figures(Instant::now()),
                "auto: {} → {new}, because {}",
                old.as_deref().unwrap_or("nothing"),
                decision.rule.why,
            );
        }
        let since = if is_like { held.since } else { next.since };
        self.chosen.send_replace(Arc::new(Chosen { since, ..next }));
        if !is_like {
            let chosen = self.chosen();
            let old: Vec<_> = lock(&self.idle).extract_if(.., |warm| !warm.by.is_like(&chosen)).collect();
            old.iter().for_each(|warm| warm.stream.disarm());
            self.wanted.notify_one();
        }
    }

    /// Notes what a connection of `transport` has counted since `mark`, of a session that this peer is an end of. One that waits
    /// in vain for acknowledgements gives reason to doubt the way.
    pub(crate) fn learn(&self, transport: &str, mark: &mut Mark, stats: &Stats) {
        if let Some(look) = mark.look(stats, Instant::now()) {
            self.survey.saw(look);
        }
        if stats.unheard() > self.limits.transport {
            self.doubt(transport);
        }
    }

    /// Somebody has reason to think that `transport` leads nowhere any more.
    pub(crate) fn doubt(&self, transport: &str) {
        if self.is_auto()
            && *self.way(&self.chosen()).transport == *transport
            && !self.doubted.swap(true, Ordering::Relaxed)
        {
            self.wanted.notify_one();
        }
    }

    /// Whether a look at the way in force is due: because somebody doubts it, or nothing was seen of it for long.
    pub(super) fn is_due(&self) -> bool {
        let old = || self.survey.age(Instant::now()).is_some_and(|age| age > self.limits.probe);
        self.is_auto() && (self.doubted.swap(false, Ordering::Relaxed) || old())
    }

    /// Whether this process may send by bbr can change while it runs.
    pub(super) fn look_at_host(&self) {
        if self.is_auto() {
            self.may_bbr.store(tcp::may_use(CongestionControl::Bbr), Ordering::Relaxed);
        }
    }

    /// What a session report says of the way of `warm`.
    pub(crate) fn note_of(&self, warm: &Warm) -> String {
        let unwatched = self.unwatched().filter(|_| !shows_death(self.transport_of(warm)));
        // The reason may have changed since the connection was made.
        let now = self.chosen();
        let by = if now.is_like(&warm.by) { &now } else { &warm.by };
        let notes = [warm.stream.note(), unwatched, by.note.as_deref()];
        notes.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(super) fn choice(&self) -> Option<ChoiceStatus> {
        let chosen = self.chosen();
        let decision = chosen.decision.as_ref()?;
        let failure = |way: &Way| Some((way.transport.to_string(), self.survey.failure(&way.transport)?));
        Some(ChoiceStatus {
            rule: decision.rule.name.to_owned(),
            because: decision.rule.why.to_owned(),
            congestion_control: decision.control.to_string(),
            streams: chosen.profile.streams,
            since_s: chosen.since.elapsed().as_secs_f64(),
            failed: self.ways.iter().filter_map(failure).collect(),
        })
    }

    /// The first choice, before anything else.
    pub(super) fn begin(&self) {
        if self.is_auto() {
            self.look_at_host();
            self.adopt(self.decide(true));
        }
    }
}
