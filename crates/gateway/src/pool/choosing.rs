//! The transports to a peer, and which of them new connections use (P15). That is the configured one; or with
//! `transport = "auto"`, the one that the rules choose from measurements (`crate::choose`); or for an agent, the first
//! one that is available. A gateway finds out by trying: a transport on which the peer does not listen is unavailable.
//!
//! The gateway switches to another transport in the background, and only after it has greeted the peer on such a
//! connection, so that no session waits. When the current transport fails, the session that notices tries the next one
//! at once.

use super::selection::Selection;
use super::{Pool, PooledConnection, lock};
use crate::choose::{Candidate, Decision, Situation, choose, in_order};
use crate::config::AUTO;
use crate::path_metrics::CounterSnapshot;
use crate::refusal::Refusal;
use crate::transports::{TransportOption, shows_death};
use phoebus_net::{Buffer, CongestionControl, Profile, Stats, tcp};
use phoebus_proto::session::Code;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tracing::{debug, info, warn};

/// First pause before a transport whose connection was refused is tried again. A host that refuses is up, and its
/// gateway may be about to listen.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

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
    /// How long this choice has been in force.
    pub since_s: f64,
    /// Transports that were unavailable, and why.
    pub failed: Vec<(String, String)>,
}

impl Pool {
    pub(super) fn is_auto(&self) -> bool {
        self.peer.transport == AUTO
    }

    /// The settings of new connections.
    pub(super) fn chosen(&self) -> Arc<Selection> {
        self.chosen.borrow().clone()
    }

    pub(super) fn transport_option(&self, chosen: &Selection) -> &TransportOption {
        // Every selection indexes `transports`.
        &self.transports[chosen.transport_index]
    }

    /// The transport of this connection.
    pub(crate) fn transport_of(&self, connection: &PooledConnection) -> &str {
        &self.transport_option(&connection.selection).transport
    }

