//! When to acknowledge, and how much to say.
//!
//! A full acknowledgement goes every [`SYN`], sooner after a short packet, which is likely the end of something. Light ones
//! go every 64 packets. One that says nothing new is repeated until an ACK2 shows that it has arrived. Behind a missing packet
//! it is news that others arrive: without it, the sender would know nothing of a round trip's worth.

use crate::udt::SYN;
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::collections::VecDeque;
use std::time::Duration;

/// The state of acknowledgements.
#[derive(Debug)]
pub(super) struct Acks {
    /// When a full one is due.
    due: Option<Duration>,
    /// When the last full one went, and the last with rates.
    last: Duration,
    last_rates: Option<Duration>,
    /// Packets and light acknowledgements since the last full one.
    packets: u32,
    lights: u32,
    light_due: bool,
    /// A full one is wanted at once, whatever it says: the buffer has room to tell of, or an ACK2 is to show that the peer is
    /// there.
    wanted: bool,
    number: u32,
    /// What the last full one, and the last of any kind, acknowledged.
    sent: Seq,
    sent_any: Seq,
    /// The end of what had arrived when the last full one was sent.
    sent_end: Seq,
    /// What the peer knows to be acknowledged.
    confirmed: Seq,
    /// Full acknowledgements that await an ACK2: their numbers follow each other.
    history: VecDeque<(u32, Seq, Duration)>,
}

/// Which acknowledgement to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Of 4 bytes.
    Light,
    /// Of 16 bytes, or with rates of 24.
    Full {
        /// The number that an ACK2 will have.
        number: u32,
        /// Whether to send rates.
        rates: bool,
    },
}

impl Acks {
    /// Packets between light acknowledgements.
    const LIGHT_EVERY: u32 = 64;
    /// Acknowledgements that are remembered for an ACK2.
    const HISTORY_MAX: usize = 1024;
    /// Short packets cause at most one acknowledgement in this time.
    const SHORT_INTERVAL: Duration = Duration::from_millis(1);
    /// The largest number of an acknowledgement.
    const NUMBER_MAX: u32 = (1 << 31) - 1;

    pub(super) fn new(now: Duration, first: Seq) -> Self {
        Self {
            due: None,
            last: now,
            last_rates: None,
            packets: 0,
            lights: 1,
            light_due: false,
            wanted: false,
            number: 0,
            sent: first,
            sent_any: first,
            sent_end: first,
            confirmed: first,
            history: VecDeque::new(),
        }
    }

    /// A packet has arrived.
    pub(super) fn arrived(&mut self, now: Duration, short: bool) {
        self.packets += 1;
        if self.packets >= Self::LIGHT_EVERY * self.lights {
            self.lights += 1;
            self.light_due = true;
        }
        let interval = if short { Self::SHORT_INTERVAL } else { SYN };
        let due = now.max(self.last + interval);
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Asks for a full one at once.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// When to ask for an acknowledgement; `Duration::ZERO` for at once.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.light_due || self.wanted { Some(Duration::ZERO) } else { self.due }
    }

    /// The acknowledgement to send now, for everything before `next`; of what comes after it, the last has arrived before
    /// `end`.
    pub(super) fn poll(&mut self, now: Duration, next: Seq, end: Seq, rtt: &Rtt) -> Option<Form> {
        if self.wanted || self.due.is_some_and(|due| due <= now) {
            let repeat_at = self.last + repeat_after(rtt);
            let is_news = self.wanted || end != self.sent_end;
            if next == self.sent && !is_news && now < repeat_at {
                self.due = (self.confirmed != self.sent).then_some(repeat_at);
            } else if next == self.confirmed && !is_news {
                self.due = None;
            } else {
                return Some(self.full(now, next, end, rtt));
            }
        }
        (std::mem::take(&mut self.light_due) && next != self.sent_any).then(|| {
            self.sent_any = next;
            Form::Light
        })
    }

    /// An ACK2 has come: returns the round-trip time if it answers one that is remembered.
    pub(super) fn confirmed(&mut self, now: Duration, number: u32) -> Option<Duration> {
        let first = self.history.front()?.0;
        let index = number.wrapping_sub(first) & Self::NUMBER_MAX;
        let (_, seq, sent_at) = *self.history.get(index as usize)?;
        // Answers to earlier ones are not waited for.
        self.history.drain(..=index as usize);
        if self.confirmed.is_before(seq) {
            self.confirmed = seq;
        }
        Some(now.saturating_sub(sent_at))
    }

