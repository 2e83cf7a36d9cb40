//! Stacks of drivers on data connections (U9, U12): rates, protection, and drivers that are loaded, as clients ask for them.

use crate::support;
use phoebus_gridftp::server::config::{DriverLibrary, Tls};
use std::fs;
use std::process::Command;
use support::{Serve, bytes, ok, python, run};

fn drivers(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn sending_keeps_to_the_rate_of_the_stack() {
    let serve = Serve::with(|config| config.data.drivers = drivers(&["tcp", "rate"]));
    let content = bytes(40 << 20);
    fs::write(serve.path("x"), &content).unwrap();
    let script = r#"
import re, subprocess
f = login(); f.voidcmd('TYPE I')
def paced(streams):
    'Bytes per second that the kernel lets the server send at most on each of its data connections.'
    listener = socket.create_server(('127.0.0.1', 0)); listener.settimeout(30); p = listener.getsockname()[1]
    f.voidcmd('PORT 127,0,0,1,%d,%d' % (p >> 8, p & 255)); f.putcmd('RETR x'); r = f.getresp(); assert r[0] == '1', r
    taken = [listener.accept()[0] for _ in range(streams)]
    # The kernel has a rate as soon as something was acknowledged.
    for _ in range(600):
        shown = subprocess.run(['ss', '-tinH', 'dport = :%d' % p], capture_output=True, text=True, check=True).stdout
        rates = re.findall(r'pacing_rate (\S+?)bps(?:/(\S+?)bps)?', shown)
        if len(rates) >= streams: break
        time.sleep(0.05)
    assert len(rates) == streams, shown
    [s.close() for s in taken]; r = answer(f)
    while r[0] == '1': r = answer(f)
    return [float(most) for _, most in rates if most]
assert paced(1) == []
f.sendcmd('SITE SETNETSTACK tcp,rate:rate=80mbit'); [most] = paced(1); assert 70e6 < most <= 80e6, most
f.voidcmd('MODE E'); f.voidcmd('OPTS RETR Parallelism=4,4,4;')
all = paced(4); assert len(all) == 4 and 70e6 < sum(all) <= 80e6, all
f.sendcmd('SITE SETNETSTACK default'); assert paced(4) == []
"#;
    ok(&python(&serve, script));
}

#[test]
fn stack_names_tls_only_where_data_is_protected() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = "openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj /CN=localhost -keyout key -out cert 2>&1; chmod 600 key";
    ok(&run(Command::new("sh").args(["-eu", "-c", certificate]).current_dir(dir.path())));
    let serve = Serve::with(|config| {
        config.tls = Some(Tls {
            certificate: dir.path().join("cert"),
            key: dir.path().join("key"),
            required: false,
            data_must_resume: true,
        });
    });
    fs::write(serve.path("x"), "secret").unwrap();
    let script = r#"
import ssl
f = login(); r = refused(f, 'SITE SETNETSTACK tcp,tls', '500'); assert 'driver tls needs' in r, r
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
f = Resuming(context=context, timeout=30); f.connect(host, port); f.login()
refused(f, 'SITE SETNETSTACK tcp,tls', '500'); f.prot_p(); refused(f, 'SITE SETNETSTACK tls', '500')
r = f.sendcmd('SITE SETNETSTACK tcp,tls'); assert r.startswith('250'), r
out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == b'secret'
"#;
    ok(&python(&serve, script));
}

#[test]
fn loaded_driver_carries_data() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("tcp_driver.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/drivers/tcp/tcp_driver.c");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../net/include");
    ok(&run(Command::new("cc").args(["-shared", "-fPIC", include, "-o"]).arg(&library).arg(source)));
    let serve = Serve::with(|config| {
        config.data.drivers = drivers(&["tcp", "blocking"]);
        let options = [("send_buffer".to_owned(), "128KiB".into())].into();
        config.data.libraries = vec![DriverLibrary { name: "blocking".to_owned(), library, options }];
    });
    let content = bytes(3_000_001);
    fs::write(serve.local().join("source"), &content).unwrap();
    let script = r#"
content = open(os.path.join(dir, 'source'), 'rb').read()
f = login(); f.voidcmd('TYPE I')
for stack in 'blocking', 'blocking:send_buffer=256KiB':
    r = f.sendcmd('SITE SETNETSTACK ' + stack); assert r.startswith('250'), r
    f.storbinary('STOR x', io.BytesIO(content))
    out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == content
    f.set_pasv(False); out = io.BytesIO(); f.retrbinary('RETR x', out.write); assert out.getvalue() == content; f.set_pasv(True)
    s = f.transfercmd('STOR cut'); s.sendall(content); time.sleep(0.1); reset(s); r = answer(f); assert r.startswith('426'), r
for stack, words in ('blocking:nagle=1', 'driver blocking: it has no option nagle'), ('tcp,blocking', 'has to be the lowest'):
    r = refused(f, 'SITE SETNETSTACK ' + stack, '500'); assert words in r and '/' not in r, r
"#;
    ok(&python(&serve, script));
    assert!(fs::read(serve.path("x")).unwrap() == content && !serve.path("cut").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
}
