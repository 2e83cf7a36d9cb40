//! Measures round trips by ICMP echo (RFC 792): the far kernel answers, so no program's scheduling there is
//! measured.

use super::goodput::Load;
use super::{Bound, Error, Finding, Options, pair, quantile, system};
use crate::model::{DirectionConfig, LinkConfig};
use crate::testbed::{Sc09, Testbed};
use phoebus_proto::units::BitRate;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Number of probes per run, and the time between two.
const PROBES: u16 = 100;
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Probes without an answer by then count as lost.
const PATIENCE: Duration = Duration::from_secs(1);

const RATE: BitRate = BitRate(1_000_000_000);
const ONE_WAY: Duration = Duration::from_millis(10);

/// On an otherwise idle link.
pub(super) fn idle(options: &Options) -> Result<Finding, Error> {
    let testbed = pair(link())?;
    finding("error of the round trip, idle", options, &testbed, 2 * ONE_WAY, "one link of 20 ms at 1 Gbit/s")
}

/// Concurrently with a TCP stream at half the link's rate.
pub(super) fn half_rate(options: &Options) -> Result<Finding, Error> {
    let testbed = pair(link())?;
    let seconds = 3 + options.runs * (u32::from(PROBES) * 30).div_ceil(1000);
    let load = Load::start(&testbed, seconds, &["-C", "bbr", "-b", &(RATE.0 / 2).to_string()])?;
    // Waits until slow start, which fills the queue, is over.
    std::thread::sleep(Duration::from_secs(2));
    let conditions = "one link of 20 ms at 1 Gbit/s, beside 500 Mbit/s of TCP";
    let finding = finding("error of the round trip, half loaded", options, &testbed, 2 * ONE_WAY, conditions);
    load.end();
    finding
}

/// Across three links and two routers.
pub(super) fn row(options: &Options) -> Result<Finding, Error> {
    let scenario = Sc09::default();
    let nominal = scenario.wan_rtt.0 + 2 * scenario.lan_rtt.0;
    let testbed = Testbed::up(&scenario.scenario())?;
    let conditions = "three links in a row, 8, 100 and 8 ms at 1 Gbit/s";
    finding("error of the round trip, three links", options, &testbed, nominal, conditions)
}

fn link() -> LinkConfig {
    let direction =
        DirectionConfig { delay: phoebus_proto::units::Span(ONE_WAY), rate: RATE.into(), ..DirectionConfig::default() };
    LinkConfig::symmetric(1, direction)
}

fn finding(
    what: &str,
    options: &Options,
    testbed: &Testbed,
    nominal: Duration,
    conditions: &str,
) -> Result<Finding, Error> {
    let nominal = nominal.as_secs_f64() * 1e3;
    let (mut errors, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        let round_trips = round_trips(testbed, "src", "dst")?;
        errors.push((quantile(&round_trips, 0.5) - nominal).abs());
        slow.push(quantile(&round_trips, 0.95) - nominal);
    }
    slow.sort_by(f64::total_cmp);
    let slow = quantile(&slow, 0.5);
    let conditions =
        format!("median of {PROBES} echoes per run, of which 95 % are off by less than {slow:.2} ms; {conditions}");
    Ok(Finding::new(what, conditions, errors, "ms", Bound::AtMost(1.0)))
}

/// The round-trip times of one run's probes, in milliseconds, in ascending order.
fn round_trips(testbed: &Testbed, from: &str, to: &str) -> Result<Vec<f64>, Error> {
    let v4 = testbed.addresses(to)?.iter().find_map(|address| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    let target = v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let mut round_trips = testbed.run_in(from, || probe_all(target))?.map_err(system("cannot probe by ICMP echo"))?;
    if round_trips.is_empty() {
        return Err(Error::NoEcho(target));
    }
    round_trips.sort_by(f64::total_cmp);
    Ok(round_trips)
}

/// Round-trip times, in milliseconds, in the order of the probes.
fn probe_all(target: Ipv4Addr) -> std::io::Result<Vec<f64>> {
    // Real-time priority excludes this thread's scheduling delay from the round trip; without root, it stays
    // included.
    let _ = crate::live::run_first();
    let socket = open_icmp()?;
    let mut round_trips = Vec::new();
    for number in 0..PROBES {
        round_trips.extend(probe(&socket, target, number)?.map(|round_trip| round_trip.as_secs_f64() * 1e3));
        std::thread::sleep(PROBE_INTERVAL);
    }
    Ok(round_trips)
}

fn open_icmp() -> std::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP))?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// Measures one round trip; `None` if it took too long.
fn probe(socket: &OwnedFd, target: Ipv4Addr, number: u16) -> std::io::Result<Option<Duration>> {
    const ECHO_REPLY: u8 = 0;
    let request = echo_request(number);
    let start = Instant::now();
    sendto(socket, &request, SendFlags::empty(), &SocketAddrV4::new(target, 0))?;
    let mut buffer = [0; 128];
    while start.elapsed() < PATIENCE {
        let length = match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        };
        let round_trip = start.elapsed();
        // A raw socket returns the IPv4 header too, here always without options.
        let reply = buffer[..length].get(20..).unwrap_or_default();
        if reply.first() == Some(&ECHO_REPLY) && reply.get(4..) == Some(&request[4..]) {
            return Ok(Some(round_trip));
        }
    }
    Ok(None)
}

/// Type, code, checksum, identifier, sequence number.
fn echo_request(number: u16) -> [u8; 8] {
    const ECHO: u8 = 8;
    const IDENTIFIER: u16 = 0x5048;
    let [n0, n1] = number.to_be_bytes();
    let [i0, i1] = IDENTIFIER.to_be_bytes();
    let sum = crate::packet::internet_checksum(&[ECHO, 0, 0, 0, i0, i1, n0, n1]).to_be_bytes();
    [ECHO, 0, sum[0], sum[1], i0, i1, n0, n1]
}
