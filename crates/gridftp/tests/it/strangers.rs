//! Data connections to which anybody may connect: strangers do not affect the transfer.

use crate::support;
use phoebus_gridftp::data::pinned::{OwnKey, Pinned};
use phoebus_gridftp::data::{Channel, ChannelSecurity, Mode, Peers, Settings};
use phoebus_gridftp::server::config::Data;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use support::flow::{Given, receive};
use support::{PATIENCE, Serve, bytes, ok, python};
use tokio::runtime::Runtime;
use tokio::time::timeout;

async fn send(channel: &Channel, mode: Mode, content: &[u8]) -> u64 {
    let (flow, moved) = (Given::of(content, 64 << 10, true), Arc::default());
    timeout(PATIENCE, channel.send(mode, 3, flow, &moved)).await.unwrap().unwrap()
}

/// Strangers, who stay connected until they are dropped.
fn strangers(at: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut all: Vec<_> = (0..count).map(|_| TcpStream::connect(at).unwrap()).collect();
    // One closes at once, the last may send something else, and the others stay silent.
    drop(TcpStream::connect(at).unwrap());
    all.push(TcpStream::connect(at).unwrap());
    all
}

#[test]
fn strangers_do_not_delay_a_transfer() {
    let runtime = Runtime::new().unwrap();
    let _on = runtime.enter();
    let (own, theirs) = (OwnKey::new().unwrap(), OwnKey::new().unwrap());
    let content = bytes(1_345_679);
    for guarded in [true, false] {
        let settings = |own: &OwnKey, pin| Settings {
            security: guarded.then(|| ChannelSecurity::Pinned(Pinned::new(own, pin))),
            from: Peers::Anyone,
            // Longer than the test, so that no time-out ends it.
            reply_timeout: 10 * PATIENCE,
            stall_timeout: 10 * PATIENCE,
            ..Settings::default()
        };
        for mode in [Mode::Stream, Mode::Extended] {
            let listens = Channel::listening(Ipv4Addr::LOCALHOST.into(), settings(&own, theirs.pin())).unwrap();
            let at = listens.local_addr().unwrap();
            let mut others = strangers(at, 20);
            if guarded {
                others.last_mut().unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            }
            let connects = Channel::connecting(vec![at], settings(&theirs, own.pin()));
            let both = async {
                tokio::join!(send(&connects, mode, &content), receive(&listens, mode, Some(content.len() as u64)))
            };
            let (sent, got) = runtime.block_on(both);
            assert!(sent == content.len() as u64 && got.unwrap() == content, "{guarded} {mode:?}");
            drop(others);
            if guarded {
                // The other direction, in stream mode: a peer that does not authenticate gets nothing.
                let others = strangers(at, 20);
                let both = async {
                    tokio::join!(
                        send(&listens, Mode::Stream, &content),
                        receive(&connects, Mode::Stream, Some(content.len() as u64))
                    )
                };
                if mode == Mode::Stream {
                    let (_, got) = runtime.block_on(both);
                    assert!(got.unwrap() == content);
                }
                drop(others);
            }
        }
    }
}

