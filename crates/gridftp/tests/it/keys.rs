//! Data connections between ends that have exchanged keys: the driver `quic`, and `tls` with a key (`data::pinned`).

use crate::support;
use phoebus_files::key::Key;
use phoebus_files::{TransferOptions, transfer};
use phoebus_gridftp::client::{NetStack, Options, Remote};
use phoebus_gridftp::data::pinned::{OwnKey, Pinned, quic};
use phoebus_gridftp::data::stack::parse;
use phoebus_gridftp::data::{Channel, ChannelSecurity, Error, Mode, Settings};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::address::{find_epsv, print_port};
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::gridftp::reply::{Replies, Reply};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use support::flow::{Given, receive};
use support::{PATIENCE, Serve, bytes};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// An odd number, and larger than the send buffers.
const LONG: usize = 7_345_679;

/// A control connection.
struct Control {
    stream: TcpStream,
    replies: Replies,
}

impl Control {
    fn to(serve: &Serve) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", serve.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut control = Self { stream, replies: Replies::new() };
        assert_eq!(control.next().code, 220);
        for (line, code) in [("USER anonymous", 331), ("PASS x", 230), ("TYPE I", 200)] {
            assert_eq!(control.ask(line).code, code);
        }
        control
    }

    fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.replies.take().unwrap() {
                return reply;
            }
            let mut room = [0; 4096];
            let len = self.stream.read(&mut room).unwrap();
            assert!(len > 0, "the server has gone");
            self.replies.push(&room[..len]);
        }
    }

    /// The last reply.
    fn last(&mut self) -> Reply {
        loop {
            let reply = self.next();
            if !reply.is_preliminary() {
                return reply;
            }
        }
    }

    fn ask(&mut self, line: &str) -> Reply {
        self.say(line);
        self.last()
    }

    /// Requests a stack, and returns how this end's connections are then made. `named` is the key that the server is
    /// told.
    fn stack(&mut self, driver: &'static str, more: &str, own: &OwnKey, named: Pin) -> Settings {
        let stack = if driver == "tls" { format!("tcp,tls:key={named}") } else { format!("quic:key={named}{more}") };
        let reply = self.ask(&format!("SITE SETNETSTACK {stack}"));
        let theirs = Pin::of_answer(driver, &reply).unwrap();
        between(driver, own, theirs)
    }

    fn listening(&mut self) -> SocketAddr {
        let reply = self.ask("EPSV");
        assert_eq!(reply.code, 229, "{reply}");
        (Ipv4Addr::LOCALHOST, find_epsv(&reply.text()).unwrap()).into()
    }
}

/// Makes connections from the end with the key `own` to the one with that key.
fn between(driver: &str, own: &OwnKey, theirs: Pin) -> Settings {
    let settings = Settings { reply_timeout: PATIENCE, stall_timeout: PATIENCE, ..Settings::default() };
    match driver {
        "tls" => Settings { security: Some(ChannelSecurity::Pinned(Pinned::new(own, theirs))), ..settings },
        _ => Settings { transport: quic(own, theirs).unwrap(), ..settings },
    }
}

async fn send(channel: &Channel, mode: Mode, content: &[u8], whole: bool) -> Result<u64, Error> {
    let moved = Arc::default();
    let sent = channel.send(mode, 4, Given::of(content, 256 << 10, whole), &moved);
    timeout(PATIENCE, sent).await.unwrap()
}

fn serve() -> Serve {
    Serve::writable()
}

