//! Where data connections go (RFC 959, RFC 2428, GFD.20, sections 3.3 and 5; U3, S11): IPv6, stripes and ranges of ports, with
//! the programs that people use.

use crate::support;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::gct::Gct;
use support::port::free_beside;
use support::works::works;
use support::{Serve, bytes, ok, python, run};

fn local(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn copy(arguments: &[&str]) -> Output {
    run(Command::new("globus-url-copy").env("HOME", "/nonexistent").args(arguments))
}

fn by_ipv6() -> Serve {
    Serve::with(|config| config.listen = vec!["[::1]:0".parse().unwrap()])
}

#[test]
fn curl_and_lftp_by_ipv6() {
    let serve = by_ipv6();
    let content = bytes(3 << 20);
    let (source, target) = (serve.local().join("source"), serve.local().join("target"));
    fs::write(&source, &content).unwrap();
    let curl = |arguments: &[&str]| {
        ok(&run(Command::new("curl")
            .args(["--silent", "--show-error", "--globoff", "--max-time", "60"])
            .args(arguments)))
    };
    let (from, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    for way in [&[][..], &["--ftp-port", "::1"]] {
        curl(&[way, &["-T", from, &serve.url("sent")]].concat());
        assert!(fs::read(serve.path("sent")).unwrap() == content, "put {way:?}");
        curl(&[way, &["-o", to, &serve.url("sent")]].concat());
        assert!(fs::read(&target).unwrap() == content, "get {way:?}");
        fs::remove_file(&target).unwrap();
        fs::remove_file(serve.path("sent")).unwrap();
    }
    for passive in ["yes", "no"] {
        let script = format!(
            "set net:timeout 30; set net:max-retries 1; set cmd:fail-exit yes; set ftp:passive-mode {passive}; \
             open {}; put {from} -o sent; get sent -o {to}; ls; rm sent; quit",
            serve.url("")
        );
        ok(&run(Command::new("lftp").args(["--norc", "-c", &script])));
        assert!(fs::read(&target).unwrap() == content, "passive {passive}");
        fs::remove_file(&target).unwrap();
    }
    works("curl", "phoebus serve", "anonymous", "ipv6");
    works("lftp", "phoebus serve", "anonymous", "ipv6");
}

#[test]
fn gct_client_by_ipv6() {
    let (here, there) = (by_ipv6(), by_ipv6());
    let content = bytes(10 << 20);
    let (source, target) = (here.local().join("source"), here.local().join("target"));
    fs::write(&source, &content).unwrap();
    for mode in [&["-ipv6"][..], &["-ipv6", "-p", "1"], &["-ipv6", "-p", "4"], &["-ipv6", "-fast"]] {
        ok(&copy(&[mode, &[&local(&source), &here.url("x")]].concat()));
        assert!(fs::read(here.path("x")).unwrap() == content, "put {mode:?}");
        ok(&copy(&[mode, &[&here.url("x"), &local(&target)]].concat()));
        assert!(fs::read(&target).unwrap() == content, "get {mode:?}");
        ok(&copy(&[mode, &[&here.url("x"), &there.url("y")]].concat()));
        assert!(fs::read(there.path("y")).unwrap() == content, "between servers {mode:?}");
        for made in [&target, &here.path("x"), &there.path("y")] {
            fs::remove_file(made).unwrap();
        }
    }
    works("globus-url-copy", "phoebus serve", "anonymous", "ipv6");
}

#[test]
fn commands_without_an_ipv6_form_name_their_replacement() {
    let serve = by_ipv6();
    let script = r#"
f = ftplib.FTP(timeout=30); f.connect('::1', port); f.login()
assert 'EPSV' in refused(f, 'PASV', '425')
refused(f, 'EPSV 1', '522'); refused(f, 'EPRT |2|2001:db8::1|2000|', '504'); refused(f, 'EPRT |1|127.0.0.1|2000|', '504')
refused(f, 'EPRT |2|::1|21|', '504'); refused(f, 'PORT 127,0,0,1,8,0', '504')
assert f.sendcmd('EPSV').startswith('229')
"#;
    ok(&python(&serve, script));
}

#[test]
fn gct_client_requests_stripes() {
    let (here, there, gct) = (Serve::writable(), Serve::writable(), Gct::anonymous());
    let content = bytes(20 << 20);
    let (source, target) = (here.local().join("source"), here.local().join("target"));
    fs::write(&source, &content).unwrap();
    for mode in [&["-stripe"][..], &["-stripe", "-p", "4"], &["-stripe", "-sbs", "1048576"]] {
        ok(&copy(&[mode, &[&local(&source), &here.url("x")]].concat()));
        assert!(fs::read(here.path("x")).unwrap() == content, "put {mode:?}");
        ok(&copy(&[mode, &[&here.url("x"), &local(&target)]].concat()));
        assert!(fs::read(&target).unwrap() == content, "get {mode:?}");
        let y = there.path("y");
        for (from, to) in
            [(here.url("x"), there.url("y")), (here.url("x"), gct.url(&y)), (gct.url(&here.path("x")), there.url("y"))]
        {
            ok(&copy(&[mode, &[&from, &to]].concat()));
            assert!(fs::read(&y).unwrap() == content, "{from} {to} {mode:?}");
            fs::remove_file(&y).unwrap();
        }
        fs::remove_file(&target).unwrap();
        fs::remove_file(here.path("x")).unwrap();
    }
    works("globus-url-copy", "phoebus serve", "anonymous", "stripes");
}

#[test]
fn data_ports_come_from_the_configured_range() {
    let first = free_beside(3);
    let ports = (first, first + 2);
    let serve = Serve::with(|config| config.data.ports = Some(ports));
    let script = format!(
        r#"
first, last = {ports:?}
def passive(f): return ftplib.parse227(f.sendcmd('PASV'))[1]
sessions = [login() for _ in range(3)]
taken = [passive(f) for f in sessions]
assert sorted(taken) == list(range(first, last + 1)), taken
# A further client gets no port by any command. It gets one as soon as one is free.
more = login()
for line in 'PASV', 'EPSV', 'SPAS':
    said = refused(more, line, '425'); assert str(first) in said and str(last) in said, said
def waited(act):
    # A process that another test forks holds this process's descriptors until it calls exec.
    for _ in range(600):
        try: return act()
        except ftplib.error_temp as e: assert str(e).startswith('425'), e; time.sleep(0.05)
    raise SystemExit('no port becomes free')
sessions[1].quit(); port = waited(lambda: passive(more)); assert port == taken[1], (port, taken)
# A client that asks again frees its previous port.
for _ in range(10): assert first <= waited(lambda: passive(sessions[0])) <= last
waited(lambda: more.storbinary('STOR x', io.BytesIO(b'x' * 100000)))
out = io.BytesIO(); waited(lambda: more.retrbinary('RETR x', out.write)); assert out.getvalue() == b'x' * 100000
# No port stays open after all clients have left.
for f in sessions[0], sessions[2], more: f.quit()
for p in range(first, last + 1):
    for _ in range(600):
        try: socket.create_server(('127.0.0.1', p)).close(); break
        except OSError: time.sleep(0.05)
    else: raise SystemExit('%d is not free' % p)
"#
    );
    ok(&python(&serve, &script));
    // Each transfer finds a port, although the kernel frees those of the previous one late.
    fs::write(serve.local().join("source"), bytes(100_000)).unwrap();
    for i in 0..8 {
        ok(&copy(&["-p", "2", &local(&serve.local().join("source")), &serve.url(&format!("y{i}"))]));
        assert!(fs::read(serve.path(&format!("y{i}"))).unwrap() == bytes(100_000));
    }
}
