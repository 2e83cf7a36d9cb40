//! Measures loss by counting sent and received datagrams.

use super::{Bound, Error, Finding, Options, pair, system};
use crate::model::{DirectionConfig, LinkConfig, Loss};
use crate::testbed::Testbed;
use rustix::net::sockopt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Payload of a datagram in bytes; each datagram is one segment.
const PAYLOAD: usize = 1000;
/// Most datagrams that may wait in the sending host for the emulator: fewer than the device's queue holds.
const UNREAD_MAX: u64 = 1000;
/// Most datagrams that may wait in the receiving host: fewer than its buffer holds.
const UNRECEIVED_MAX: u64 = 10_000;
/// Number of datagrams sent between two looks at the counters.
const BATCH: u32 = 100;
/// How long the sender pauses for the others to catch up.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest wait for another datagram before the receiver counts the rest as lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Independent losses. Their number has a standard deviation of √(n·p·(1-p)).
pub(super) fn bernoulli(options: &Options) -> Result<Finding, Error> {
    measure(options, "0.1%", 1.0)
}

/// Bursts of five on average. The correlation of successive losses widens the deviation by √((1+ρ)/(1-ρ)),
/// where ρ = 1 - to_bad - to_good is the correlation of the states of two successive segments.
pub(super) fn bursts(options: &Options) -> Result<Finding, Error> {
    let rho: f64 = 1.0 - 0.0002 - 0.2;
    measure(options, "to_bad=0.02%,to_good=20%", ((1.0 + rho) / (1.0 - rho)).sqrt())
}

fn measure(options: &Options, loss: &str, widening: f64) -> Result<Finding, Error> {
    let loss: Loss = loss.parse().unwrap_or_default();
    let mean = loss.mean();
    let sent = f64::from(options.segments);
    let standard_error = (mean * (1.0 - mean) / sent).sqrt() * widening;
    let (mut errors, mut observed) = (Vec::new(), Vec::new());
    for run in 0..options.runs {
        let direction = DirectionConfig { loss, ..DirectionConfig::default() };
        let testbed = pair(LinkConfig::symmetric(u64::from(run), direction))?;
        let lost = 1.0 - f64::from(received(&testbed, options.segments)?) / sent;
        observed.push(format!("{:.4} %", lost * 100.0));
        errors.push((lost - mean).abs() / standard_error);
    }
    let conditions = format!("{} lost of {} segments each", observed.join(", "), options.segments);
    Ok(Finding::new(&format!("error of a loss of {loss}"), conditions, errors, "standard errors", Bound::AtMost(3.0)))
}

/// Sends `datagrams` from `src` to `dst`, and returns how many arrived.
fn received(testbed: &Testbed, datagrams: u32) -> Result<u32, Error> {
    let bind = |host: &str| -> Result<UdpSocket, Error> {
        let local = SocketAddr::new(testbed.addresses(host)?[0], 0);
        testbed.run_in(host, || UdpSocket::bind(local))?.map_err(system(format!("cannot bind a socket on {host}")))
    };
    let (near, far) = (bind("src")?, bind("dst")?);
    let target = far.local_addr().map_err(system("no local address"))?;
    let system = |error| Error::System { what: "cannot measure loss".into(), error };
    near.connect(target).map_err(system)?;
    far.set_read_timeout(Some(PATIENCE)).map_err(system)?;
    // The receiver itself must not drop datagrams.
    sockopt::set_socket_recv_buffer_size_force(&far, 64 << 20).map_err(|error| system(error.into()))?;
    let received = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; PAYLOAD];
            while far.recv(&mut buffer).is_ok() {
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        send(testbed, &near, datagrams, &received)
    })?;
    Ok(received.into_inner())
}

/// Sends `datagrams`, no faster than the emulator reads and the receiver receives.
fn send(testbed: &Testbed, near: &UdpSocket, datagrams: u32, received: &AtomicU32) -> Result<(), Error> {
    let link = testbed.link("link")?;
    let behind = |sent: u32| {
        let way = link.counters().forward;
        let unread = u64::from(sent).saturating_sub(way.entered.segments);
        let unreceived = way.delivered.segments.saturating_sub(received.load(Ordering::Relaxed).into());
        unread > UNREAD_MAX || unreceived > UNRECEIVED_MAX
    };
    for sent in 0..datagrams {
        near.send(&[0; PAYLOAD]).map_err(system("cannot send a datagram"))?;
        if sent % BATCH == 0 {
            while behind(sent) {
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(())
}
