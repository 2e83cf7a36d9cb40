//! A client that repeats one message for ever, valid or not, and never reads is disconnected in time, costs little, and
//! delays nobody else (invariant 7). The tests cover every state of a control connection, and data connections.

#[path = "../../../gateway/tests/it/support/flood.rs"]
mod flood;
mod tls;

use crate::support;
use flood::{Bounds, Sender, each, flood};
use phoebus_gridftp::server::config::{Anonymous, User};
use phoebus_gridftp::server::{Config, Quota, hash_password};
use phoebus_proto::gridftp::block::Header;
use phoebus_proto::units::Span;
use socket2::{Domain, SockRef, Socket, Type};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::{PATIENCE, Serve, bytes};

/// A login costs a hash of many rounds, and a listing as much as the directory has entries, so their processor time has
/// no common bound.
const BOUNDS: Bounds = Bounds { time: PATIENCE, taken: 24 << 20, memory: 64 << 20, processor: false };

/// A lock that lets tests run one at a time: the memory that they measure is that of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Short time-outs, so that the tests reach all of them, and limits high enough for all clients at once.
fn impatient(config: &mut Config) {
    let second = Span(Duration::from_secs(1));
    // The server hashes passwords meanwhile, and the other user, who has the same time-outs, may have to wait for a
    // processor.
    (config.limits.login, config.limits.idle) = (Span(Duration::from_secs(6)), Span(Duration::from_secs(4)));
    (config.data.reply_timeout, config.data.stall_timeout) = (second, second);
    (config.limits.failure_delay, config.limits.failure_delay_max) =
        (Span(Duration::from_millis(1)), Some(Span(Duration::from_millis(10))));
    (config.limits.per_address, config.limits.per_user, config.limits.connections) = (1000, 1000, 2000);
    config.users = vec![User {
        name: "jane".to_owned(),
        password: Some(hash_password(b"secret").unwrap()),
        root: config.anonymous.as_ref().unwrap().root.clone(),
        read_only: false,
        quota: Quota::default(),
        account: None,
        third_party: false,
    }];
}

/// The files to retrieve: one larger than all buffers, a short one, and a directory.
fn fill(serve: &Serve) {
    fs::File::create(serve.path("large")).unwrap().set_len(1 << 30).unwrap();
    fs::write(serve.path("small"), bytes(5000)).unwrap();
    fs::create_dir(serve.path("many")).unwrap();
    for i in 0..1000 {
        fs::write(serve.path(&format!("many/a file with a name of some length {i:04}")), "").unwrap();
    }
}

/// A control connection.
struct Control(BufReader<TcpStream>);

impl Control {
    /// A connection from this address of the loopback network, from which nothing was read yet.
    fn from(last: u8, serve: &Serve) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // A small buffer, so that a client that never reads blocks the server early.
        socket.set_recv_buffer_size(8192).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 3, last], 0)).into()).unwrap();
        socket.connect(&serve.addr().into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// The next reply.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            if line.as_bytes().get(3) == Some(&b' ') {
                return line;
            }
            assert!(!line.is_empty(), "the server has closed the connection");
        }
    }

    /// Sends `line`, and expects a reply that begins with `code`.
    fn say(&mut self, line: &str, code: &str) -> String {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let said = self.answer();
        assert!(said.starts_with(code), "{line}: {said}");
        said
    }

    fn greeted(serve: &Serve) -> Self {
        let mut control = Self::from(1, serve);
        assert!(control.answer().starts_with("220"));
        control
    }

    fn logged_in(mut self, user: &str, password: &str) -> Self {
        self.say(&format!("USER {user}"), "331");
        self.say(&format!("PASS {password}"), "230");
        self.say("TYPE I", "200");
        self
    }

    /// The address in the reply to PASV.
    fn passive(&mut self) -> SocketAddr {
        let said = self.say("PASV", "227");
        let numbers = said.split(['(', ')']).nth(1).unwrap();
        let numbers: Vec<u8> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
        let [a, b, c, d, high, low] = numbers[..] else { panic!("{said}") };
        SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])))
    }

    /// A data connection to there, from its own address.
    fn data(&self, at: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let own = self.0.get_ref().local_addr().unwrap().ip();
        socket.bind(&SocketAddr::new(own, 0).into()).unwrap();
        socket.connect(&at.into()).unwrap();
        TcpStream::from(socket)
    }
}

