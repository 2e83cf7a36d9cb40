//! The check of the path for datagrams, before any bytes of an object move (`docs/protocol/object.md` §4).
//!
//! The end that has made the control connection sends checks until one is answered. So firewalls and address translators see a
//! flow from inside, the other end learns where datagrams have to go, and a path that drops them is known before anything was
//! read from a disk. Checks and answers are numbered by themselves, and have keys of their own.

use super::packet::{Header, Kind, PacketNumber};
use std::time::Duration;

/// Time to the second check.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time between two checks. Each may be lost.
const INTERVAL_MAX: Duration = Duration::from_millis(500);

/// The end that checks.
#[derive(Debug)]
pub struct Checking {
    transfer: u32,
    /// Number of the next check.
    next: u64,
    /// When it is due. `None` once a check was answered.
    due: Option<Duration>,
    interval: Duration,
    /// When the path counts as closed.
    until: Duration,
}

impl Checking {
    /// Begins. Without an answer `within` this time, the path [is closed](Self::is_closed).
    pub fn new(now: Duration, transfer: u32, within: Duration) -> Self {
        Self { transfer, next: 0, due: Some(now), interval: FIRST_INTERVAL, until: now.saturating_add(within) }
    }

    /// Begins anew with the next check: the peer did not know of the transfer before. Answers to earlier ones count.
    pub fn restart(&mut self, now: Duration, within: Duration) {
        self.until = now.saturating_add(within);
        self.interval = FIRST_INTERVAL;
        self.due = self.due.map(|due| due.min(now + FIRST_INTERVAL));
    }

    /// The header of a check that is due.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Header> {
        self.due.filter(|due| *due <= now)?;
        self.due = Some(now + self.interval);
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        let transmission = self.next;
        self.next += 1;
        Some(Header { kind: Kind::Check, transfer: self.transfer, transmission, packet: PacketNumber::default() })
    }

    /// When there is something to do.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.due.map(|due| due.min(self.until))
    }

    /// Whether a datagram may be an answer to a check of this end.
    pub fn expects(&self, header: &Header) -> bool {
        header.kind == Kind::CheckAnswer && header.transfer == self.transfer && header.transmission < self.next
    }

    /// Records an intact datagram of the peer's: datagrams go both ways, since it sends none before it was checked.
    pub fn heard(&mut self) {
        self.due = None;
    }

    /// Whether datagrams have gone both ways.
    pub fn is_answered(&self) -> bool {
        self.due.is_none()
    }

    /// Whether no check was answered in time.
    pub fn is_closed(&self, now: Duration) -> bool {
        self.due.is_some() && now >= self.until
    }
}

/// The end that answers.
#[derive(Debug)]
pub struct Answering {
    transfer: u32,
    /// Checks below this number were answered, or overtaken.
    end: u64,
}

impl Answering {
    /// No check has come.
    pub fn new(transfer: u32) -> Self {
        Self { transfer, end: 0 }
    }

    /// Whether a datagram may be a check that has not come before.
    pub fn expects(&self, header: &Header) -> bool {
        header.kind == Kind::Check && header.transfer == self.transfer && header.transmission >= self.end
    }

    /// The header of the answer to an intact check.
    pub fn answer(&mut self, check: &Header) -> Header {
        self.end = check.transmission + 1;
        Header { kind: Kind::CheckAnswer, ..*check }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn checks_go_on_until_one_is_answered_or_the_time_is_over() {
        let mut checking = Checking::new(7 * MS, 3, 3000 * MS);
        let mut sent = Vec::new();
        let mut now = 7 * MS;
        while !checking.is_closed(now) {
            sent.extend(checking.poll_transmit(now).map(|header| (now - 7 * MS, header.transmission)));
            now = checking.poll_timeout().unwrap();
        }
        let times = [0, 100, 300, 700, 1200, 1700, 2200, 2700].map(|ms| ms * MS);
        assert_eq!(sent, times.into_iter().zip(0..).collect::<Vec<_>>());
        assert!(!checking.is_answered());
        // Only now has the peer agreed.
        checking.restart(now, 1000 * MS);
        assert!(!checking.is_closed(now));
        assert_eq!(checking.poll_timeout(), Some(now + 100 * MS));
        assert!(checking.poll_transmit(now + 100 * MS).is_some());
        assert!(checking.is_closed(now + 1000 * MS));
        checking.heard();
        assert!(checking.is_answered() && !checking.is_closed(now) && checking.poll_timeout().is_none());
        assert_eq!(checking.poll_transmit(now), None);
    }

    #[test]
    fn each_check_is_answered_once_and_only_answers_count() {
        let (mut checking, mut answering) = (Checking::new(MS, 3, 3000 * MS), Answering::new(3));
        let first = checking.poll_transmit(MS).unwrap();
        let second = checking.poll_transmit(200 * MS).unwrap();
        assert!(answering.expects(&second));
        let answer = answering.answer(&second);
        assert!(!answering.expects(&second) && !answering.expects(&first), "replayed, or overtaken");
        assert!(checking.expects(&answer));
        assert!(!checking.expects(&second), "reflected");
        assert!(!checking.expects(&Header { transmission: 2, ..answer }), "never asked");
        assert!(!checking.expects(&Header { transfer: 4, ..answer }) && !answering.expects(&answer));
    }
}
