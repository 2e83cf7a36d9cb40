//! FTP under TLS (RFC 4217) with the programs that people use: curl, lftp, Python's ftplib.

use crate::support;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::{Links, TransferOptions, transfer};
use phoebus_gridftp::client::{Login, Options, Password, Remote, Security, trusting};
use phoebus_gridftp::server::config::{Tls, User};
use phoebus_gridftp::server::{Quota, hash_password};
use phoebus_proto::endpoint::Endpoint;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use support::log;
use support::works::works;
use support::{Serve, bytes, ok, python, run};

/// A server with a certificate for `localhost`, that certificate, and a user.
fn serve(required: bool) -> (Serve, tempfile::TempDir) {
    serve_with(required, |_| {})
}

/// The same with another configuration of TLS.
fn serve_with(required: bool, change: impl FnOnce(&mut Tls)) -> (Serve, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost -keyout key.pem \
                -out cert.pem -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
    ok(&run(Command::new("openssl").args(make.split_whitespace()).current_dir(dir.path())));
    ok(&run(Command::new("chmod").args(["600", "key.pem"]).current_dir(dir.path())));
    let file = |name: &str| -> PathBuf { dir.path().join(name) };
    let serve = Serve::with(|config| {
        let root = config.anonymous.as_ref().unwrap().root.clone();
        let password = Some(hash_password(b"s3cret").unwrap());
        let user = User {
            quota: Quota::default(),
            account: None,
            name: "jane".to_owned(),
            password,
            root,
            read_only: false,
            third_party: false,
        };
        config.users = vec![user];
        let mut tls = Tls { certificate: file("cert.pem"), key: file("key.pem"), required, data_must_resume: true };
        change(&mut tls);
        config.tls = Some(tls);
    });
    (serve, dir)
}

#[test]
fn curl_and_lftp_encrypt_commands_and_data() {
    let (serve, dir) = serve(true);
    let content = bytes(3_000_001);
    let certificate = dir.path().join("cert.pem").display().to_string();
    let (source, target) = (serve.local().join("source"), serve.local().join("target"));
    fs::write(&source, &content).unwrap();
    fs::write(serve.path("source"), &content).unwrap();
    let url = |name: &str| format!("ftp://localhost:{}/{name}", serve.port());
    for version in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        // Debian 12's curl (7.88) does not speak TLS where the server connects.
        let curl = |arguments: &[&str]| {
            let mut command = Command::new("curl");
            command.args(["-sS", "--ssl-reqd", "--max-time", "60", "--cacert", &certificate, "-u", "jane:s3cret"]);
            ok(&run(command.args(version).args(arguments)))
        };
        curl(&["-o", target.to_str().unwrap(), &url("source")]);
        assert!(fs::read(&target).unwrap() == content, "{version:?}");
        curl(&["-T", source.to_str().unwrap(), &url("target")]);
        assert!(fs::read(serve.path("target")).unwrap() == content, "{version:?}");
        assert!(curl(&["--list-only", &url("")]).contains("target"));
        fs::remove_file(serve.path("target")).unwrap();
    }
    let down = serve.local().join("down");
    for passive in ["on", "off"] {
        let script = format!(
            "set net:timeout 30; set net:max-retries 1; set cmd:fail-exit yes; set ftp:ssl-force yes; \
             set ftp:ssl-protect-data yes; set ssl:ca-file {certificate}; set ftp:passive-mode {passive}; \
             open -u jane,s3cret ftp://localhost:{}; put {} -o up; get up -o {}; rm up; quit",
            serve.port(),
            source.display(),
            down.display()
        );
        ok(&run(Command::new("lftp").args(["--norc", "-c", &script])));
        assert!(fs::read(&down).unwrap() == content, "passive {passive}");
        fs::remove_file(&down).unwrap();
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("curl", "phoebus serve", "password, TLS", "get put list private");
    works("lftp", "phoebus serve", "password, TLS", "get put manage private");
}

/// `tls()` is a connection under TLS, logged in.
const TLS: &str = r#"
import ssl
context = ssl._create_unverified_context()
def tls(name='jane', password='s3cret'):
    f = Resuming(timeout=30, context=context); f.connect(host, port); f.login(name, password); return f