impl Sender for Control {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.get_mut().send(bytes)
    }
}

/// One of several connections that sends, while the others are kept.
struct Among<S, K> {
    sends: S,
    _kept: Vec<K>,
}

impl<S: Sender, K: Send> Sender for Among<S, K> {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.sends.send(bytes)
    }
}

/// A connection that sends a byte now and then.
struct Slow<S>(S, Instant);

impl<S: Sender> Sender for Slow<S> {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.1.elapsed() < Duration::from_millis(100) {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.1 = Instant::now();
        self.0.send(&bytes[..1])
    }
}

/// A client that reads replies, and disconnects when told to.
struct Reading(Control, Arc<AtomicBool>);

impl Sender for Reading {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.1.load(Ordering::Relaxed) {
            return Err(ErrorKind::Interrupted.into());
        }
        let stream = self.0.0.get_mut();
        stream.set_nonblocking(true)?;
        let mut room = [0; 64 << 10];
        while stream.read(&mut room).is_ok_and(|n| n > 0) {}
        stream.send(bytes)
    }
}

/// Messages to repeat, complete lines or not.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let quick = [
        "NOOP",
        "USER anonymous",
        "USER jane",
        "STAT",
        "FEAT",
        "HELP",
        "SITE HELP",
        "XYZZY",
        "",
        "ABOR",
        "REIN",
        "AUTH TLS",
        "PORT 127,0,0,1,0,9",
        "RETR large",
        "\0\0\0\0",
    ];
    // Each takes a while, and has a short reply.
    let slow =
        ["PASS wrong", "PASV", "EPSV", "CWD /many", "CKSM MD5 0 4096 large", "MKD many", "STAT /many", "MLSC /many"];
    let line = |line: &str| format!("{line}\r\n").into_bytes();
    let mut all: Vec<_> = quick.into_iter().map(|verb| (verb, line(verb))).collect();
    all.extend(slow.into_iter().map(|verb| (verb, [line(verb), line("FEAT").repeat(100)].concat())));
    all.extend([
        ("a line without end", vec![b'x'; 1000]),
        ("NUL bytes", vec![0; 1000]),
        ("Telnet's NOP", b"\xff\xf1".to_vec()),
        ("Telnet's options", b"\xff\xfd\x01".to_vec()),
        ("Telnet's IAC", b"\xff".to_vec()),
        ("no text", bytes(9999)),
    ]);
    all
}

/// Somebody elsewhere logs in, lists and reads.
fn other(serve: &Serve) {
    let mut control = Control::from(9, serve);
    assert!(control.answer().starts_with("220"));
    let mut control = control.logged_in("anonymous", "me@");
    for (line, len) in [("RETR small", 5000), ("NLST", 0)] {
        let at = control.passive();
        let mut data = control.data(at);
        data.set_read_timeout(Some(PATIENCE)).unwrap();
        control.say(line, "150");
        let mut got = Vec::new();
        data.read_to_end(&mut got).unwrap();
        assert!(got.len() >= len, "{line}: {} bytes", got.len());
        assert!(control.answer().starts_with("226"), "{line}");
    }
    control.say("QUIT", "221");
}

