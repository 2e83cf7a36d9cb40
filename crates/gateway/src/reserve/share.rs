//! Divides a rate among connections (S17) by max-min fairness: each gets what it needs, or an equal share where all
//! need more than there is; what one does not need goes to the others. Pure: bytes and times are arguments.

use phoebus_net::Stats;
use std::time::Duration;

/// What a connection claims, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Claim {
    /// What it would use now; infinity if it uses all that it gets.
    pub(super) wants: f64,
    /// The bandwidth promised to it, which it never exceeds.
    pub(super) booked: Option<f64>,
}

/// The fraction of a rate reserved for connections that currently need nothing, so that they can start.
const KEPT: f64 = 0.01;

/// The rate, in bits per second, at which a connection can start: a packet in a quarter of a second. A smaller part of
/// a low rate would delay its first packets by seconds.
const START: f64 = 50_000.0;

/// The fraction of a low rate that is reserved at most, unless it is promised.
const MOST_KEPT: f64 = 0.25;

/// The shares of `claims` in `rate`. Their sum never exceeds the rate, and equals it unless the connections were all
/// promised less.
pub(super) fn divide(rate: f64, claims: &[Claim]) -> Vec<f64> {
    let count = claims.len().max(1) as f64;
    let most = |claim: &Claim| claim.booked.unwrap_or(f64::INFINITY);
    let promised = |claim: &Claim| claim.booked.map_or(0.0, |booked| booked.min(claim.wants));
    let promises: f64 = claims.iter().map(promised).sum();
    let kept = (rate * KEPT).max((START * count).min(rate * MOST_KEPT).min(rate - promises)) / count;
    let mut shares: Vec<f64> = claims.iter().map(|claim| most(claim).min(kept)).collect();
    let mut left = rate - shares.iter().sum::<f64>();
    // Promises first, then the needs of the others; the rest goes to all that may have more.
    let needed = |claim: &Claim| most(claim).min(claim.wants);
    for upto in [&promised as &dyn Fn(&Claim) -> f64, &needed, &most] {
        let limits: Vec<f64> = claims.iter().map(upto).collect();
        left = fill(left, &limits, &mut shares);
    }
    shares
}

/// Raises the `shares` below their limits, the closest to its limit first, by `left` in total. Returns what is left
/// over.
fn fill(mut left: f64, limits: &[f64], shares: &mut [f64]) -> f64 {
    let mut open: Vec<usize> = (0..shares.len()).filter(|i| shares[*i] < limits[*i]).collect();
    open.sort_by(|a, b| (limits[*a] - shares[*a]).total_cmp(&(limits[*b] - shares[*b])));
    let mut count = open.len();
    for i in open {
        let more = (left / count as f64).min(limits[i] - shares[i]).max(0.0);
        shares[i] += more;
        left -= more;
        count -= 1;
    }
    left.max(0.0)
}

/// What a connection has done so far, by its counters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Bytes sent, without headers.
    pub(super) sent: u64,
    /// For how long its receiver held it back.
    pub(super) receiver_limited: Duration,
    /// More bytes wait to be sent, and the network would carry them.
    pub(super) waits: bool,
}

impl Progress {
    pub(super) fn of(stats: &Stats) -> Self {
        // Some transports do not tell their windows.
        let is_window_full = stats.congestion_window > 0 && stats.in_flight >= stats.congestion_window;
        Self {
            sent: stats.bytes_sent,
            receiver_limited: Duration::from_micros(stats.receiver_limited_us),
            waits: (stats.unsent > 0 || stats.held_back > 0) && !is_window_full,
        }
    }
}

/// Estimates what a connection needs from what it sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    /// At the last check.
    before: Option<Progress>,
    /// Recent use, in bits per second.
    used: f64,
    wants: f64,
    /// How long it has sent nothing.
    still: Duration,
}

impl Meter {
    /// A connection that uses this fraction of its share would use more.
    const HUNGRY: f64 = 0.8;
    /// The factor by which a need may grow between checks: slow start doubles in a round trip.
    const GROWTH: f64 = 2.0;
    /// The fraction of a need that remains from check to check while nothing is sent, so that a bursty sender keeps its
    /// share.
    const MEMORY: f64 = 0.8;
    /// A share, in bits per second, at which packets are more than a check apart.
    const LOW: f64 = 1e6;
    /// After this time without a packet, bytes that wait are not waiting for their share: the network is gone.
    const STUCK_AFTER: Duration = Duration::from_secs(5);
    /// At the lowest shares, packets are further apart: this number of bits is two packets of Ethernet.
    const STUCK_BITS: f64 = 24e3;