"#;

#[test]
fn cut_upload_under_tls_is_never_visible() {
    let (serve, _dir) = serve(true);
    let script = r#"
f = tls(); f.prot_p(); f.voidcmd('TYPE I')
f.storbinary('STOR whole', io.BytesIO(b'x' * 100000)); assert f.size('whole') == 100000
# A connection that ends without close_notify.
s = f.transfercmd('STOR cut'); s.sendall(b'x' * 100000); raw = socket.socket(fileno=s.detach()); raw.shutdown(socket.SHUT_WR)
a = answer(f); assert a.startswith('426'), a
raw.close()
# A connection that speaks no TLS.
f.prot_c(); _, p = f.makepasv(); f.voidcmd('PROT P')
assert refused(f, 'STOR cut', '425')
_, p = f.makepasv(); s = socket.create_connection((host, p)); f.putcmd('STOR cut'); s.sendall(b'this is no TLS at all, but text'); assert f.getresp().startswith('150')
a = answer(f); assert a.startswith('426') and 'not protected' in a, a
refused(f, 'SIZE cut', '550')
# The server connects, and is still TLS's server.
f.prot_p(); f.set_pasv(False); f.storbinary('STOR active', io.BytesIO(b'z' * 100000))
out = io.BytesIO(); f.retrbinary('RETR active', out.write); assert out.getvalue() == b'z' * 100000
f.set_pasv(True)
# Back in the clear, as the client requests.
f.prot_c(); f.storbinary('STOR clear', io.BytesIO(b'y')); assert f.size('clear') == 1
for line, code in [('PROT S', '536'), ('PROT E', '536'), ('AUTH TLS', '503'), ('ADAT x', '502'), ('DCAU N', '502'), ('CCC', '502')]: refused(f, line, code)
f.quit()
"#;
    ok(&python(&serve, &[TLS, script].concat()));
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn data_connections_resume_the_control_session() {
    log::keep();
    let (serve, _dir) = serve(true);
    fs::write(serve.path("secret"), bytes(100_000)).unwrap();
    let script = r#"
def versions(version): context.minimum_version = context.maximum_version = version
def final(f):
    r = answer(f)
    return answer(f) if r[0] == '1' else r
def passive(f): return (host, ftplib.parse229(f.sendcmd('EPSV'), f.sock.getpeername())[1])
for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
    versions(version); f, other = tls(), tls(); other.nlst(); f.prot_p(); f.voidcmd('TYPE I'); other.prot_p()
    # An attacker without a login, one with a TLS session of its own, and one with a session from a refused login: none
    # gets a byte, and none's bytes are taken.
    refused_with = []
    for session in None, other.sock.session, 'refused', 'refused again':
        if isinstance(session, str):
            if not refused_with: assert version == ssl.TLSVersion.TLSv1_3; continue
            session = refused_with.pop(0)
        raw = socket.create_connection(passive(f), 30); f.putcmd('RETR secret'); s = None; got = b''
        print('%s:%d' % raw.getsockname())
        try: s = context.wrap_socket(raw, server_hostname=host, session=session); got = s.recv(1000)
        except OSError: pass
        if s and s.session: refused_with.append(s.session)
        r = final(f); assert got == b'' and r.startswith('522') and 'resume' in r, (version, got, r)
        raw = socket.create_connection(passive(f), 30); f.putcmd('STOR mine'); print('%s:%d' % raw.getsockname())
        try: s = context.wrap_socket(raw, server_hostname=host, session=session); s.sendall(b'x'); s.unwrap()
        except OSError: pass
        r = final(f); assert r.startswith('522'), (version, r)
        refused(f, 'SIZE mine', '550')
    # The client itself, repeatedly and in both directions.
    for i in range(20):
        out = io.BytesIO(); f.retrbinary('RETR secret', out.write); assert len(out.getvalue()) == 100000
        f.storbinary('STOR own', io.BytesIO(out.getvalue())); assert f.size('own') == 100000
    f.quit()
"#;
    let refused = ok(&python(&serve, &[TLS, script].concat()));
    assert!(refused.lines().count() >= 8, "two versions of TLS, two strangers, both ways: {refused}");
    for from in refused.lines() {
        assert!(log::says(&["a data connection is refused", &format!("from={from} "), "resume"]), "{from}");
    }
    assert_eq!(serve.hidden(), Vec::<String>::new());
    // With that setting, the server accepts others too, for clients that cannot resume sessions.
    let (lax, _dir) = serve_with(true, |tls| tls.data_must_resume = false);
    let script = "f = ftplib.FTP_TLS(timeout=30, context=context); f.connect(host, port); f.login('jane', 's3cret'); f.prot_p()\n\
                  f.storbinary('STOR x', io.BytesIO(b'x')); assert f.nlst() == ['x']\n";
    ok(&python(&lax, &[TLS, script].concat()));
}

#[test]
fn clear_passwords_are_refused() {
    let (strict, _dir) = serve(true);
    let script = r#"
f = ftplib.FTP(timeout=30); f.connect(host, port)
assert 'AUTH TLS' in f.sendcmd('FEAT') and 'GSSAPI' not in f.sendcmd('FEAT')
for line, code in [('USER jane', '530'), ('PASS s3cret', '503'), ('PBSZ 0', '503'), ('PROT P', '503'), ('AUTH GSSAPI', '504'), ('AUTH SSL', '504')]: refused(f, line, code)
login().nlst()
try: tls(password='other'); raise SystemExit('it is in')
except ftplib.error_perm as e: assert str(e).startswith('530'), e
# Commands that an attacker on the path inserts behind AUTH are not carried out under TLS.
s = socket.create_connection((host, port), 30); s.recv(1000); s.sendall(b'AUTH TLS\r\nUSER jane\r\n')
got = b''
while True:
    more = s.recv(1000)
    if not more: break
    got += more
assert got.startswith(b'503 '), got
"#;
    ok(&python(&strict, &[TLS, script].concat()));
    let (lenient, _dir) = serve(false);
    ok(&python(&lenient, "login('jane', 's3cret').nlst()"));
}

/// Tickets cost both ends something, and most clients use at most one.
#[test]
fn clients_without_resumption_get_few_tickets() {
    let (serve, dir) = serve(true);
    let script = r#"
import subprocess
client = ['openssl', 's_client', '-connect', '%s:%d' % (host, port), '-starttls', 'ftp', '-crlf', '-tls1_3', '-ign_eof']
p = subprocess.run(client, input=b'quit\n', stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
tickets = p.stdout.count(b'New Session Ticket arrived'); assert 1 <= tickets <= 4, (tickets, p.stdout)
"#;
    ok(&python(&serve, script));
    // A client that uses each ticket once gets as many as it has data connections, all of which have to resume.
    let local = Local::new(serve.local(), Links::Anywhere).unwrap();
    let content = bytes(20 << 20);
    fs::write(serve.local().join("long"), &content).unwrap();
    let security =
        Security::Tls { config: trusting(Some(&dir.path().join("cert.pem")), None).unwrap(), implicit: false };
    let login = Login { user: Some("jane".to_owned()), password: Some(Password("s3cret".to_owned())) };
    let server = Endpoint::parse(&format!("127.0.0.1:{}", serve.port()), None).unwrap();
    let options = Options { security, login, streams: Some(32), ..Options::new("ftpes://test", server) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let remote = Remote::connect(options).await.unwrap();
        let (near, far) = (Key::parse("long").unwrap(), remote.home().join(b"long".as_slice()).unwrap());
        transfer(&local, &near, &remote, &far, &TransferOptions::default()).await.unwrap();
    });
    assert!(fs::read(serve.path("long")).unwrap() == content);
}

#[test]
fn renegotiation_within_a_session_is_refused() {
    let (serve, _dir) = serve(true);
    let script = r#"
import subprocess
client = ['openssl', 's_client', '-connect', '%s:%d' % (host, port), '-starttls', 'ftp', '-crlf', '-tls1_2']
p = subprocess.Popen(client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
p.stdin.write(b'R\n'); p.stdin.flush(); said = p.stdout.read(); p.wait()
assert b'RENEGOTIATING' in said and b'no renegotiation' in said, said
"#;
    ok(&python(&serve, script));
}