#[test]
fn endless_control_connections_are_ended() {
    let _turn = alone();
    let serve = Serve::with(impatient);
    fill(&serve);
    let greeted = || Control::greeted(&serve);
    let named = |user: &str| {
        let mut control = greeted();
        control.say(&format!("USER {user}"), "331");
        control
    };
    let mut floods = each("before the greeting", messages(), || Control::from(1, &serve));
    floods.extend(each("after the greeting", messages(), greeted));
    floods.extend(each("after USER", messages(), || named("anonymous")));
    floods.extend(each("after USER with a password", messages(), || named("jane")));
    floods.extend(each("after QUIT", messages(), || {
        let mut control = greeted();
        control.say("QUIT", "221");
        control
    }));
    let slow = |control| Slow(control, Instant::now());
    let line = || vec![("a line without end", vec![b'x'; 10])];
    floods.extend(each("slowly before the greeting", messages(), || slow(Control::from(1, &serve))));
    floods.extend(each("slowly after USER", messages(), || slow(named("jane"))));
    flood(floods, BOUNDS, || other(&serve));
    let anonymous = || greeted().logged_in("anonymous", "me@");
    let mut floods = each("of a user", messages(), anonymous);
    floods.extend(each("slowly of a user", line(), || slow(anonymous())));
    let of_jane = [&messages()[..4], &line()].concat();
    floods.extend(each("of a user with a password", of_jane, || greeted().logged_in("jane", "secret")));
    flood(floods, BOUNDS, || other(&serve));
}

#[test]
fn login_deadline_runs_while_the_client_reads_nothing() {
    let _turn = alone();
    let serve = Serve::with(|config| {
        impatient(config);
        config.limits.idle = Span(10 * PATIENCE);
    });
    fill(&serve);
    let floods = each("after the greeting", messages(), || Control::greeted(&serve));
    flood(floods, BOUNDS, || other(&serve));
}

