//! Extended block mode (GFD.20, section 3.4; U2, U5, U6, S11), block by block: what ends a transfer, what does not, and
//! how a cut one is resumed.

use crate::support;
use phoebus_proto::units::Span;
use std::fs;
use std::process::Output;
use std::time::Duration;
use support::{Serve, bytes, ok, python};

/// Runs a script with helpers for blocks.
fn extended(serve: &Serve, script: &str) -> Output {
    let before = r#"
EOF, EOD, CLOSE = 64, 8, 4
def block(s, flags, offset, data=b''): s.sendall(struct.pack('>BQQ', flags, len(data), offset) + data)
def end(s, flags, count): s.sendall(struct.pack('>BQQ', flags, 0, count))
def exactly(s, n):
    got = b''
    while len(got) < n:
        more = s.recv(n - len(got)); assert more, 'cut'; got += more
    return got
def read(s):
    flags, count, offset = struct.unpack('>BQQ', exactly(s, 17))
    return flags, offset, b'' if flags & EOF else exactly(s, count)
def session():
    f = login(); f.voidcmd('TYPE I'); f.voidcmd('MODE E'); return f
def passive(f): return ('127.0.0.1', ftplib.parse227(f.sendcmd('PASV'))[1])
def begin(f, line):
    f.putcmd(line); r = f.getresp(); assert r[:3] in ('150', '125'), r; return r
def final(f, markers=None):
    while True:
        try: r = f.getresp()
        except ftplib.Error as e: return str(e)
        if r[0] != '1': return r
        if markers is not None and r.startswith('111'): markers.append(r)
"#;
    python(serve, &[before, script].concat())
}

#[test]
fn file_is_complete_after_all_announced_ends() {
    let serve = Serve::writable();
    let script = r#"
f = session(); at = passive(f); begin(f, 'STOR x')
a, b, c = (socket.create_connection(at) for _ in range(3))
block(b, 0, 5, b'56789'); end(b, EOF | EOD, 3); block(a, EOD, 0, b'01234')
time.sleep(0.2)
block(c, 0, 10, b'ab'); end(c, EOD, 0)
r = final(f); assert r.startswith('226'), r
# The same connections, and one more, for another file.
r = begin(f, 'STOR y'); assert r.startswith('125'), r
d = socket.create_connection(at)
block(a, 0, 0, b'Y'); end(a, EOD | CLOSE, 0); end(d, EOF | EOD, 2)
r = final(f); assert r.startswith('226'), r
# One that is empty.
begin(f, 'STOR z'); end(b, EOF | EOD, 1); r = final(f); assert r.startswith('226'), r
"#;
    ok(&extended(&serve, script));
    assert_eq!(fs::read(serve.path("x")).unwrap(), b"0123456789ab");
    assert_eq!(fs::read(serve.path("y")).unwrap(), b"Y");
    assert_eq!(fs::read(serve.path("z")).unwrap(), b"");
}

#[test]
fn kept_connections_may_end_between_transfers() {
    let serve = Serve::writable();
    let script = r#"
f = session(); at = passive(f)
def put(name, connections, ended=()):
    begin(f, 'STOR ' + name); [go() for go in ended]
    for s in connections[1:]: end(s, EOD, 0)
    block(connections[0], 0, 0, name.encode()); end(connections[0], EOF | EOD, len(connections))
    r = final(f); assert r.startswith('226'), r
a, b, c, d, e = (socket.create_connection(at) for _ in range(5))
put('one', [a, b, c, d, e])
# Closed and reset before the next transfer, and while it runs.
a.close(); reset(b); time.sleep(0.2)
put('two', [e], [c.close, lambda: reset(d)])
# All connections are gone, so the sender makes new ones.
e.close(); time.sleep(0.2); begin(f, 'STOR three'); g = socket.create_connection(at)
block(g, 0, 0, b'three'); end(g, EOF | EOD, 1)
r = final(f); assert r.startswith('226'), r
# As the sender, the server makes new ones too.
open(os.path.join(dir, '../root/data'), 'wb').write(b'data' * 1000)
f = session(); listener = socket.create_server(('127.0.0.1', 0)); listener.settimeout(30)
p = listener.getsockname()[1]; f.sendcmd('OPTS RETR Parallelism=2,2,2;'); f.voidcmd('PORT 127,0,0,1,%d,%d' % (p >> 8, p & 255))
def get(connections, new):
    begin(f, 'RETR data'); connections += [listener.accept()[0] for _ in range(new)]; got, ends = {}, 0
    for s in connections:
        while True:
            flags, offset, more = read(s)
            if more: got[offset] = more
            if flags & EOD: break
    assert b''.join(got[at] for at in sorted(got)) == b'data' * 1000
    r = final(f); assert r.startswith('226'), r
    return connections
kept = get([], 2); kept[0].close(); time.sleep(0.2)
kept = get(kept[1:], 1); reset(kept[1]); time.sleep(0.2); get(kept[:1], 1)
"#;
    ok(&extended(&serve, script));
    for name in ["one", "two", "three"] {
        assert_eq!(fs::read_to_string(serve.path(name)).unwrap(), name);
    }
}

