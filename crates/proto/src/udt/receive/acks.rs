//! Timing and form of acknowledgements.
//!
//! A full acknowledgement is sent every [`SYN`], and sooner after a short packet, which is likely the end of a burst of
//! data. Light acknowledgements are sent every 64 packets. An acknowledgement is repeated until an ACK2 confirms it.
//! While a packet is missing, the arrival of later packets also triggers acknowledgements: otherwise the sender would
//! learn nothing about a round trip's worth of packets.

use crate::control::Acknowledgements;
use crate::udt::SYN;
use crate::udt::rtt::Rtt;
use crate::udt::seq::Seq;
use std::collections::VecDeque;
use std::time::Duration;

/// The state of acknowledgements.
#[derive(Debug)]
pub(super) struct Acks {
    /// When the next full acknowledgement is due.
    due: Option<Duration>,
    /// When the last full acknowledgement was sent.
    last: Duration,
    /// When the last acknowledgement with rates was sent.
    last_rates: Option<Duration>,
    /// Packets since the last full acknowledgement.
    packets: u32,
    /// 1 plus the number of light acknowledgements since the last full one.
    lights: u32,
    light_due: bool,
    /// Whether to send a full acknowledgement at once, even without news: to advertise room in the buffer, or to test
    /// by its ACK2 that the peer is alive.
    requested: bool,
    number: u32,
    /// Sequence number of the last full acknowledgement.
    sent: Seq,
    /// Sequence number of the last acknowledgement of any form.
    sent_any: Seq,
    /// The number after the highest packet received when the last full acknowledgement was sent.
    sent_end: Seq,
    /// Sequence number of the last acknowledgement confirmed by an ACK2.
    confirmed: Seq,
    /// Number, sequence number and time of full acknowledgements that await an ACK2. The numbers are consecutive.
    history: VecDeque<(u32, Seq, Duration)>,
}

/// Form of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// 4 bytes.
    Light,
    /// 16 bytes, or 28 with rates.
    Full {
        /// The number that the ACK2 will repeat.
        number: u32,
        /// Whether to include rates.
        rates: bool,
    },
}

/// When a receiver acknowledges packets that arrive in order.
pub(in crate::udt) const ACKNOWLEDGEMENTS: Acknowledgements = Acknowledgements { interval: SYN, packets: 64 };

impl Acks {
    /// Number of packets between light acknowledgements.
    const LIGHT_EVERY: u32 = ACKNOWLEDGEMENTS.packets;
    /// Most acknowledgements that are remembered for an ACK2.
    const HISTORY_MAX: usize = 1024;
    /// Shortest interval of acknowledgements that short packets cause.
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
            requested: false,
            number: 0,
            sent: first,
            sent_any: first,
            sent_end: first,
            confirmed: first,
            history: VecDeque::new(),
        }
    }

    /// Records the arrival of a packet.
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

    /// Requests a full acknowledgement at once.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// When the next acknowledgement is due; `Duration::ZERO` for at once.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.light_due || self.requested { Some(Duration::ZERO) } else { self.due }
    }

    /// The acknowledgement to send now. Everything before `next` has arrived; `end` is the number after the highest
    /// packet that has arrived.
    pub(super) fn poll(&mut self, now: Duration, next: Seq, end: Seq, rtt: &Rtt) -> Option<Form> {
        if self.requested || self.due.is_some_and(|due| due <= now) {
            let repeat_at = self.last + repeat_after(rtt);
            let is_news = self.requested || end != self.sent_end;
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

    /// Processes an ACK2. Returns the round-trip time if it answers a remembered acknowledgement.
    pub(super) fn confirmed(&mut self, now: Duration, number: u32) -> Option<Duration> {
        let first = self.history.front()?.0;
        let index = number.wrapping_sub(first) & Self::NUMBER_MAX;
        let (_, seq, sent_at) = *self.history.get(index as usize)?;
        // The ACK2 of earlier acknowledgements is not needed any more.
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
        (self.packets, self.lights, self.light_due, self.requested) = (0, 1, false, false);
        self.due = Some(now + repeat_after(rtt));
        Form::Full { number: self.number, rates }
    }
}

/// Interval after which an unconfirmed acknowledgement is repeated.
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

    /// A round-trip time of 40 ms; answers are overdue after 120 ms.
    fn rtt() -> Rtt {
        let mut rtt = Rtt::new();
        rtt.measured(ms(40));
        rtt
    }

    /// Polls without missing packets.
    fn poll(acks: &mut Acks, now: Duration, next: Seq) -> Option<Form> {
        acks.poll(now, next, next, &rtt())
    }

    #[test]
    fn full_acks_are_sent_every_syn_and_rates_no_more_often() {
        let mut acks = Acks::new(ms(0), FIRST);
        assert_eq!(acks.due(), None);
        acks.arrived(ms(2), false);
        assert_eq!((acks.due(), poll(&mut acks, ms(2), FIRST.plus(1))), (Some(ms(10)), None));
        assert_eq!(poll(&mut acks, ms(10), FIRST.plus(1)), Some(Form::Full { number: 1, rates: true }));
        acks.arrived(ms(13), true);
        assert_eq!(poll(&mut acks, ms(13), FIRST.plus(2)), Some(Form::Full { number: 2, rates: false }));
        acks.arrived(ms(13), true);
        assert_eq!(acks.due(), Some(ms(14)), "a flood of short packets causes few acknowledgements");
    }

    #[test]
    fn ack_without_news_is_repeated_until_ack2_confirms_it() {
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
        acks.request();
        assert_eq!(poll(&mut acks, ms(251), FIRST.plus(1)), Some(Form::Full { number: 3, rates: true }));
    }

    #[test]
    fn light_acks_are_sent_every_64_packets() {
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
    fn packets_after_a_gap_trigger_an_ack_every_syn() {
        let mut acks = Acks::new(ms(0), FIRST);
        let mut full = 0;
        for n in 1..=50 {
            acks.arrived(ms(n), false);
            full += u32::from(acks.poll(ms(n), FIRST, FIRST.plus(1 + n as u32), &rtt()).is_some());
        }
        assert_eq!(full, 5);
        acks.arrived(ms(60), false);
        assert_eq!(acks.poll(ms(60), FIRST, FIRST.plus(51), &rtt()), None, "duplicates are not news");
    }
}
