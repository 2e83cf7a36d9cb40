//! Compares live links with the model: captures what two kernels send and receive, and checks that exactly
//! those segments are missing that the model drops. Needs root and `/dev/net/tun`.
#![allow(unsafe_code, reason = "socket options that no crate wraps")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use phoebus_wan::model::{Direction, DirectionConfig, DirectionCounters, DirectionUpdate, Link, LinkConfig};
use phoebus_wan::packet::VnetHeader;
use phoebus_wan::sim::Datagram;
use phoebus_wan::testbed::{HostSpec, LinkSpec, Scenario, Testbed};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longer than any transfer here takes on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds hosts in a row, `h0` to `hN`, joined by links `l0` to `lN-1`.
fn row(links: &[LinkConfig]) -> Testbed {
    let host = |index: usize| format!("h{index}");
    let scenario = Scenario {
        hosts: (0..=links.len()).map(|index| HostSpec::new(host(index))).collect(),
        links: links
            .iter()
            .enumerate()
            .map(|(index, config)| {
                let ends = [host(index), host(index + 1)];
                LinkSpec { name: format!("l{index}"), ends, config: config.clone() }
            })
            .collect(),
        ..Scenario::default()
    };
    Testbed::up(&scenario).unwrap_or_else(|error| panic!("live links need root and /dev/net/tun: {error}"))
}

fn direction(delay: &str, loss: &str) -> DirectionConfig {
    DirectionConfig { delay: delay.parse().unwrap(), loss: loss.parse().unwrap(), ..Default::default() }
}

fn address(testbed: &Testbed, host: &str, v6: bool) -> IpAddr {
    let addresses = testbed.addresses(host).unwrap();
    *addresses.iter().find(|address| address.is_ipv6() == v6).expect("these tests need a kernel with IPv6")
}

/// Makes a TCP connection from `from` to `to`, and returns both ends.
fn connect(testbed: &Testbed, from: &str, to: &str, v6: bool) -> (TcpStream, TcpStream) {
    let any = SocketAddr::new(address(testbed, to, v6), 0);
    let listener = testbed.run_in(to, || TcpListener::bind(any).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let near = testbed.run_in(from, || TcpStream::connect_timeout(&target, PATIENCE).unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

/// Sends `len` bytes of a non-repeating pattern, verifies them at the receiver, and waits for the
/// acknowledgement of all.
fn transfer(near: &mut TcpStream, far: &mut TcpStream, len: usize) {
    let data: Vec<u8> = (0..len as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    let mut received = vec![0; data.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&data).unwrap());
        far.read_exact(&mut received).unwrap();
    });
    assert!(received == data, "the data has changed on its way");
    wait_until("all data is acknowledged", || unacknowledged(near) == 0);
}

fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer refers to an integer, which this request writes.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(result, 0, "SIOCOUTQ: {}", std::io::Error::last_os_error());
    bytes
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The forward counters of `l0`, once `segments` have entered it and none is in flight.
fn settled(testbed: &Testbed, segments: u64) -> DirectionCounters {
    let link = testbed.link("l0").unwrap();
    wait_until("a link is done with its segments", || {
        let way = link.counters().forward;
        way.entered.segments >= segments && way.held.segments == 0
    });
    link.counters().forward
}

/// Captures all IP packets that a host's interfaces send and receive.
struct Capture {
    socket: OwnedFd,
}

/// A segment on the wire: its length from the IP header on, and the fields that identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    bytes: usize,
    sequence: u32,
    payload: usize,
}

impl Capture {
    fn start(testbed: &Testbed, host: &str) -> Self {
        let open = || {
            let everything = rustix::net::Protocol::from_raw(
                std::num::NonZeroU32::new(u32::from((libc::ETH_P_ALL as u16).to_be())).unwrap(),
            );
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(everything)).unwrap();
            sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20).unwrap();
            set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
            Self { socket }
        };
        testbed.run_in(host, open).unwrap()
    }

    /// The TCP segments captured so far, except those sent from `sender`. An offloaded packet counts as the
    /// segments on the wire.
    fn segments_not_from(&self, sender: IpAddr) -> Vec<Segment> {
        let mut buffer = vec![0; 70_000];
        let mut segments = Vec::new();
        while let Ok((length, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
            let vnet = VnetHeader::read(&buffer[..length]).unwrap();
            let ip = &buffer[VnetHeader::LEN..length];
            let (source, tcp_at) = match ip[0] >> 4 {
                4 => (IpAddr::from(<[u8; 4]>::try_from(&ip[12..16]).unwrap()), 20),
                _ => (IpAddr::from(<[u8; 16]>::try_from(&ip[8..24]).unwrap()), 40),
            };
            if source == sender {
                continue;
            }
            let sequence = u32::from_be_bytes(ip[tcp_at + 4..tcp_at + 8].try_into().unwrap());
            let headers = tcp_at + usize::from(ip[tcp_at + 12] >> 4) * 4;
            let size = if vnet.gso_type == 0 { usize::MAX } else { usize::from(vnet.gso_size) };
            let mut done = 0;
            loop {
                let payload = (ip.len() - headers - done).min(size);
                segments.push(Segment {
                    bytes: headers + payload,
                    sequence: sequence.wrapping_add(done as u32),
                    payload,
                });
                done += payload;
                if done == ip.len() - headers {
                    break;
                }
            }
        }
        segments
    }
}

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: pointer and length are those of an integer, which both options used here take.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    assert_eq!(result, 0, "setsockopt: {}", std::io::Error::last_os_error());
}