#[test]
fn upload_that_ends_badly_leaves_no_file() {
    let serve = Serve::writable();
    let script = r#"
def attempt(sends, code):
    f = session(); at = passive(f); begin(f, 'STOR x'); s = socket.create_connection(at); sends(s)
    r = final(f); assert r.startswith(code), (code, r)
    try: f.voidcmd('SIZE x'); raise SystemExit('it is there')
    except ftplib.Error as e: assert str(e).startswith('550')
    return r
attempt(lambda s: (block(s, 0, 0, b'abc'), s.close()), '426')
attempt(lambda s: (s.sendall(struct.pack('>BQQ', 0, 100, 0) + b'abc'), s.close()), '426')
attempt(lambda s: (block(s, 0, 0, b'abc'), reset(s)), '426')
attempt(lambda s: (block(s, 0, 0, b'abc'), end(s, EOF | EOD, 0)), '426')
attempt(lambda s: s.sendall(struct.pack('>BQQ', EOF | EOD, 5, 1)), '426')
attempt(lambda s: s.sendall(struct.pack('>BQQ', 0, 2**64 - 1, 2)), '426')
attempt(lambda s: s.sendall(struct.pack('>BQQ', 32, 1, 0) + b'x'), '426')
attempt(lambda s: s.sendall(struct.pack('>BQQ', 0, 1, 2**63) + b'x'), '550')
r = attempt(lambda s: (block(s, 0, 5, b'abc'), end(s, EOF | EOD, 1)), '451'); assert '5 of 8' in r, r
# More or less than ALLO announced.
def allocated(n):
    f = session(); f.voidcmd('ALLO %d' % n); at = passive(f); begin(f, 'STOR x'); s = socket.create_connection(at)
    # Immediately: bytes beyond the announced size are rejected before the end of the connection.
    s.sendall(struct.pack('>BQQ', 0, 3, 0) + b'abc' + struct.pack('>BQQ', EOF | EOD, 0, 1)); return final(f)
assert allocated(4).startswith('451') and allocated(2).startswith('550'), (allocated(4), allocated(2))
assert allocated(3).startswith('226')
# The sender connects.
f = session(); passive(f); refused(f, 'RETR x', '425'); refused(f, 'STOR x', '425')
f.voidcmd('PORT 127,0,0,1,200,0'); refused(f, 'STOR x', '425')
"#;
    ok(&extended(&serve, script));
    assert_eq!(fs::read(serve.path("x")).unwrap(), b"abc");
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn requested_number_of_connections_carries_a_file() {
    let serve = Serve::writable();
    let content = bytes(9_000_001);
    fs::write(serve.path("data"), &content).unwrap();
    fs::write(serve.local().join("data"), &content).unwrap();
    let script = r#"
import threading
data = open(os.path.join(dir, 'data'), 'rb').read()
f = session(); listener = socket.create_server(('127.0.0.1', 0)); listener.settimeout(30)
def take(connections, n):
    while len(connections) < n: connections.append(listener.accept()[0])
def receive(connections):
    got, ends, lock = {}, [], threading.Lock()
    def one(s):
        while True:
            flags, offset, bytes = read(s)
            with lock:
                if bytes: got[offset] = bytes
                if flags & EOD: ends.append((flags, offset)); return
    threads = [threading.Thread(target=one, args=[s]) for s in connections]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert sorted(ends) == [(8, 0)] * (len(connections) - 1) + [(72, len(connections))], ends
    return got
f.voidcmd('OPTS RETR Parallelism=3,3,3;'); p = listener.getsockname()[1]; f.voidcmd('PORT 127,0,0,1,%d,%d' % (p >> 8, p & 255))
begin(f, 'RETR data'); connections = []; take(connections, 3)
got = receive(connections); assert b''.join(got[at] for at in sorted(got)) == data
r = final(f); assert r.startswith('226'), r
# The connections are reused for a part of a file, whose offsets begin at 0.
r = begin(f, 'ERET P 1000000 5000000 data'); assert r.startswith('125'), r
got = receive(connections); assert min(got) == 0 and b''.join(got[at] for at in sorted(got)) == data[1000000:6000000]
r = final(f); assert r.startswith('226'), r
# Ranges that the other end has are skipped.
f.sendcmd('REST 0-100,2000000-9000000')
begin(f, 'RETR data'); got = receive(connections)
assert sum(map(len, got.values())) == 1999900 + 1 and all(data[at:at + len(b)] == b for at, b in got.items())
r = final(f); assert r.startswith('226'), r
# Several stripes, each with an end of its own, and markers when they are wanted.
f.voidcmd('OPTS RETR Parallelism=1,1,1;markers=1;'); f.voidcmd('SPOR 127,0,0,1,%d,%d 127,0,0,1,%d,%d' % ((p >> 8, p & 255) * 2))
begin(f, 'RETR data'); connections = []; take(connections, 2); got, ends = {}, []
def one(s):
    while True:
        flags, offset, bytes = read(s)
        if bytes: got[offset] = bytes
        if flags & EOD: ends.append((flags, offset)); return
threads = [threading.Thread(target=one, args=[s]) for s in connections]; [t.start() for t in threads]; [t.join() for t in threads]
assert ends == [(72, 1)] * 2 and b''.join(got[at] for at in sorted(got)) == data, ends
r = f.getresp(); assert r.startswith('112') and 'Total Stripe Count: 1' in r, r
r = final(f); assert r.startswith('226'), r
"#;
    ok(&extended(&serve, script));
}

#[test]
fn cut_transfer_resumes_at_its_markers() {
    let serve = Serve::with(|config| config.data.markers = Span(Duration::from_millis(100)));
    let content = bytes(20 << 20);
    fs::write(serve.local().join("data"), &content).unwrap();
    fs::write(serve.path("x"), "old").unwrap();
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read(); half = len(data) // 2
f = session(); f.voidcmd('ALLO %d' % len(data)); at = passive(f); begin(f, 'STOR x'); s = socket.create_connection(at)
for i in range(0, half, 65536): block(s, 0, i, data[i:i + 65536])
there, markers = 0, []
while there < half:
    r = f.getresp()
    if r.startswith('111'):
        for one in r.split()[-1].split(','):
            start, stop = map(int, one.split('-')); assert start < stop <= half, r; there += stop - start; markers.append(one)
assert there == half
reset(s); r = final(f); assert r.startswith('426'), r
f.voidcmd('TYPE I'); assert f.size('x') == 3
# Restart markers for ranges that were never sent are ignored.
f = session(); f.voidcmd('ALLO %d' % len(data)); at = passive(f); f.sendcmd('REST 0-%d' % (half + 1)); refused(f, 'STOR x', '554')
f = session(); f.voidcmd('ALLO %d' % len(data)); at = passive(f); f.sendcmd('REST ' + ','.join(markers))
begin(f, 'STOR x'); s = socket.create_connection(at)
block(s, 0, half, data[half:]); end(s, EOF | EOD, 1)
r = final(f); assert r.startswith('226'), r
"#;
    ok(&extended(&serve, script));
    assert!(fs::read(serve.path("x")).unwrap() == content);
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn new_upload_contains_nothing_of_an_earlier_one() {
    let serve = Serve::with(|config| config.data.markers = Span(Duration::from_millis(100)));
    let script = r#"
size = 17 << 20
f = session(); f.voidcmd('ALLO %d' % size); at = passive(f); begin(f, 'STOR x'); s = socket.create_connection(at)
block(s, 0, 0, b'a' * (1 << 20))
while not f.getresp().startswith('111'): pass
reset(s); assert final(f).startswith('426')
f = session(); f.voidcmd('ALLO %d' % size); at = passive(f); begin(f, 'STOR x'); s = socket.create_connection(at)
block(s, 0, 0, b'b' * size); end(s, EOF | EOD, 1); r = final(f); assert r.startswith('226'), r
"#;
    ok(&extended(&serve, script));
    assert!(fs::read(serve.path("x")).unwrap() == vec![b'b'; 17 << 20]);
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn partial_stores_land_at_their_offsets() {
    let serve = Serve::writable();
    fs::write(serve.path("x"), "0123456789").unwrap();
    let script = r#"
f = session(); at = passive(f)
def put(line, offset, data):
    begin(f, line); block(s, 0, offset, data); end(s, EOF | EOD, 1); r = final(f); assert r.startswith('226'), r
s = socket.create_connection(at)
put('ESTO A 3 x', 1, b'EF'); put('ESTO A 9 x', 0, b'9ab'); put('ESTO A 0 new', 0, b'new'); put('ESTO A 2 hole', 0, b'x')
refused(f, 'APPE x', '504')
"#;
    ok(&extended(&serve, script));
    assert_eq!(fs::read(serve.path("x")).unwrap(), b"0123EF6789ab");
    assert_eq!(fs::read(serve.path("new")).unwrap(), b"new");
    assert_eq!(fs::read(serve.path("hole")).unwrap(), b"\0\0x");
}
