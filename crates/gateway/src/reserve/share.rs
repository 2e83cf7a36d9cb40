//! Divides a rate among connections (S17) by max-min fairness: each gets what it needs, or an equal share where all
//! need more than there is; what one does not need goes to the others. Pure: bytes and times are arguments.

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

/// Estimates what a connection needs from what it sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    /// Bytes sent until the last check.
    sent: Option<u64>,
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
    /// After this time without a packet, what waits does not wait for its share: the receiver takes nothing.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// For a connection that may be about to send.
    pub(super) fn new() -> Self {
        Self { sent: None, used: 0.0, wants: f64::INFINITY, still: Duration::ZERO }
    }

    pub(super) fn wants(&self) -> f64 {
        self.wants
    }

    /// Records that `sent` bytes (without headers) were sent so far, `passed` after the last check, under `share`.
    /// `waits`: more wait to be sent.
    pub(super) fn look(&mut self, sent: u64, waits: bool, passed: Duration, share: f64) {
        let before = self.sent.replace(sent);
        let Some(before) = before.filter(|_| !passed.is_zero()) else { return };
        let now = sent.saturating_sub(before) as f64 * 8.0 / passed.as_secs_f64();
        self.still = if sent == before { self.still.saturating_add(passed) } else { Duration::ZERO };
        self.used = now.max(self.used * Self::MEMORY);
        // At a low share, many checks pass between two packets. After a higher share, too: the kernel waits as long as
        // the lower one demanded.
        let is_paced = waits && share < Self::LOW && self.still < Self::PATIENCE;
        self.wants = if is_paced || now >= share * Self::HUNGRY { f64::INFINITY } else { self.used * Self::GROWTH };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: f64 = f64::INFINITY;

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
                meter.look(*sent as u64, false, passed, *share);
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
        meter.look(0, false, passed, 0.0);
        for _ in 0..100 {
            meter.look(0, false, passed, 1e6);
        }
        assert!(meter.wants() < 1.0);
        meter.look(2_500, false, passed, 1e6);
        assert_eq!(meter.wants(), ALL);
    }
    #[test]
    fn packet_in_a_second_keeps_its_share_while_more_wait() {
        let (mut meter, passed, share) = (Meter::new(), Duration::from_millis(20), 15e3);
        let mut sent = 0;
        meter.look(sent, true, passed, share);
        for look in 0..200 {
            sent += if look % 40 == 0 { 1448 } else { 0 };
            meter.look(sent, true, passed, share);
            assert_eq!(meter.wants(), ALL, "{look}");
        }
        // The receiver has stopped.
        for _ in 0..300 {
            meter.look(sent, true, passed, share);
        }
        assert!(meter.wants() < 1.0);
    }
}
