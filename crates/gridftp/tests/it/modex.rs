//! MODE X (GFD.47, section 2), with peers that speak as dCache's `ModeX.java` does. There is no other implementation, and that one was
//! read and not run.

use crate::support;
use phoebus_gridftp::data::{Channel, Mode, Settings};
use phoebus_gridftp::server::Config;
use phoebus_proto::units::Span;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use support::flow::{Given, receive};
use support::{PATIENCE, Serve, bytes, ok, python};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The other end, as dCache has it.
const PEER: &str = r#"
import threading
EOF, EOD, CLOSE = 64, 8, 4
data = open(os.path.join(dir, 'data'), 'rb').read()
def session(): f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE X'); return f
def passive(f): return ftplib.parse227(f.sendcmd('PASV'))
def begin(f, line): f.putcmd(line); r = answer(f); assert r[:3] in ('150', '125'), r
def final(f):
    while True:
        r = answer(f)
        if r[0] != '1': return r
def exactly(s, n):
    got = b''
    while len(got) < n:
        more = s.recv(n - len(got)); assert more, 'cut'; got += more
    return got
def line(s):
    got = b''
    while not got.endswith(b'\n'): got += exactly(s, 1)
    return got.split()[0]
def header(s, flags, count, offset): s.sendall(struct.pack('>BQQQ', flags, count, offset, 0))
def block(s, offset, b): header(s, 0, len(b), offset); s.sendall(b)
def sender(s, blocks, last=EOF | EOD | CLOSE):
    assert line(s) == b'READY'
    for o, b in blocks: block(s, o, b)
    header(s, last, 0, 0)
    assert line(s) == b'BYE'; s.close()
def receiver(s, got, ends, first=b'READY\n'):
    s.sendall(first)
    while True:
        flags, count, offset, tid = struct.unpack('>BQQQ', exactly(s, 25)); assert flags & ~(EOF | EOD | CLOSE) == 0 and tid == 0
        if count: got[offset] = exactly(s, count)
        if flags & EOD: s.sendall(b'BYE\n'); ends.append(flags); assert s.recv(1) == b''; s.close(); return
def side_by_side(calls):
    failed = []
    def one(call):
        try: call()
        except BaseException as e: failed.append(e)
    threads = [threading.Thread(target=one, args=(c,)) for c in calls]
    [t.start() for t in threads]; [t.join() for t in threads]; assert not failed, failed
def pieces(n, size=100000):
    all = [(o, data[o:o + size]) for o in range(0, len(data), size)]
    return [all[i::n] for i in range(n)]
def listener(f):
    l = socket.create_server(('127.0.0.1', 0)); l.settimeout(30)
    f.voidcmd('PORT 127,0,0,1,%d,%d' % divmod(l.getsockname()[1], 256)); return l
def joined(got): return b''.join(got[o] for o in sorted(got))
"#;

fn serve(change: impl FnOnce(&mut Config)) -> Serve {
    let serve = Serve::with(change);
    fs::write(serve.local().join("data"), bytes(3_000_001)).unwrap();
    fs::write(serve.path("there"), bytes(3_000_001)).unwrap();
    serve
}