/// The indices of those segments that a link forwards if they come one by one; `sizes` are their lengths from
/// the IP header on.
fn survivors(config: &LinkConfig, sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut link = Link::new(config);
    let way = link.way(Direction::Forward);
    let mut survivors = Vec::new();
    for (number, size) in sizes.enumerate() {
        let now = Duration::from_secs(number as u64);
        way.push(now, Datagram(vec![0; size - Datagram::HEADER_BYTES as usize]));
        // All delays here are shorter than the second between two segments.
        survivors.extend(way.poll(now + Duration::from_secs(1)).map(|_| number));
    }
    survivors
}

fn tcp_transfer_loses_what_the_model_draws(v6: bool) {
    let config = LinkConfig {
        forward: direction("2ms", "1%"),
        backward: direction("3ms", "0%"),
        ..LinkConfig::symmetric(11, DirectionConfig::default())
    };
    let testbed = row(std::slice::from_ref(&config));
    let captures = ["h0", "h1"].map(|host| Capture::start(&testbed, host));
    let (mut near, mut far) = connect(&testbed, "h0", "h1", v6);
    transfer(&mut near, &mut far, 4 << 20);
    let receiver = address(&testbed, "h1", v6);
    let sent = captures[0].segments_not_from(receiver);
    let way = settled(&testbed, sent.len() as u64);
    let arrived = captures[1].segments_not_from(receiver);

    let passed: Vec<_> =
        survivors(&config, sent.iter().map(|s| s.bytes)).into_iter().map(|n| sent[n].clone()).collect();
    assert_eq!(arrived.len(), passed.len());
    let differing = arrived.iter().zip(&passed).position(|(arrived, passed)| arrived != passed);
    assert_eq!(differing, None, "what arrived is not what the model lets pass");

    // The comparison is meaningful only if super-packets lost inner segments.
    let lost = (sent.len() - arrived.len()) as u64;
    assert_eq!((way.entered.segments, way.random_drops.segments), (sent.len() as u64, lost));
    assert!(lost > 10 && way.packets_in * 3 < way.entered.segments, "{lost} lost of {way:?}");
    assert_eq!((way.overruns, way.refused, way.oversize_drops.segments), (0, 0, 0));
}

#[test]
fn tcp_over_ipv4_loses_what_the_model_draws() {
    tcp_transfer_loses_what_the_model_draws(false);
}

#[test]
fn tcp_over_ipv6_loses_what_the_model_draws() {
    tcp_transfer_loses_what_the_model_draws(true);
}

#[test]
fn offloaded_datagrams_lose_what_the_model_draws() {
    const PAYLOAD: usize = 1000;
    const BURSTS: usize = 100;
    let config = LinkConfig::symmetric(3, direction("1ms", "to_bad=1%,to_good=30%"));
    let testbed = row(std::slice::from_ref(&config));
    for (v6, headers) in [(false, 28), (true, 48)] {
        let before = settled(&testbed, 0);
        let bind = |host| {
            let local = SocketAddr::new(address(&testbed, host, v6), 0);
            testbed.run_in(host, || UdpSocket::bind(local).unwrap()).unwrap()
        };
        let (near, far) = (bind("h0"), bind("h1"));
        near.connect(far.local_addr().unwrap()).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&far, 64 << 20).unwrap();
        set_option(&near, libc::SOL_UDP, libc::UDP_SEGMENT, PAYLOAD as i32);
        // The last datagram of each burst is shorter.
        let sizes: Vec<usize> = (0..BURSTS * 40).map(|n| if n % 40 == 39 { 100 } else { PAYLOAD }).collect();
        for burst in 0..BURSTS {
            let numbers = burst * 40..(burst + 1) * 40;
            let bytes: Vec<u8> = numbers
                .flat_map(|n| (n as u32).to_be_bytes().into_iter().chain(std::iter::repeat_n(n as u8, sizes[n] - 4)))
                .collect();
            assert_eq!(near.send(&bytes).unwrap(), bytes.len());
        }
        let counters = settled(&testbed, before.entered.segments + sizes.len() as u64);
        far.set_nonblocking(true).unwrap();
        let mut arrived = Vec::new();
        let mut buffer = [0; 2000];
        while let Ok(length) = far.recv(&mut buffer) {
            let number = u32::from_be_bytes(buffer[..4].try_into().unwrap()) as usize;
            assert_eq!(length, sizes[number], "datagram {number}");
            assert!(buffer[4..length].iter().all(|byte| *byte == number as u8), "datagram {number} is damaged");
            arrived.push(number);
        }
        // The link's random generator continues from the state after the other address family.
        let earlier = before.entered.segments as usize;
        let all = std::iter::repeat_n(PAYLOAD + headers, earlier).chain(sizes.iter().map(|size| size + headers));
        let expected: Vec<_> =
            survivors(&config, all).into_iter().filter(|n| *n >= earlier).map(|n| n - earlier).collect();
        assert_eq!(arrived, expected);
        assert!((50..1000).contains(&(sizes.len() - arrived.len())), "{} of {} arrived", arrived.len(), sizes.len());
        assert_eq!(counters.entered.segments - before.entered.segments, sizes.len() as u64);
    }
}