    /// For a connection that may be about to send.
    pub(super) fn new() -> Self {
        Self { before: None, used: 0.0, wants: f64::INFINITY, still: Duration::ZERO }
    }

    pub(super) fn wants(&self) -> f64 {
        self.wants
    }

    /// Records the progress until now, `passed` after the last check, under `share`.
    pub(super) fn look(&mut self, now: Progress, passed: Duration, share: f64) {
        let before = self.before.replace(now);
        let Some(before) = before.filter(|_| !passed.is_zero()) else { return };
        let rate = now.sent.saturating_sub(before.sent) as f64 * 8.0 / passed.as_secs_f64();
        self.still = if now.sent == before.sent { self.still.saturating_add(passed) } else { Duration::ZERO };
        self.used = rate.max(self.used * Self::MEMORY);
        // At a low share, many checks pass between two packets. After a higher share, too: the kernel waits as long as
        // the lower one demanded.
        let patience = Self::STUCK_AFTER.as_secs_f64().max(Self::STUCK_BITS / share.max(1.0));
        let is_paced = now.waits
            && now.receiver_limited == before.receiver_limited
            && share < Self::LOW
            && self.still.as_secs_f64() < patience;
        self.wants = if is_paced || rate >= share * Self::HUNGRY { f64::INFINITY } else { self.used * Self::GROWTH };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: f64 = f64::INFINITY;

    fn sent(sent: u64) -> Progress {
        Progress { sent, ..Progress::default() }
    }

    /// All in Mbit/s.
    fn shares(rate: f64, wants: &[f64], booked: &[f64]) -> Vec<u64> {
        let claim = |(wants, booked): (&f64, &f64)| Claim {
            wants: *wants * 1e6,
            booked: (*booked > 0.0).then_some(*booked * 1e6),
        };
        let claims: Vec<_> = wants.iter().zip(booked.iter().chain(std::iter::repeat(&0.0))).map(claim).collect();
        divide(rate * 1e6, &claims).iter().map(|share| (share / 1e6).round() as u64).collect()
    }

    #[test]
    fn unneeded_share_goes_to_the_others() {
        assert_eq!(shares(1000.0, &[ALL], &[]), [1000]);
        assert_eq!(shares(1000.0, &[ALL; 4], &[]), [250; 4]);
        assert_eq!(shares(1000.0, &[ALL, 0.0], &[]), [995, 5]);
        assert_eq!(shares(1000.0, &[ALL, 105.0, ALL], &[]), [448, 105, 448]);
        // No connection needs everything: the rest is spread, in case one needs more before the next check.
        assert_eq!(shares(1000.0, &[100.0, 200.0], &[]), [450, 550]);
    }

    #[test]
    fn idle_connections_can_start_at_a_low_rate() {
        let idle = |rate, wants: &[f64]| {
            let claims: Vec<_> = wants.iter().map(|wants| Claim { wants: *wants, booked: None }).collect();
            divide(rate, &claims)
        };
        assert_eq!(idle(1e6, &[ALL, 0.0, 0.0, 0.0]), [850e3, 50e3, 50e3, 50e3]);
        // A quarter is left for a hundred of them.
        let mut many = vec![0.0; 100];
        many[0] = ALL;
        let shares = idle(1e6, &many);
        assert!(shares[0] > 750e3 && (shares[1] - 2500.0).abs() < 1.0, "{shares:?}");
    }

    #[test]
    fn promise_is_kept_and_not_exceeded() {
        assert_eq!(shares(1000.0, &[ALL; 3], &[600.0]), [600, 200, 200]);
        // While a promise is unused, others get it.
        assert_eq!(shares(1000.0, &[0.0, ALL], &[600.0]), [5, 995]);
        assert_eq!(shares(1000.0, &[ALL], &[600.0]), [600]);
    }

    proptest! {
        #[test]
        fn shares_use_the_whole_rate_and_never_more(
            rate in 1e3f64..1e11,
            claims in prop::collection::vec((0u64..1 << 37, prop::option::of(0.0f64..0.2)), 1..12),
        ) {
            let claims: Vec<_> = claims.iter().map(|(wants, booked)| Claim {
                wants: if wants % 3 == 0 { ALL } else { *wants as f64 },
                booked: booked.map(|part| part * rate),
            }).collect();
            let booked: f64 = claims.iter().filter_map(|claim| claim.booked).sum();
            prop_assume!(booked <= rate);
            let shares = divide(rate, &claims);
            let sum: f64 = shares.iter().sum();
            prop_assert!(sum <= rate * (1.0 + 1e-9), "{sum} of {rate}");
            if claims.iter().any(|claim| claim.booked.is_none()) {
                prop_assert!(sum >= rate * (1.0 - 1e-9), "{sum} of {rate}");
            }
            for (claim, share) in claims.iter().zip(&shares) {
                prop_assert!(*share >= 0.0);
                if let Some(booked) = claim.booked {
                    prop_assert!(*share <= booked * (1.0 + 1e-9));
                    prop_assert!(*share >= booked.min(claim.wants) * (1.0 - KEPT) - 1.0 || sum >= rate * (1.0 - 1e-9));
                }
            }
        }
    }

    /// Simulates connections that would send at their own rates, checked every 20 ms for `looks`. Returns what each
    /// sent last, in bits per second.
    fn run(rate: f64, sources: &[f64], looks: u32) -> Vec<f64> {
        let passed = Duration::from_millis(20);
        let mut meters = vec![Meter::new(); sources.len()];
        let mut sent = vec![0.0; sources.len()];
        let mut shares = vec![0.0; sources.len()];
        let mut last = Vec::new();
        for _ in 0..looks {
            for ((meter, sent), share) in meters.iter_mut().zip(&sent).zip(&shares) {
                meter.look(super::tests::sent(*sent as u64), passed, *share);
            }
            let claims: Vec<_> = meters.iter().map(|meter| Claim { wants: meter.wants(), booked: None }).collect();
            shares = divide(rate, &claims);
            last = shares.iter().zip(sources).map(|(share, source)| share.min(*source)).collect();
            sent.iter_mut().zip(&last).for_each(|(sent, now)| *sent += now / 8.0 * passed.as_secs_f64());
        }
        last
    }

    #[test]
    fn connections_settle_at_what_they_need() {
        let got = run(100e6, &[f64::INFINITY, 10e6, 0.0, f64::INFINITY], 50);
        assert!((got[1] - 10e6).abs() < 1.0, "{got:?}");
        for big in [got[0], got[3]] {
            // Twice 10 Mbit/s are kept for the connection that needs 10, and a small part for the idle one.
            assert!((big - 39.75e6).abs() < 1e6, "{got:?}");
        }
    }

    #[test]
    fn meter_notices_new_sender_at_next_check() {
        let mut meter = Meter::new();
        let passed = Duration::from_millis(20);
        meter.look(sent(0), passed, 0.0);
        for _ in 0..100 {
            meter.look(sent(0), passed, 1e6);
        }
        assert!(meter.wants() < 1.0);
        meter.look(sent(2_500), passed, 1e6);
        assert_eq!(meter.wants(), ALL);
    }

    /// One packet of 1448 bytes every `every` checks, while more wait; then none.
    fn paced(share: f64, every: u64, looks: u64) -> (Vec<bool>, Meter) {
        let (mut meter, passed) = (Meter::new(), Duration::from_millis(20));
        let kept = (0..looks).map(|look| {
            meter.look(Progress { waits: true, ..sent(look / every * 1448) }, passed, share);
            meter.wants() == ALL
        });
        (kept.collect(), meter)
    }

    #[test]
    fn packets_far_apart_keep_their_share_while_more_wait() {
        for (share, every) in [(15e3, 40), (250.0, 2320)] {
            let (kept, mut meter) = paced(share, every, 3 * every);
            assert!(kept.iter().all(|kept| *kept), "{share}: {:?}", kept.iter().position(|kept| !kept));
            // Nothing arrives any more.
            let last = Progress { waits: true, ..sent(2 * 1448) };
            (0..3 * every + 300).for_each(|_| meter.look(last, Duration::from_millis(20), share));
            assert!(meter.wants() < 1.0, "{share}");
        }
    }

    /// The receiver reads a fiftieth of what its connection could have.
    #[test]
    fn slow_receiver_keeps_no_share_that_others_need() {
        let (mut meter, passed, share) = (Meter::new(), Duration::from_millis(20), 500e3);
        for look in 0..500 {
            let limited = Duration::from_millis(look * 19);
            meter.look(Progress { receiver_limited: limited, waits: true, ..sent(look * 25) }, passed, share);
        }
        assert!(meter.wants() < 50e3, "{}", meter.wants());
    }

    #[test]
    fn full_window_is_no_wait_for_a_share() {
        let stats = |in_flight| Stats { unsent: 1448, in_flight, congestion_window: 4, ..Stats::default() };
        assert!(Progress::of(&stats(3)).waits && !Progress::of(&stats(4)).waits);
        assert!(Progress::of(&Stats { unsent: 1, ..Stats::default() }).waits);
    }
}