#[test]
fn files_go_both_ways_whoever_connects() {
    let serve = serve(|_| {});
    let script = r#"
f = session(); assert '\n MODEX' in f.sendcmd('FEAT')
for n in 1, 3:
    f.voidcmd('OPTS RETR Parallelism=%d,%d,%d;' % (n, n, n))
    # The sender connects, and then the receiver does. All connections end with EOF, as dCache's do, or only one.
    for name, last in ('all', EOF | EOD | CLOSE), ('one', EOD | CLOSE):
        for active in False, True:
            if active: l = listener(f)
            else: at = passive(f)
            f.voidcmd('ALLO %d' % len(data)); begin(f, 'STOR put')
            s = [l.accept()[0] for _ in range(n)] if active else [socket.create_connection(at) for _ in range(n)]
            side_by_side([lambda i=i: sender(s[i], pieces(n)[i], EOF | EOD | CLOSE if i == 0 else last) for i in range(n)])
            r = final(f); assert r.startswith('226'), r
            assert f.size('put') == len(data); f.delete('put')
    for active in False, True:
        if active: l = listener(f)
        else: at = passive(f)
        begin(f, 'RETR there')
        s = [l.accept()[0] for _ in range(n)] if active else [socket.create_connection(at) for _ in range(n)]
        got, ends = {}, []; side_by_side([lambda i=i: receiver(s[i], got, ends) for i in range(n)])
        assert joined(got) == data and ends == [EOF | EOD | CLOSE] * n, ends
        r = final(f); assert r.startswith('226'), r
# One that the receiver wants no more of ends, and the others go on; the last one goes on in any case.
at = passive(f); begin(f, 'RETR there'); s = [socket.create_connection(at) for _ in range(2)]; got, ends = {}, []
s[0].sendall(b'READY\n'); first = struct.unpack('>BQQQ', exactly(s[0], 25)); got[first[2]] = exactly(s[0], first[1])
s[1].sendall(b'READY\n'); flags, count, offset, tid = struct.unpack('>BQQQ', exactly(s[1], 25)); late = flags & EOD
# All may have gone over the first by the time that the second is ready.
if late: s[1].sendall(b'BYE\n'); ends.append(flags)
else: got[offset] = exactly(s[1], count)
side_by_side([lambda: receiver(s[0], got, ends, b'CLOSE\n'), lambda: late or receiver(s[1], got, ends, b'')])
assert joined(got) == data and EOF | EOD | CLOSE in ends, ends; assert final(f).startswith('226')
at = passive(f); begin(f, 'RETR there'); got, ends = {}, []; receiver(socket.create_connection(at), got, ends, b'READY\nCLOSE\n')
assert joined(got) == data and ends == [EOF | EOD | CLOSE]; assert final(f).startswith('226')
# Parts, restarts, lists and commands of GFD.47.
def get(command):
    at = passive(f); begin(f, command); got, ends = {}, []; receiver(socket.create_connection(at), got, ends); assert final(f).startswith('226'); return got
assert joined(get('ERET P 1000 500000 there')) == data[1000:501000]
f.sendcmd('REST 0-100,1000-3000000'); got = get('RETR there'); assert sorted(got) == [100, 3000000] and joined(got) == data[100:1000] + data[3000000:]
assert b'there' in joined(get('MLSD'))
f.putcmd('PUT path=put;mode=x;pasv;'); r = answer(f); assert r.startswith('127'), r
n = [int(x) for x in r[r.index('(') + 1:r.index(')')].split(',')]; assert answer(f).startswith('150')
sender(socket.create_connection(('127.0.0.1', n[4] * 256 + n[5])), pieces(1)[0]); assert final(f).startswith('226')
# Nothing is kept for another transfer.
refused(f, 'RETR there', '425'); refused(f, 'APPE put', '504'); passive(f); f.voidcmd('TYPE A'); refused(f, 'RETR there', '504')
"#;
    ok(&python(&serve, &[PEER, script].concat()));
    assert!(fs::read(serve.path("put")).unwrap() == bytes(3_000_001));
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn what_is_cut_or_breaks_the_rules_is_never_a_file() {
    let patient = serve(|_| {});
    let script = r#"
f = session()
def store(act, count=1):
    at = passive(f); begin(f, 'STOR broken'); s = [socket.create_connection(at) for _ in range(count)]
    for one in s: assert line(one) == b'READY'
    try: act(*s)
    except OSError: pass
    for one in s: one.close()
    r = final(f); assert r.startswith('426'), (act, r)
def cut(s): header(s, 0, 100, 0); s.sendall(b'x' * 50)
def no_end(s): block(s, 0, b'x' * 50)
def in_header(s): s.sendall(b'\0' * 24)
def resets(s): block(s, 0, b'x'); reset(s)
def unknown(s): header(s, 16, 0, 0)
def beyond(s): header(s, 0, 2, (1 << 64) - 1)
def one_lacks(a, b): block(b, 0, b'x'); block(a, 1, b'y'); header(a, EOF | EOD | CLOSE, 0, 0); assert line(a) == b'BYE'; reset(b)
for act in cut, no_end, in_header, resets, unknown, beyond: store(act)
store(one_lacks, 2)
# An active receiver knows all connections: if none of them says that it was all, it was not.
l = listener(f); begin(f, 'STOR broken'); s = l.accept()[0]; sender(s, [(0, b'abc')], EOD | CLOSE); r = final(f); assert r.startswith('426') and 'EOF' in r, r
# What ALLO announced has to come.
f.voidcmd('ALLO 4'); at = passive(f); begin(f, 'STOR broken'); sender(socket.create_connection(at), [(0, b'abc')]); r = final(f); assert r[0] in '45', r
"#;
    ok(&python(&patient, &[PEER, script].concat()));
    assert!(!patient.path("broken").exists());
    assert_eq!(patient.hidden(), Vec::<String>::new());
    // Where another may come who is ready it is waited for him.
    let soon = serve(|config| config.data.patience = Span(Duration::from_secs(5)));
    let script = r#"
f = session()
def fetch(act):
    at = passive(f); begin(f, 'RETR there'); s = socket.create_connection(at)
    try: act(s)
    except OSError: pass
    r = final(f); assert r[:3] in ('425', '426'), (act, r)
def resend(s): s.sendall(b'READY\nRESEND 0\n'); time.sleep(0.1); s.recv(100000)
def talks(s): s.sendall(b'x' * 1000)
def wrong(s): s.sendall(b'HELLO\n')
def goes(s): s.sendall(b'READY\n'); exactly(s, 1000); reset(s)
def no_bye(s):
    s.sendall(b'READY\n')
    while True:
        flags, count, offset, tid = struct.unpack('>BQQQ', exactly(s, 25)); exactly(s, count)
        if flags & EOD: s.close(); return
def silent(s): pass
for act in resend, talks, wrong, goes, no_bye, silent: fetch(act)
"#;
    ok(&python(&soon, &[PEER, script].concat()));
}

#[test]
fn both_ends_are_of_one_mind() {
    let runtime = Runtime::new().unwrap();
    let _on = runtime.enter();
    let settings = Settings { patience: PATIENCE, stall: PATIENCE, streams: 4, ..Settings::default() };
    for receiver_connects in [false, true] {
        for (len, whole) in [(0, true), (1, true), (5_345_679, true), (5_345_679, false)] {
            let content = bytes(len);
            let listens = Channel::listening(Ipv4Addr::LOCALHOST.into(), settings.clone()).unwrap();
            let connects = Channel::connecting(vec![listens.local_addr().unwrap()], settings.clone());
            let (from, to) = if receiver_connects { (&listens, &connects) } else { (&connects, &listens) };
            let moved = Arc::default();
            let sends =
                timeout(PATIENCE, from.send(Mode::ExtendedBoth, 4, Given::of(&content, 64 << 10, whole), &moved));
            let (sent, got) = runtime.block_on(async { tokio::join!(sends, receive(to, Mode::ExtendedBoth, None)) });
            if whole {
                assert_eq!(sent.unwrap().unwrap(), len as u64);
                assert!(got.unwrap() == content, "{receiver_connects} {len}");
            } else {
                assert!(sent.unwrap().is_err() && got.is_err(), "{receiver_connects}: {got:?}");
            }
        }
    }
}