#[test]
fn router_answers_for_a_link_with_a_smaller_mtu() {
    let small = LinkConfig { mtu: 1300, ..LinkConfig::default() };
    let testbed = row(&[LinkConfig::default(), small, LinkConfig::default()]);
    for (v6, headers) in [(false, 28), (true, 48)] {
        let (mut near, mut far) = connect(&testbed, "h0", "h3", v6);
        transfer(&mut near, &mut far, 1 << 20);
        // The transfer needed the router's packet-too-big answer, which the sender's host has cached.
        let target = SocketAddr::new(address(&testbed, "h3", v6), 9);
        let local = SocketAddr::new(address(&testbed, "h0", v6), 0);
        let socket = testbed.run_in("h0", || UdpSocket::bind(local).unwrap()).unwrap();
        socket.connect(target).unwrap();
        match v6 {
            false => set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
            true => set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        }
        let error = socket.send(&vec![0; 1301 - headers]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        socket.send(&vec![0; 1300 - headers]).unwrap();
    }
    let counters = testbed.counters();
    assert!(counters.values().all(|link| link.forward.oversize_drops.segments == 0));
}

#[test]
fn rate_and_queue_limit_a_transfer() {
    let narrow =
        DirectionConfig { rate: "100mbit".parse().unwrap(), queue: "64kB".parse().unwrap(), ..direction("5ms", "0%") };
    let testbed = row(&[LinkConfig::symmetric(0, narrow)]);
    let start = Instant::now();
    let (mut near, mut far) = connect(&testbed, "h0", "h1", false);
    transfer(&mut near, &mut far, 8 << 20);
    let elapsed = start.elapsed();
    let way = settled(&testbed, 0);
    // Never faster than the wire; an upper bound would depend on the machine.
    let least = Duration::from_secs_f64(way.delivered.bytes as f64 * 8.0 / 100e6);
    assert!(elapsed >= least.mul_f64(0.99), "{:?} took {elapsed:?}, {least:?} expected at least", way.delivered);
    assert!(way.queue_bytes_max <= 64_000, "the queue held {} bytes", way.queue_bytes_max);
    assert_eq!(way.entered.segments, way.delivered.segments + way.queue_drops.segments);
}

#[test]
fn live_link_can_be_changed_cut_and_healed() {
    let testbed = row(&[LinkConfig::default()]);
    let link = testbed.link("l0").unwrap();
    let bind = |host| {
        let local = SocketAddr::new(address(&testbed, host, false), 0);
        testbed.run_in(host, || UdpSocket::bind(local).unwrap()).unwrap()
    };
    let (near, far) = (bind("h0"), bind("h1"));
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    let mut sent = 0;
    let mut send = |number: u8| {
        near.send(&[number]).unwrap();
        sent += 1;
        settled(&testbed, sent)
    };
    let lossy = |text: &str| DirectionUpdate { loss: text.parse().ok(), ..Default::default() };

    send(0);
    link.cut();
    assert_eq!(send(1).cut_drops.segments, 1);
    link.heal();
    send(2);
    link.update(Direction::Forward, &lossy("100%"));
    assert_eq!(send(3).random_drops.segments, 1);
    link.update(Direction::Forward, &lossy("0%"));
    send(4);
    let received = [0, 2, 4].map(|_| {
        let mut byte = [0];
        far.recv(&mut byte).unwrap();
        byte[0]
    });
    assert_eq!(received, [0, 2, 4]);
}