    /// How long each transport may take while there is another.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        (self.transports.len() > 1).then_some(self.limits.transport)
    }

    /// Applies the rules now. Of the transports that have failed, it considers those whose retry is due if the result
    /// is to be `tried`, and else none.
    fn decide(&self, tried: bool) -> Selection {
        let now = Instant::now();
        self.decide_among(|option| match tried {
            true => self.metrics.may_try(&option.transport, now),
            false => self.metrics.failure(&option.transport).is_none(),
        })
    }

    /// The current selection, or the next one if its transport is among those that have `failed`.
    pub(super) fn selection_after(&self, failed: &[(String, String)]) -> Arc<Selection> {
        let is_left = |option: &TransportOption| failed.iter().all(|(transport, _)| **transport != *option.transport);
        let chosen = self.chosen();
        if is_left(self.transport_option(&chosen)) { chosen } else { self.decide_among(is_left).into() }
    }

    /// Applies the rules where the transports that satisfy `can` are available.
    fn decide_among(&self, can: impl Fn(&TransportOption) -> bool) -> Selection {
        let now = Instant::now();
        let transports = self.transports.iter();
        let candidates: Vec<_> =
            transports.map(|option| Candidate { transport: &option.transport, can: can(option) }).collect();
        let base = &self.peer.profile;
        let situation = Situation {
            figures: self.metrics.figures(now),
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
        // The profile's settings for one connection are divided among all connections of the hop.
        let profile = if streams > base.streams { profile.divided() } else { profile };
        Selection {
            transport_index: decision.candidate,
            profile: profile.into(),
            note: self.note(&decision).map(Into::into),
            decision: Some(decision),
            since: now,
        }
    }

    /// The note about a decision: which transports it replaces and why, or else its reason, unless that is just the
    /// order.
    fn note(&self, decision: &Decision) -> Option<String> {
        let transport = &self.transports[decision.candidate].transport;
        let wished = match self.peer.in_order {
            true => &self.transports[..decision.candidate],
            false => &self.transports[decision.wished.1..=decision.wished.1],
        };
        let failed = wished.iter().filter(|wished| wished.transport != *transport).filter_map(|wished| {
            let why = self.metrics.failure(&wished.transport)?;
            Some(format!("{} was not available: {why}", wished.transport))
        });
        let failed: Vec<_> = failed.collect();
        match failed.is_empty() {
            true if self.peer.in_order => None,
            true => Some(format!("auto has {transport}: {}", decision.rule.why)),
            false => Some(format!("auto has {transport}, since {}", failed.join("; "))),
        }
    }

    /// Checks whether another transport suits better by now, and switches to it if it is available.
    pub(super) async fn reconsider(&self) {
        if !self.is_auto() {
            return;
        }
        // Each failure leaves one transport fewer to try.
        for _ in &self.transports {
            let (held, next) = (self.chosen(), self.decide(true));
            if next.transport_index == held.transport_index {
                return self.adopt(next);
            }
            let selection = Arc::new(next);
            match self.greet_in_background(&selection).await {
                Ok(connection) => {
                    // Decide again, with figures that include the new connection's.
                    let next = self.decide(true);
                    if next.transport_index == selection.transport_index {
                        self.adopt(next);
                    }
                    return self.keep(connection);
                }
                Err(refusal) => self.record_failure(self.transport_option(&selection), &refusal),
            }
        }
    }

    /// Checks whether the current transport still reaches the peer, and measures its round trip.
    pub(super) async fn prove(&self) {
        let selection = self.chosen();
        match self.greet_in_background(&selection).await {
            // The idle connections stay, for their congestion windows.
            Ok(connection) => connection.stream.disarm(),
            Err(refusal) => self.fall_back(&selection, &refusal),
        }
    }

    /// Makes a greeted connection in the background, within the time limit of a transport.
    async fn greet_in_background(&self, selection: &Arc<Selection>) -> Result<PooledConnection, Refusal> {
        let limit = self.limits.transport;
        match timeout(limit, self.greet(selection, limit)).await {
            Ok(result) => result,
            Err(_) => Err(self.unanswered(limit)),
        }
    }

    pub(super) fn unanswered(&self, limit: Duration) -> Refusal {
        let reason = format!("{} gave no answer within {}", self.peer.name, phoebus_proto::units::Span(limit));
        Refusal::at(&self.peer.name, Code::TimedOut, reason)
    }

    /// Handles the failure of transport `selection`: switches to the next one, if `selection` was still in use. If none is left, the
    /// others have failed earlier and may work again by now, so they are tried before `selection` is.
    pub(super) fn fall_back(&self, selection: &Arc<Selection>, refusal: &Refusal) {
        if !self.is_auto() || self.transports.len() < 2 || self.chosen().transport_index != selection.transport_index {
            return;
        }
        self.record_failure(self.transport_option(selection), refusal);
        if self.transports.iter().all(|option| self.metrics.failure(&option.transport).is_some()) {
            self.metrics.clear_other_failures(&self.transport_option(selection).transport);
        }
        self.adopt(self.decide(false));
        self.wanted.notify_one();
    }

    /// Handles the failure of all transports in a row: the peer is down, and no transport is to blame, so the rules
    /// decide again.
    pub(super) fn nowhere(&self) {
        if self.is_auto() && self.transports.len() > 1 {
            debug!(peer = self.peer.name, "the peer answers over no transport");
            self.metrics.clear_failures();
            self.adopt(self.decide(false));
            self.wanted.notify_one();
        }
    }

    fn record_failure(&self, option: &TransportOption, refusal: &Refusal) {
        let pause = if refusal.code == Code::Refused { REFUSED_PAUSE } else { self.limits.retry };
        let pause = self.metrics.record_failure(&option.transport, &refusal.reason, Instant::now(), pause);
        warn!(
            peer = self.peer.name,
            transport = &*option.transport,
            retry_s = pause.0.as_secs(),
            "the transport is not available: {}",
            refusal.reason
        );
    }

    /// Puts `next` in force, and logs any change.
    fn adopt(&self, next: Selection) {
        let held = self.chosen();
        let Some(decision) = &next.decision else { return };
        let words = |chosen: &Selection, decision: &Decision| {
            let streams = chosen.profile.streams;
            let streams = if streams > 1 { format!(" × {streams}") } else { String::new() };
            format!("{} ({}){streams}", self.transport_option(chosen).transport, decision.control)
        };
        let old = held.decision.as_ref().map(|decision| words(&held, decision));
        let new = words(&next, decision);
        let is_like = next.is_like(&held);
        if old.as_ref() != Some(&new) || held.decision.as_ref().is_some_and(|held| held.rule.name != decision.rule.name)
        {
            info!(
                peer = self.peer.name,
                rule = decision.rule.name,
                figures = %self.metrics.figures(Instant::now()),
                "auto: {} → {new}, because {}",
                old.as_deref().unwrap_or("nothing"),
                decision.rule.why,
            );
        }
        let since = if is_like { held.since } else { next.since };
        self.chosen.send_replace(Arc::new(Selection { since, ..next }));
        if !is_like {
            let chosen = self.chosen();
            let old: Vec<_> =
                lock(&self.idle).extract_if(.., |connection| !connection.selection.is_like(&chosen)).collect();
            old.iter().for_each(|connection| connection.stream.disarm());
            self.wanted.notify_one();
        }
    }

    /// Records what a connection of `transport` has counted since `mark` for a session with this peer. If it waits in
    /// vain for acknowledgements, that casts doubt on the transport.
    pub(crate) fn learn(&self, transport: &str, mark: &mut CounterSnapshot, stats: &Stats) {
        if let Some(look) = mark.look(stats, Instant::now()) {
            self.metrics.record(look);
        }
        if stats.unheard() > self.limits.transport {
            self.doubt(transport);
        }
    }

    /// Reports doubt that `transport` still reaches the peer.
    pub(crate) fn doubt(&self, transport: &str) {
        if self.is_auto()
            && *self.transport_option(&self.chosen()).transport == *transport
            && !self.doubted.swap(true, Ordering::Relaxed)
        {
            self.wanted.notify_one();
        }
    }

    /// Whether a check of the current transport is due, because it was doubted or nothing was measured for long.
    pub(super) fn is_due(&self) -> bool {
        let old = || self.metrics.age(Instant::now()).is_some_and(|age| age > self.limits.probe);
        self.is_auto() && (self.doubted.swap(false, Ordering::Relaxed) || old())
    }

    /// Checks whether this process may use bbr, which can change while it runs.
    pub(super) fn check_bbr(&self) {
        if self.is_auto() {
            self.may_bbr.store(tcp::may_use(CongestionControl::Bbr), Ordering::Relaxed);
        }
    }

    /// What a session report says about the transport of `connection`.
    pub(crate) fn note_of(&self, connection: &PooledConnection) -> String {
        let unwatched = self.unwatched().filter(|_| !shows_death(self.transport_of(connection)));
        // The reason may have changed since the connection was made.
        let now = self.chosen();
        let selection = if now.is_like(&connection.selection) { &now } else { &connection.selection };
        let notes = [connection.stream.note(), unwatched, selection.note.as_deref()];
        notes.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(super) fn choice(&self) -> Option<ChoiceStatus> {
        let chosen = self.chosen();
        let decision = chosen.decision.as_ref()?;
        let failure =
            |option: &TransportOption| Some((option.transport.to_string(), self.metrics.failure(&option.transport)?));
        Some(ChoiceStatus {
            rule: decision.rule.name.to_owned(),
            because: decision.rule.why.to_owned(),
            congestion_control: decision.control.to_string(),
            streams: chosen.profile.streams,
            since_s: chosen.since.elapsed().as_secs_f64(),
            failed: self.transports.iter().filter_map(failure).collect(),
        })
    }

    /// Makes the first choice.
    pub(super) fn begin(&self) {
        if self.is_auto() {
            self.check_bbr();
            self.adopt(self.decide(true));
        }
    }
}