#[test]
fn gets_and_puts_work_in_both_modes_and_directions() {
    let (serve, runtime) = (serve(), Runtime::new().unwrap());
    let _on = runtime.enter();
    for (driver, more) in [("quic", ""), ("quic", ";cc=bbr;sndbuf=4194304,rate:rate=2gbit"), ("tls", "")] {
        for len in [0, 1, LONG] {
            let (content, own, mut control) = (bytes(len), OwnKey::new().unwrap(), Control::to(&serve));
            let settings = control.stack(driver, more, &own, own.pin());
            // In stream mode, with the server as the listener and as the connecting end.
            let to = Channel::connecting(vec![control.listening()], settings.clone());
            control.say("STOR a");
            assert_eq!(runtime.block_on(send(&to, Mode::Stream, &content, true)).unwrap(), len as u64);
            assert_eq!(control.last().code, 226, "{driver} {len}");
            let to = Channel::connecting(vec![control.listening()], settings.clone());
            control.say("RETR a");
            assert!(runtime.block_on(receive(&to, Mode::Stream, None)).unwrap() == content);
            assert_eq!(control.last().code, 226);
            for put in [true, false] {
                let from = Channel::listening(Ipv4Addr::LOCALHOST.into(), settings.clone()).unwrap();
                control.ask(&format!("PORT {}", print_port(from.local_addr().unwrap()).unwrap()));
                control.say(if put { "STOR b" } else { "RETR b" });
                if put {
                    runtime.block_on(send(&from, Mode::Stream, &content, true)).unwrap();
                } else {
                    assert!(runtime.block_on(receive(&from, Mode::Stream, None)).unwrap() == content);
                }
                assert_eq!(control.last().code, 226);
            }
            // In extended blocks, over connections that are kept.
            assert_eq!(control.ask("MODE E").code, 200);
            let to = Channel::connecting(vec![control.listening()], settings.clone());
            for name in ["c", "d"] {
                control.say(&format!("STOR {name}"));
                runtime.block_on(send(&to, Mode::Extended, &content, true)).unwrap();
                assert_eq!(control.last().code, 226);
            }
            control.ask("OPTS RETR Parallelism=3,3,3;");
            let from = Channel::listening(Ipv4Addr::LOCALHOST.into(), settings).unwrap();
            control.ask(&format!("PORT {}", print_port(from.local_addr().unwrap()).unwrap()));
            for name in ["c", "d"] {
                control.say(&format!("RETR {name}"));
                assert!(runtime.block_on(receive(&from, Mode::Extended, None)).unwrap() == content);
                assert_eq!(control.last().code, 226);
            }
            for name in ["a", "b", "c", "d"] {
                assert!(fs::read(serve.path(name)).unwrap() == content, "{name}");
                fs::remove_file(serve.path(name)).unwrap();
            }
        }
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn both_ends_refuse_an_unexpected_key() {
    let (serve, runtime) = (serve(), Runtime::new().unwrap());
    let _on = runtime.enter();
    fs::write(serve.path("there"), bytes(LONG)).unwrap();
    for driver in ["quic", "tls"] {
        let (own, other) = (OwnKey::new().unwrap(), OwnKey::new().unwrap());
        // The server was told another key than this end shows.
        let mut control = Control::to(&serve);
        let settings = control.stack(driver, "", &own, other.pin());
        let to = Channel::connecting(vec![control.listening()], settings.clone());
        control.say("STOR a");
        let sent = runtime.block_on(send(&to, Mode::Stream, &bytes(1000), true));
        let said = control.last();
        assert_eq!(said.code / 100, 4, "{said}");
        assert!(said.text().contains("another key than the one that was named"), "{said}");
        assert!(driver == "tls" || sent.is_err(), "QUIC has the other end say that it has all");
        let to = Channel::connecting(vec![control.listening()], settings);
        control.say("RETR there");
        let got = runtime.block_on(receive(&to, Mode::Stream, None));
        assert!(got.is_err() && control.last().code / 100 == 4);
        // This end expects another key than the server's.
        let mut control = Control::to(&serve);
        let _ = control.stack(driver, "", &own, own.pin());
        let to = Channel::connecting(vec![control.listening()], between(driver, &own, other.pin()));
        control.say("RETR there");
        let why = runtime.block_on(receive(&to, Mode::Stream, None)).unwrap_err().to_string();
        assert!(why.contains("another key than the one that was named"), "{why}");
        assert_eq!(control.last().code / 100, 4);
    }
    assert!(!serve.path("a").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn cut_transfer_never_looks_complete() {
    let (serve, runtime) = (serve(), Runtime::new().unwrap());
    let _on = runtime.enter();
    for driver in ["quic", "tls"] {
        let (own, mut control) = (OwnKey::new().unwrap(), Control::to(&serve));
        let settings = control.stack(driver, "", &own, own.pin());
        for (mode, letter) in [(Mode::Stream, 'S'), (Mode::Extended, 'E')] {
            control.ask(&format!("MODE {letter}"));
            let to = Channel::connecting(vec![control.listening()], settings.clone());
            control.say("STOR a");
            assert!(runtime.block_on(send(&to, mode, &bytes(LONG), false)).is_err());
            assert_eq!(control.last().code, 426, "{driver} {letter}");
        }
        // The other direction, without a server that reports it.
        let theirs = OwnKey::new().unwrap();
        let from = between(driver, &own, theirs.pin());
        let from = Channel::listening(Ipv4Addr::LOCALHOST.into(), from).unwrap();
        let to = Channel::connecting(vec![from.local_addr().unwrap()], between(driver, &theirs, own.pin()));
        for mode in [Mode::Stream, Mode::Extended] {
            let content = bytes(LONG);
            let both = async { tokio::join!(send(&to, mode, &content, false), receive(&from, mode, None)) };
            let (sent, got) = runtime.block_on(both);
            assert!(sent.is_err() && got.is_err(), "{driver} {mode:?}: {got:?}");
        }
    }
    assert!(!serve.path("a").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn missing_keys_and_unlisted_stacks_are_refused() {
    let serve = serve();
    let mut control = Control::to(&serve);
    for (driver, stack) in [("quic", "quic"), ("tls", "tcp,tls:key=")] {
        let reply = control.ask(&format!("SITE SETNETSTACK {stack}"));
        let key = Pin::of_answer(driver, &reply).unwrap();
        let refused = control.ask("EPSV");
        assert!(refused.code == 503 && refused.text().contains("needs the key of the other end"), "{refused}");
        control.ask("PORT 127,0,0,1,200,200");
        assert_eq!(control.ask("LIST").code, 503);
        // The key belongs to the session, so whoever must have it first can be told first.
        let own = OwnKey::new().unwrap();
        let again = control.ask(&format!(
            "SITE SETNETSTACK {stack}{}{}",
            if driver == "quic" { ":key=" } else { "" },
            own.pin()
        ));
        assert_eq!(Pin::of_answer(driver, &again), Ok(key));
        assert_eq!(control.ask("EPSV").code, 229);
    }
    for (stack, says) in [
        ("quic:key=sha256-00", "driver quic: a key was expected"),
        ("quic:port=5", "driver quic has no option port here"),
        ("quic:cc=native", "driver quic: cc is \"native\""),
        ("tcp,quic", "driver quic has to be the lowest"),
        ("tcp,tls:key=;cert=/x", "driver tls has no option cert"),
        ("quic,tls:key=", "above quic"),
        ("tls:key=", "cannot be the lowest"),
    ] {
        let refused = control.ask(&format!("SITE SETNETSTACK {stack}"));
        assert!(refused.code == 500 && refused.text().contains(says), "{stack}: {refused}");
    }
    let plain = Serve::with(|config| config.data.drivers.truncate(1));
    let refused = Control::to(&plain).ask("SITE SETNETSTACK quic");
    assert!(refused.code == 500 && refused.text().contains("quic driver not whitelisted"), "{refused}");
}

/// A proxy between clients and the server. It counts the stacks that the server is told, and cuts connections on
/// request.
struct Relay {
    addr: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    fn to(serve: &Serve) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { addr: listener.local_addr().unwrap(), open: Arc::default(), told: Arc::default() };
        let (port, open, told) = (serve.port(), relay.open.clone(), relay.told.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
                open.lock().unwrap().push(client.try_clone().unwrap());
                let (mut replies, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = io::copy(&mut replies, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let told = told.clone();
                std::thread::spawn(move || {
                    let (mut lines, mut server, mut line) = (BufReader::new(client), server, Vec::new());
                    while lines.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                        if line.starts_with(b"SITE SETNETSTACK") {
                            told.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
                        }
                        let _ = server.write_all(&line);
                        line.clear();
                    }
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        relay
    }

    /// How often the server was told a stack, without the one that every client sends after its login.
    fn told(&self) -> usize {
        self.told.lock().unwrap().len() - self.open.lock().unwrap().len()
    }

    fn cut(&self) {
        let mut open = self.open.lock().unwrap();
        open.drain(..).for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
        self.told.lock().unwrap().clear();
    }
}

#[test]
fn servers_learn_each_others_keys_once_and_again_after_a_cut() {
    let (serves, runtime) = ([serve(), serve()], Runtime::new().unwrap());
    let content = bytes(LONG);
    fs::write(serves[0].path("x"), &content).unwrap();
    let stacks = [NetStack::tls(), NetStack::new("quic", &parse("quic").unwrap()).unwrap()];
    for (stack, streams) in stacks.into_iter().flat_map(|stack| [(stack.clone(), None), (stack, Some(2))]) {
        let relays = [Relay::to(&serves[0]), Relay::to(&serves[1])];
        runtime.block_on(async {
            let remote = async |relay: &Relay| {
                let server = Endpoint::parse(&relay.addr.to_string(), None).unwrap();
                let options = Options::new(format!("ftp://{server}"), server);
                Remote::connect(Options { stack: Some(stack.clone()), streams, ..options }).await.unwrap()
            };
            let (from, to) = (remote(&relays[0]).await, remote(&relays[1]).await);
            let key = |name: &str| Key::parse(name).unwrap();
            let copy = async |name: &str| {
                let how = TransferOptions::default();
                transfer(&from, &key("x"), &to, &key(name), &how).await?;
                assert_eq!(how.progress.bytes_between(), LONG as u64, "{:?}", to.why_by_way());
                assert!(fs::read(serves[1].path(name)).unwrap() == content);
                fs::remove_file(serves[1].path(name)).unwrap();
                Ok::<_, phoebus_files::Error>(())
            };
            copy("a").await.unwrap();
            let told = relays.each_ref().map(Relay::told);
            assert_eq!(told, [2, 1], "the one that is told first has no other's key yet");
            for name in ["b", "c"] {
                copy(name).await.unwrap();
            }
            assert_eq!(relays.each_ref().map(Relay::told), told);
            for (i, relay) in relays.iter().enumerate() {
                let before = relays[1 - i].told();
                relay.cut();
                // A client that has not noticed the cut yet tries again.
                let mut tries = 0;
                while let Err(error) = copy("d").await {
                    tries += 1;
                    assert!(error.may_pass() && tries < 5, "{error}");
                }
                copy("e").await.unwrap();
                assert!(relay.told() > 0 && relays[1 - i].told() > before);
            }
        });
    }
    assert_eq!(serves[1].hidden(), Vec::<String>::new());
}
