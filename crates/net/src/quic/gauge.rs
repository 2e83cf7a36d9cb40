//! Measurements of a connection for statistics, taken from its congestion controller: quinn itself reports
//! neither deliveries nor RTT deviation. In the other direction, a gauge limits the connection beyond its
//! congestion control ([`Gauge::hold`]).

use super::rate;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Measurements of one connection, which its controllers write and anyone reads. A path change creates a new
/// controller, which continues the same measurements.
#[derive(Debug)]
pub(super) struct Gauge {
    started: Instant,
    /// Bytes of packets that were acknowledged since the connection began.
    acked: AtomicU64,
    /// Bytes in flight.
    in_flight: AtomicU64,
    /// When the peer last acknowledged anything, in milliseconds since `started`.
    heard: AtomicU64,
    /// Mean deviation of the round-trip time, in microseconds.
    rtt_var: AtomicU64,
    /// Delivery rate of the latest round trip, in bytes per second.
    rate: AtomicU64,
    /// Congestion window, in bytes.
    window: AtomicU64,
    /// Largest UDP payload, in bytes.
    mtu: AtomicU64,
    /// Bytes of lost packets that are not yet charged to any stream's rate.
    uncharged: AtomicU64,
    /// Smoothed round-trip time in microseconds, including the peer's acknowledgement delay: the interval in
    /// which a window is sent.
    rtt: AtomicU64,
    /// Sum of the rates of all streams with a rate, in bits per second.
    rates: AtomicU64,
    /// Whether the whole connection is limited to the sum of these rates.
    is_held: AtomicBool,
}

impl Gauge {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            acked: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            rtt_var: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            window: AtomicU64::new(0),
            mtu: AtomicU64::new(1200),
            uncharged: AtomicU64::new(0),
            rtt: AtomicU64::new(0),
            rates: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
        })
    }

    /// When the connection began.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn rtt_var_us(&self) -> u64 {
        self.rtt_var.load(Relaxed)
    }

    pub(super) fn delivery_rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    pub(super) fn window(&self) -> u64 {
        self.window.load(Relaxed)
    }

    pub(super) fn mtu(&self) -> u64 {
        self.mtu.load(Relaxed)
    }

    /// Returns the bytes lost since the last call. quinn retransmits them in addition to what streams are
    /// granted, so one of the streams must be charged for them.
    pub(super) fn take_lost(&self) -> usize {
        match self.uncharged.load(Relaxed) {
            0 => 0,
            _ => usize::try_from(self.uncharged.swap(0, Relaxed)).unwrap_or(usize::MAX),
        }
    }

    /// Replaces a stream's rate in the sum.
    pub(super) fn change_rate(&self, from: Option<u64>, to: Option<u64>) {
        self.rates.fetch_add(to.unwrap_or(0), Relaxed);
        self.rates.fetch_sub(from.unwrap_or(0), Relaxed);
    }

    /// Limits the whole connection to the sum of its streams' rates. Data that was written under higher rates
    /// waits in quinn, and no allowance limits it. While it drains, no stream can write ([`Gauge::held`]
    /// limits the send window too), so the first successful write ends the limit ([`Gauge::release`]).
    pub(super) fn hold(&self) {
        self.is_held.store(true, Relaxed);
    }

    pub(super) fn release(&self) {
        if self.is_held.load(Relaxed) {
            self.is_held.store(false, Relaxed);
        }
    }

    /// The congestion window, in bytes, while the connection is limited.
    pub(super) fn held(&self) -> Option<u64> {
        let rtt = Duration::from_micros(self.rtt.load(Relaxed));
        self.is_held.load(Relaxed).then(|| rate::window(self.rates.load(Relaxed), self.mtu(), rtt))
    }

    /// Time since the peer last acknowledged anything.
    pub(super) fn unheard(&self, now: Instant) -> Duration {
        let now = now.saturating_duration_since(self.started);
        now.saturating_sub(Duration::from_millis(self.heard.load(Relaxed)))
    }
}

/// Builds controllers that record their measurements in a gauge, around those of another factory.
pub(super) struct Gauged {
    pub(super) inner: Arc<dyn ControllerFactory + Send + Sync>,
    pub(super) gauge: Arc<Gauge>,
}

impl ControllerFactory for Gauged {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        self.gauge.mtu.store(mtu.into(), Relaxed);
        let inner = self.inner.clone().build(now, mtu);
        Box::new(Watching { inner, gauge: self.gauge.clone(), batch: Batch::default(), since: (now, 0), rtt: None })
    }
}

struct Watching {
    inner: Box<dyn Controller>,
    gauge: Arc<Gauge>,
    batch: Batch,
    /// Start of the current rate measurement: the instant, and the bytes acknowledged by then.
    since: (Instant, u64),
    /// Smoothed round-trip time and its deviation, in seconds (RFC 6298).
    rtt: Option<(f64, f64)>,
}

/// The content of one acknowledgement.
#[derive(Clone, Default)]
struct Batch {
    bytes: u64,
    /// Sending time of the most recently sent packet in it.
    sent: Option<Instant>,
}

impl Watching {
    fn take_rtt(&mut self, sample: f64) {
        let (mean, deviation) = match self.rtt {
            None => (sample, sample / 2.0),
            Some((mean, deviation)) => {
                (mean + (sample - mean) / 8.0, deviation + ((sample - mean).abs() - deviation) / 4.0)
            }
        };
        self.rtt = Some((mean, deviation));
        self.gauge.rtt.store((mean * 1e6) as u64, Relaxed);
        self.gauge.rtt_var.store((deviation * 1e6) as u64, Relaxed);
    }
}

impl Controller for Watching {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.gauge.in_flight.fetch_add(bytes, Relaxed);
        self.inner.on_sent(now, bytes, last);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.batch.bytes += bytes;
        self.batch.sent = self.batch.sent.max(Some(sent));
        // A connection that is limited below its congestion window says nothing about the path.
        let app_limited = app_limited || self.gauge.held().is_some();
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        let Batch { bytes, sent } = std::mem::take(&mut self.batch);
        let gauge = &self.gauge;
        let acked = gauge.acked.fetch_add(bytes, Relaxed) + bytes;
        gauge.in_flight.store(in_flight, Relaxed);
        gauge.heard.store(now.saturating_duration_since(gauge.started).as_millis() as u64, Relaxed);
        if let Some(sent) = sent {
            self.take_rtt(now.saturating_duration_since(sent).as_secs_f64());
        }
        let passed = now.saturating_duration_since(self.since.0).as_secs_f64();
        if self.rtt.is_some_and(|(mean, _)| passed >= mean.max(0.001)) {
            let rate = (acked.saturating_sub(self.since.1)) as f64 / passed;
            self.gauge.rate.store(rate as u64, Relaxed);
            self.since = (now, acked);
        }
        let app_limited = app_limited || self.gauge.held().is_some();
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.gauge.window.store(self.inner.window(), Relaxed);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.gauge.uncharged.fetch_add(lost, Relaxed);
        self.inner.on_congestion_event(now, sent, persistent, lost);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.gauge.mtu.store(mtu.into(), Relaxed);
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        let window = self.inner.window();
        self.gauge.held().map_or(window, |held| held.min(window))
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            gauge: self.gauge.clone(),
            batch: self.batch.clone(),
            since: self.since,
            rtt: self.rtt,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