#[test]
fn too_long_line_is_refused_after_the_transfer() {
    let _turn = alone();
    let serve = Serve::with(|config| {
        let minutes = Span(10 * PATIENCE);
        (config.limits.idle, config.data.reply_timeout, config.data.stall_timeout) = (minutes, minutes, minutes);
    });
    let mut control = Control::greeted(&serve).logged_in("anonymous", "me@");
    let at = control.passive();
    let mut data = control.data(at);
    // Otherwise, the server would have to know whether the client is still connected, and its end may be behind that
    // line.
    control.say("ALLO 6", "200");
    control.say("STOR x", "150");
    // Until the server has taken nothing for a while: a line, and as much as its kernel's buffers hold.
    SockRef::from(control.0.get_ref()).set_send_buffer_size(8192).unwrap();
    let (mut taken, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        match control.send(&[b'x'; 8 << 10]) {
            Ok(n) => (taken, since) = (taken + n as u64, Instant::now()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(taken < 2 << 20, "{taken} bytes of a line were taken");
    }
    control.0.get_ref().set_nonblocking(false).unwrap();
    data.write_all(b"stored").unwrap();
    drop(data);
    assert!(control.answer().starts_with("226"));
    assert!(control.answer().starts_with("500"));
    assert_eq!(fs::read(serve.path("x")).unwrap(), b"stored");
}

#[test]
fn endless_transfers_are_ended() {
    let _turn = alone();
    let serve = Serve::with(impatient);
    fill(&serve);
    let anonymous = || Control::greeted(&serve).logged_in("anonymous", "me@");
    // So many data connections, none of which is ever read from or written to.
    let silent = |lines: &[&str], count: usize| {
        let mut control = anonymous();
        for line in &lines[1..] {
            control.say(line, "200");
        }
        let at = control.passive();
        let data: Vec<TcpStream> = (0..count).map(|_| control.data(at)).collect();
        control.say(lines[0], "1");
        Among { sends: control, _kept: data }
    };
    let few = || {
        let some = ["NOOP", "STAT", "ABOR", "REIN", "RETR large", "a line without end", "Telnet's NOP", "no text"];
        messages().into_iter().filter(move |(what, _)| some.contains(what)).collect::<Vec<_>>()
    };
    let mut floods = each("while nobody reads a file", few(), || silent(&["RETR large"], 1));
    floods.extend(each("while nobody sends a file", few(), || silent(&["STOU"], 1)));
    floods.extend(each("while more connect than are to", few(), || silent(&["RETR large"], 20)));
    floods.extend(each("while nobody sends blocks", few(), || silent(&["STOU", "MODE E"], 3)));
    floods.extend(each("while a listing waits", few(), || {
        let mut control = anonymous();
        control.passive();
        control.say("MLSD /many", "150");
        control
    }));
    let slow = || Slow(silent(&["RETR large"], 1), Instant::now());
    floods.extend(each("slowly while nobody reads a file", vec![("a line without end", vec![b'x'; 10])], slow));
    flood(floods, BOUNDS, || other(&serve));
}

#[test]
fn endless_data_connections_are_ended() {
    let _turn = alone();
    let serve = Serve::with(impatient);
    fill(&serve);
    let header = |flags, count, offset| Header { flags, count, offset }.encode().to_vec();
    let bytes = vec![
        ("NUL bytes", vec![0; 1700]),
        ("empty blocks", header(0, 0, 5)),
        ("the number of ends", header(64, 0, 9)),
        ("many ends", header(64 | 8, 0, 1 << 16)),
        ("restart markers", header(16, 0, 0)),
        ("a block that is too long", header(0, u64::MAX, 1)),
        ("the same block", [header(0, 10, 0), vec![1; 10]].concat()),
    ];
    let into = |lines: &'static [&'static str]| {
        let mut control = Control::greeted(&serve).logged_in("anonymous", "me@");
        for line in &lines[1..] {
            control.say(line, "200");
        }
        let at = control.passive();
        let data = control.data(at);
        control.say(lines[0], "1");
        Among { sends: data, _kept: vec![control] }
    };
    // The same block for ever is a transfer that makes progress.
    let mut floods = each("as blocks", bytes[..6].to_vec(), || into(&["STOU", "MODE E"]));
    floods.extend(each("to one who only sends", bytes.clone(), || into(&["RETR large"])));
    floods.extend(each("to one who lists", bytes.clone(), || into(&["MLSD /many"])));
    flood(floods, BOUNDS, || other(&serve));
}

/// A client that reads its replies may continue, and the same thread still serves others.
#[test]
fn busy_client_delays_no_other() {
    let _turn = alone();
    let serve = Serve::on(1, |config| {
        impatient(config);
        config.limits.idle = Span(PATIENCE);
    });
    fill(&serve);
    let enough = Arc::new(AtomicBool::new(false));
    let reading = |control| Reading(control, enough.clone());
    let in_turn = |name: &str| messages().into_iter().filter(move |(what, _)| *what == name).collect::<Vec<_>>();
    let mut floods = Vec::new();
    for verb in ["NOOP", "XYZZY", "STAT", "ABOR"] {
        let anonymous = || reading(Control::greeted(&serve).logged_in("anonymous", "me@"));
        floods.extend(each("of a user who reads", in_turn(verb), anonymous));
        let transferring = || {
            let mut control = Control::greeted(&serve).logged_in("anonymous", "me@");
            control.passive();
            control.say("MLSD /many", "150");
            reading(control)
        };
        floods.extend(each("of a user who reads during a transfer", in_turn(verb), transferring));
    }
    let served = AtomicUsize::new(0);
    let bounds = Bounds { taken: u64::MAX, ..BOUNDS };
    flood(floods, bounds, || {
        other(&serve);
        enough.store(served.fetch_add(1, Ordering::Relaxed) >= 5, Ordering::Relaxed);
    });
}

/// A client that sends many slow commands at once lets others run in between.
#[test]
fn commands_that_take_long_delay_no_other() {
    let _turn = alone();
    let serve = Serve::on(1, |config| {
        impatient(config);
        config.data.drivers = ["tcp", "udt"].map(str::to_owned).to_vec();
    });
    fill(&serve);
    let mut busy = Control::greeted(&serve).logged_in("anonymous", "me@");
    let stream = busy.0.get_mut();
    let mut answers = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    stream.write_all("SITE SETNETSTACK udt\r\nPASV\r\n".repeat(2000).as_bytes()).unwrap();
    stream.write_all(b"MKD last\r\n").unwrap();
    other(&serve);
    assert!(!serve.path("last").exists(), "the other client was served after all these commands");
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = reader.join().unwrap();
}
