//! GET and PUT (GFD.47), with every parameter.

use crate::support;
use phoebus_proto::units::Span;
use std::fs;
use std::time::Duration;
use support::{Serve, bytes, ok, python};

#[test]
fn a_transfer_takes_one_command() {
    let serve = Serve::writable();
    let content = bytes(3_000_001);
    fs::write(serve.local().join("data"), &content).unwrap();
    let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read()
f = login(); assert 'GETPUT' not in f.sendcmd('FEAT'); f.voidcmd('TYPE I')
def passive(line):
    f.putcmd(line); r = answer(f); assert r.startswith('127 PORT ('), r
    n = [int(x) for x in r[r.index('(') + 1:r.index(')')].split(',')]; s = socket.create_connection(('.'.join(map(str, n[:4])), n[4] * 256 + n[5]))
    r = answer(f); assert r.startswith('150'), r
    return s
def whole(s):
    got = b''
    while True:
        more = s.recv(1 << 20)
        if not more: return got
        got += more
s = passive('PUT path=a b;pasv;'); s.sendall(data); s.close(); assert answer(f).startswith('226')
s = passive('get pasv;path=/a b;mode=S;unknown=1;'); assert whole(s) == data and answer(f).startswith('226')
f.sendcmd('REST 1000'); s = passive('GET path=a b;pasv;'); assert whole(s) == data[1000:] and answer(f).startswith('226')
l = socket.create_server(('127.0.0.1', 0)); l.settimeout(30); p = l.getsockname()[1]; port = '127,0,0,1,%d,%d' % (p >> 8, p & 255)
f.putcmd('GET path=a b;port=%s;' % port); r = answer(f); assert r.startswith('150'), r
assert whole(l.accept()[0]) == data and answer(f).startswith('226')
f.putcmd('PUT mode=E;path=e;pasv;'); r = answer(f); assert r.startswith('127'), r
n = [int(x) for x in r[r.index('(') + 1:r.index(')')].split(',')]; s = socket.create_connection(('127.0.0.1', n[4] * 256 + n[5])); r = answer(f); assert r.startswith('150'), r
s.sendall(struct.pack('>BQQ', 0, 3, 0) + b'abc' + struct.pack('>BQQ', 72, 0, 1))
r = answer(f)
while r[0] == '1': r = answer(f)
assert r.startswith('226'), r
# Impossible requests are refused before the server listens.
for line, code in [('GET pasv;', '501'), ('GET path=a b;pasv;', '425'), ('GET path=a b;mode=B;pasv;', '504'), ('PUT path=x;pasv', '501'), ('PUT path=x;port=1,2;', '501'),
                   ('PUT path=x;port=127,0,0,2,9,9;', '504'), ('GET path=../x;mode=S;pasv;', '553'), ('GET path=a b;cksum=MD5;', '504')]: refused(f, line, code)
f.putcmd('GET path=gone;pasv;mode=S;'); r = answer(f); assert r.startswith('127'), r
r = answer(f); assert r.startswith('550'), r
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::read(serve.path("e")).unwrap(), b"abc");
    // Nobody connects.
    let late = Serve::with(|config| config.data.reply_timeout = Span(Duration::from_secs(2)));
    let script = r#"
f = login(); f.voidcmd('TYPE I'); f.putcmd('PUT path=late;pasv;')
assert answer(f).startswith('127') and answer(f).startswith('150'); r = answer(f); assert r[:3] in ('425', '426'), r
"#;
    ok(&python(&late, script));
    assert!(!late.path("late").exists());
    let reading = Serve::reading();
    ok(&python(
        &reading,
        "f = login(); refused(f, 'PUT path=x;pasv;', '550'); g = ftplib.FTP(timeout=30); g.connect(host, port); refused(g, 'GET path=x;pasv;', '530')\n",
    ));
}
