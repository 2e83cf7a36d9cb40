//! Message mode against Debian's libudt, in both directions: ordered and unordered, with and without a time to live
//! (S17, U9). `udtcat` only moves streams; here a socket and a clock drive the state machine directly.

use crate::support;
use phoebus_proto::control::Model;
use phoebus_proto::udt::{Arrival, Config, Connection, Endpoint, Kind, MessageOptions, Route, SendError, Transmit};
use std::collections::VecDeque;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{PATIENCE, Peer, address, libudt, pattern};

const PERIOD: u64 = 65_521;
const COUNT: u32 = 400;

/// Message `number`, the same as in `peer.cpp`.
fn message(number: u32) -> Vec<u8> {
    let (n, mut bytes) = (u64::from(number), number.to_be_bytes().to_vec());
    let (at, len) = (n * 131 % PERIOD, 4 + n * 7919 % 60_000);
    bytes.extend_from_slice(&pattern()[at as usize..(at + len - 4) as usize]);
    bytes
}

/// One end with a socket and one connection.
struct End {
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Option<Connection>,
    start: Instant,
    /// One of this many incoming packets is dropped.
    loses: u32,
    came: u32,
    to_send: VecDeque<(u32, MessageOptions)>,
    got: Vec<u32>,
}

impl End {
    fn new(ip: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        Self {
            socket,
            endpoint: Endpoint::new([7; 32]),
            connection: None,
            start: Instant::now(),
            loses: u32::MAX,
            came: 0,
            to_send: VecDeque::new(),
            got: vec![],
        }
    }

    fn config() -> Arc<Config> {
        Arc::new(Config { kind: Kind::Message, control: Arc::new(Model), ..Config::default() })
    }

    fn connect(&mut self, to: SocketAddr) {
        self.connection = Some(self.endpoint.connect(self.start.elapsed(), to, Self::config()).unwrap());
    }

    fn listen(&mut self) -> SocketAddr {
        self.endpoint.listen(Some(Self::config())).unwrap();
        self.socket.local_addr().unwrap()
    }

    fn datagram(&mut self, from: SocketAddr, bytes: &[u8]) {
        let (now, mut answer) = (self.start.elapsed(), [0; 64]);
        match self.endpoint.route(now, from, bytes, &mut answer) {
            Route::Connection(_) => {
                if let Some(connection) = &mut self.connection {
                    connection.handle(now, bytes, Arrival::Alone);
                }
            }
            Route::Incoming(incoming) => self.connection = Some(self.endpoint.accept(now, &incoming).unwrap()),
            Route::Answer(len) => drop(self.socket.send_to(&answer[..len], from).unwrap()),
            Route::Ignore => {}
        }
    }

    /// Runs until `is_done`.
    fn run(&mut self, what: &str, is_done: impl Fn(&Self, &Connection) -> bool) {
        let (mut bytes, mut buf) = ([0; 2000], vec![0; 64_000]);
        loop {
            assert!(self.start.elapsed() < PATIENCE, "{what} does not come to an end");
            if let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
                self.came += 1;
                // Packets of the handshake are not dropped.
                if self.came < 20 || !self.came.is_multiple_of(self.loses) {
                    self.datagram(from, &bytes[..len]);
                }
            }
            let now = self.start.elapsed();
            let Some(connection) = &mut self.connection else { continue };
            connection.handle_timeout(now);
            while let Some((number, options)) = self.to_send.front().filter(|_| connection.is_open()) {
                match connection.send_message(now, &message(*number), *options) {
                    Ok(()) => drop(self.to_send.pop_front()),
                    Err(error) => {
                        assert_eq!(error, SendError::Full);
                        break;
                    }
                }
            }
            while let Some(len) = connection.message_len() {
                let mut out = vec![0; len];
                connection.read_message(&mut out).unwrap();
                let number = u32::from_be_bytes(out[..4].try_into().unwrap());
                assert!(out == message(number), "{what}: message {number} was changed");
                self.got.push(number);
            }
            while let Some(Transmit { len, segment, .. }) = connection.poll_transmit(now, &mut buf) {
                for packet in buf[..len].chunks(segment) {
                    self.socket.send_to(packet, connection.remote()).unwrap();
                }
            }
            if self.connection.as_ref().is_some_and(|connection| is_done(self, connection)) {
                return;
            }
        }
    }

    /// Sends all messages, and waits until the peer has received them and closes.
    fn deliver_all(&mut self, options: MessageOptions, what: &str) {
        self.to_send = (0..COUNT).map(|number| (number, options)).collect();
        self.run(what, |end, connection| end.to_send.is_empty() && connection.closed().is_some());
    }

    /// Sends all messages, and closes when the peer's UDT has acknowledged them.
    fn deliver(&mut self, options: MessageOptions, what: &str) {
        self.to_send = (0..COUNT).map(|number| (number, options)).collect();
        self.run(what, |end, connection| end.to_send.is_empty() && connection.is_flushed());
        let now = self.start.elapsed();
        self.connection.as_mut().unwrap().close(now);
        self.run(what, |end, connection| connection.is_drained(end.start.elapsed()));
    }
}