    fn full(&mut self, now: Duration, next: Seq, end: Seq, rtt: &Rtt) -> Form {
        let rates = self.last_rates.is_none_or(|last| now >= last + SYN);
        if rates {
            self.last_rates = Some(now);
        }
        self.number = (self.number + 1) & Self::NUMBER_MAX;
        self.history.push_back((self.number, next, now));
        if self.history.len() > Self::HISTORY_MAX {
            self.history.pop_front();
        }
        (self.sent, self.sent_any, self.sent_end, self.last) = (next, next, end, now);
        (self.packets, self.lights, self.light_due, self.wanted) = (0, 1, false, false);
        self.due = Some(now + repeat_after(rtt));
        Form::Full { number: self.number, rates }
    }
}

/// After how long one that says nothing new is repeated.
fn repeat_after(rtt: &Rtt) -> Duration {
    rtt.overdue().max(SYN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Seq = Seq::new(100);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A round-trip time of 40 ms, overdue after 120 ms.
    fn rtt() -> Rtt {
        let mut rtt = Rtt::new();
        rtt.measured(ms(40));
        rtt
    }

    /// Polls when nothing is missing.
    fn poll(acks: &mut Acks, now: Duration, next: Seq) -> Option<Form> {
        acks.poll(now, next, next, &rtt())
    }

    #[test]
    fn full_ones_go_every_syn_and_rates_no_more_often() {
        let mut acks = Acks::new(ms(0), FIRST);
        assert_eq!(acks.due(), None);
        acks.arrived(ms(2), false);
        assert_eq!((acks.due(), poll(&mut acks, ms(2), FIRST.plus(1))), (Some(ms(10)), None));
        assert_eq!(poll(&mut acks, ms(10), FIRST.plus(1)), Some(Form::Full { number: 1, rates: true }));
        acks.arrived(ms(13), true);
        assert_eq!(poll(&mut acks, ms(13), FIRST.plus(2)), Some(Form::Full { number: 2, rates: false }));
        acks.arrived(ms(13), true);
        assert_eq!(acks.due(), Some(ms(14)), "a flood of short packets causes few");
    }

    #[test]
    fn one_that_says_nothing_new_repeats_until_it_is_confirmed() {
        let mut acks = Acks::new(ms(0), FIRST);
        acks.arrived(ms(10), false);
        assert!(poll(&mut acks, ms(10), FIRST.plus(1)).is_some());
        acks.arrived(ms(20), false);
        assert_eq!(poll(&mut acks, ms(20), FIRST.plus(1)), None);
        assert_eq!(acks.due(), Some(ms(130)));
        assert_eq!(poll(&mut acks, ms(130), FIRST.plus(1)), Some(Form::Full { number: 2, rates: true }));
        assert_eq!(acks.confirmed(ms(175), 2), Some(ms(45)));
        assert_eq!(acks.confirmed(ms(175), 2), None);
        assert_eq!(acks.confirmed(ms(175), 1), None, "numbers before a confirmed one are forgotten");
        assert_eq!((poll(&mut acks, ms(250), FIRST.plus(1)), acks.due()), (None, None));
        acks.want();
        assert_eq!(poll(&mut acks, ms(251), FIRST.plus(1)), Some(Form::Full { number: 3, rates: true }));
    }

    #[test]
    fn light_ones_go_every_64_packets() {
        let mut acks = Acks::new(ms(0), FIRST);
        let mut lights = vec![];
        for n in 1..=200 {
            acks.arrived(ms(1), false);
            if poll(&mut acks, ms(1), FIRST.plus(n)) == Some(Form::Light) {
                lights.push(n);
            }
        }
        assert_eq!(lights, [64, 128, 192]);
    }

    #[test]
    fn behind_a_missing_packet_those_that_arrive_are_news_every_syn() {
        let mut acks = Acks::new(ms(0), FIRST);
        let mut full = 0;
        for n in 1..=50 {
            acks.arrived(ms(n), false);
            full += u32::from(acks.poll(ms(n), FIRST, FIRST.plus(1 + n as u32), &rtt()).is_some());
        }
        assert_eq!(full, 5);
        acks.arrived(ms(60), false);
        assert_eq!(acks.poll(ms(60), FIRST, FIRST.plus(51), &rtt()), None, "but not those that come twice");
    }
}