#[test]
fn failure_without_a_peer_names_the_strangers() {
    let runtime = Runtime::new().unwrap();
    let _on = runtime.enter();
    let (own, theirs) = (OwnKey::new().unwrap(), OwnKey::new().unwrap());
    let settings = Settings {
        security: Some(ChannelSecurity::Pinned(Pinned::new(&own, theirs.pin()))),
        from: Peers::Anyone,
        reply_timeout: Duration::from_secs(5),
        ..Settings::default()
    };
    for mode in [Mode::Stream, Mode::Extended] {
        let listens = Channel::listening(Ipv4Addr::LOCALHOST.into(), settings.clone()).unwrap();
        let mut stranger = TcpStream::connect(listens.local_addr().unwrap()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let why = runtime.block_on(receive(&listens, mode, Some(1))).unwrap_err().to_string();
        assert!(why.contains("1 strangers did") && why.contains("not protected"), "{why}");
    }
}

#[test]
fn third_party_addresses_exclude_the_server_s_host() {
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().third_party = true);
    let script = r#"
open(os.path.join(dir, '../root/order'), 'w').write('FLUSHALL\r\n')
service = socket.create_server(('127.0.0.2', 0)); service.settimeout(0)
at = service.getsockname()[1]; high, low = divmod(at, 256)
f = login(); f.voidcmd('TYPE I')
for line in f'PORT 127,0,0,2,{high},{low}', f'EPRT |1|127.0.0.2|{at}|', f'EPRT |2|::ffff:127.0.0.2|{at}|', f'SPOR 127,0,0,2,{high},{low}':
    said = refused(f, line, '504'); assert 'third_party_to' in said, said
    refused(f, 'RETR order', '425')
try: service.accept(); raise AssertionError('the server connected')
except BlockingIOError: pass
# The client's own address is not a third party's.
own = socket.create_server(('127.0.0.1', 0)); f.sendport('127.0.0.1', own.getsockname()[1])
f.putcmd('RETR order'); assert own.accept()[0].recv(99) == b'FLUSHALL\r\n' and answer(f)[:3] == '150' and answer(f)[:3] == '226'
"#;
    ok(&python(&serve, script));
    let named = Serve::with(|config| {
        config.anonymous.as_mut().unwrap().third_party = true;
        config.data.third_party_to = toml::from_str::<Data>("third_party_to = [\"127.0.0.2\"]").unwrap().third_party_to;
    });
    let script = r#"
open(os.path.join(dir, '../root/order'), 'w').write('x')
service = socket.create_server(('127.0.0.2', 0)); high, low = divmod(service.getsockname()[1], 256)
f = login(); f.voidcmd(f'PORT 127,0,0,2,{high},{low}'); f.putcmd('RETR order')
assert service.accept()[0].recv(9) == b'x' and answer(f)[:3] == '150' and answer(f)[:3] == '226'
refused(f, f'PORT 127,0,0,3,{high},{low}', '504')
"#;
    ok(&python(&named, script));
}

#[test]
fn strangers_do_not_end_third_party_transfers() {
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().third_party = true);
    let content = bytes(3_000_001);
    fs::write(serve.local().join("data"), &content).unwrap();
    let script = r#"
EOF, EOD = 64, 8
data = open(os.path.join(dir, 'data'), 'rb').read()
f = login(); f.voidcmd('TYPE I')
def passive(): return ftplib.parse227(f.sendcmd('PASV'))
def begin(line): f.putcmd(line); r = answer(f); assert r[:3] in ('150', '125'), r
def final():
    while True:
        r = answer(f)
        if r[0] != '1': return r
def others(at):
    a, b, c = (socket.create_connection(at) for _ in range(3)); a.close(); reset(b); return c
# In stream mode: the server takes neither a silent stranger for the sender, nor one that closes before the announced
# bytes.
at = passive(); f.voidcmd('ALLO %d' % len(data)); begin('STOR stream'); silent = others(at); time.sleep(0.2)
s = socket.create_connection(at); s.sendall(data); s.close(); r = final(); assert r.startswith('226'), r
# In extended blocks, the transfer does not wait for them either.
f.voidcmd('MODE E'); at = passive(); begin('STOR blocks'); silent = others(at); time.sleep(0.2); s = [socket.create_connection(at) for _ in range(2)]
for i, o in enumerate(range(0, len(data), 100000)): b = data[o:o + 100000]; s[i % 2].sendall(struct.pack('>BQQ', 0, len(b), o) + b)
for flags, count, one in (EOD, 0, s[0]), (EOF | EOD, 2, s[1]): one.sendall(struct.pack('>BQQ', flags, 0, count))
r = final(); assert r.startswith('226'), r
# One of the connections that have begun is a stranger's. Without its end, the file is not complete.
at = passive(); begin('STOR cut'); a, b = (socket.create_connection(at) for _ in range(2))
a.sendall(struct.pack('>BQQ', 0, 3, 0) + b'abc'); b.sendall(struct.pack('>BQQ', EOF | EOD, 0, 2)); time.sleep(0.2); a.close()
r = final(); assert r.startswith('426'), r
"#;
    ok(&python(&serve, script));
    for name in ["stream", "blocks"] {
        assert!(fs::read(serve.path(name)).unwrap() == content, "{name}");
    }
    assert!(!serve.path("cut").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
}