fn peer(what: &str, role: &str, addr: SocketAddr, more: &[&str]) -> Peer {
    let mut command = Command::new(libudt());
    command.args([what, role, &addr.ip().to_string(), &addr.port().to_string(), &COUNT.to_string()]).args(more);
    Peer::start(command)
}

/// The message numbers that a receiver printed.
fn printed_numbers(peer: &mut Peer) -> Vec<u32> {
    let mut said = String::new();
    peer.stdout().read_to_string(&mut said).unwrap();
    said.lines().map(|line| line.parse().unwrap()).collect()
}

fn check(mut got: Vec<u32>, is_ordered: bool, what: &str) {
    if !is_ordered {
        got.sort_unstable();
    }
    assert!(got == (0..COUNT).collect::<Vec<_>>(), "{what}: {} messages: {got:?}", got.len());
}

#[test]
fn messages_arrive_from_libudt_whichever_side_connects() {
    for (is_ordered, loses) in [(true, u32::MAX), (true, 50), (false, 50)] {
        let order = if is_ordered { "ordered" } else { "unordered" };
        let ip = address();
        let mut end = End::new(ip);
        end.loses = loses;
        let mut libudt = peer("send-messages", "connect", end.listen(), &[order]);
        end.run("from a client", |end, _| end.got.len() as u32 == COUNT);
        check(std::mem::take(&mut end.got), is_ordered, "from a client");
        // The socket lingers until everything is acknowledged.
        end.run("from a client", |_, connection| connection.closed().is_some());
        libudt.succeeds();

        let mut libudt = peer("send-messages", "listen", SocketAddr::new(ip.into(), 0), &[order]);
        let mut end = End::new(ip);
        end.loses = loses;
        end.connect(SocketAddr::new(ip.into(), libudt.libudt_port()));
        end.run("from a server", |end, _| end.got.len() as u32 == COUNT);
        check(end.got.clone(), is_ordered, "from a server");
        end.run("from a server", |_, connection| connection.closed().is_some());
        libudt.succeeds();
    }
}

#[test]
fn messages_reach_libudt_whichever_side_connects() {
    for is_ordered in [true, false] {
        let options = MessageOptions { in_order: is_ordered, time_to_live: None };
        let ip = address();
        let mut end = End::new(ip);
        let mut libudt = peer("receive-messages", "connect", end.listen(), &[]);
        end.deliver_all(options, "to a client");
        check(printed_numbers(&mut libudt), is_ordered, "to a client");
        libudt.succeeds();

        let mut libudt = peer("receive-messages", "listen", SocketAddr::new(ip.into(), 0), &[]);
        let mut end = End::new(ip);
        end.connect(SocketAddr::new(ip.into(), libudt.libudt_port()));
        end.deliver_all(options, "to a server");
        let mut rest = printed_numbers(&mut libudt);
        check(std::mem::take(&mut rest), is_ordered, "to a server");
        libudt.succeeds();
    }
}

#[test]
fn receiver_skips_expired_messages() {
    let ip = address();
    // At 20 Mbit/s these 12 MB take 5 s, and most of the messages have expired when their turn comes.
    let mut end = End::new(ip);
    let mut libudt = peer("receive-messages", "connect", end.listen(), &[]);
    end.run("opening", |_, connection| connection.is_open());
    end.connection.as_mut().unwrap().set_rate_limit(Some(20_000_000));
    end.deliver(MessageOptions { in_order: true, time_to_live: Some(Duration::from_millis(500)) }, "to a client");
    let got = printed_numbers(&mut libudt);
    assert!(got.is_sorted() && !got.is_empty() && got.len() < COUNT as usize / 2, "{got:?}");
    libudt.succeeds();

    // The reverse direction must lose nothing: when libudt 4.11 drops an expired message, its drop request also
    // covers a packet of the next message, and libudt then skips sequence numbers that no packet ever carries, which
    // ends its connection with any receiver.
    let mut end = End::new(ip);
    let mut libudt = peer("send-messages", "connect", end.listen(), &["ordered", "60000"]);
    end.run("from a client", |end, _| end.got.len() as u32 == COUNT);
    check(std::mem::take(&mut end.got), true, "with a time to live");
    end.run("from a client", |_, connection| connection.closed().is_some());
    libudt.succeeds();
}
