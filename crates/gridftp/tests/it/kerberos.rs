//! Logins by Kerberos with curl and with a client of RFC 2228 on MIT's library. The KDC is MIT's and belongs to the
//! test. The host's configuration is neither read nor changed.
#![cfg(feature = "kerberos")]

use crate::support;
use phoebus_gridftp::server::Quota;
use phoebus_gridftp::server::config::{Kerberos, User};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::works::works;
use support::{PATIENCE, Serve, bytes, ok, python_by, run};

/// The directory of the realm, for the second run of a test.
const REALM: &str = "PHOEBUS_TEST_REALM";

/// A realm in a directory: a KDC, a keytab for `ftp/localhost`, tickets of jane, of john and of jane/admin.
struct Realm {
    dir: tempfile::TempDir,
    kdc: Child,
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

/// A program of MIT Kerberos, in the realm of `dir`.
fn tool(dir: &Path, name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
    command.env("KRB5RCACHEDIR", dir);
    command
}

impl Realm {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The KDC does not report a port that it chose, so it is given one.
        let port = support::port::free();
        let at = dir.path().display().to_string();
        let krb5 = format!(
            "[libdefaults]\ndefault_realm = PHOEBUS.TEST\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
             dns_canonicalize_hostname = false\nudp_preference_limit = 1\n\
             [realms]\nPHOEBUS.TEST = {{\n kdc = 127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost = PHOEBUS.TEST\n"
        );
        fs::write(dir.path().join("krb5.conf"), krb5).unwrap();
        let kdc = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\nPHOEBUS.TEST = {{\n database_name = {at}/principal\n key_stash_file = {at}/stash\n acl_file = {at}/acl\n}}\n\
             [logging]\nkdc = FILE:{at}/kdc.log\ndefault = FILE:{at}/kdc.log\n"
        );
        fs::write(dir.path().join("kdc.conf"), kdc).unwrap();
        ok(&run(tool(dir.path(), "kdb5_util").args(["create", "-s", "-r", "PHOEBUS.TEST", "-P", "master"])));
        for query in [
            "addprinc -pw secret jane",
            "addprinc -pw secret john",
            "addprinc -pw secret jane/admin",
            "addprinc -randkey ftp/localhost",
            &format!("ktadd -k {at}/keytab ftp/localhost"),
        ] {
            ok(&run(tool(dir.path(), "kadmin.local").args(["-q", query])));
        }
        let kdc = tool(dir.path(), "krb5kdc").arg("-n").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let realm = Self { dir, kdc };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(realm.dir.path().join("kdc.log")).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "the KDC does not answer: {log}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for (principal, file) in [("jane", "jane"), ("john", "john"), ("jane/admin", "admin")] {
            let line = format!("echo secret | kinit -c FILE:{at}/{file} {principal}");
            ok(&run(tool(realm.dir.path(), "sh").args(["-ec", &line])));
        }
        realm
    }
}

/// Runs this test again with a realm. The library finds the realm's configuration in the environment.
fn within_realm(test: &str, then: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(REALM) {
        return then(Path::new(&dir));
    }
    let realm = Realm::new();
    let dir = realm.dir.path();
    let mut again = tool(dir, std::env::current_exe().unwrap().to_str().unwrap());
    ok(&run(again.env(REALM, dir).args(["--exact", test, "--nocapture", "--test-threads=1"])));
}

fn serve(dir: &Path) -> Serve {
    Serve::with(|config| {
        let root = config.anonymous.take().unwrap().root;
        let user = |name: &str| User {
            name: name.to_owned(),
            password: None,
            root: root.clone(),
            read_only: false,
            quota: Quota::default(),
            account: None,
            third_party: false,
        };
        config.users = vec![user("jane"), user("boss")];
        config.kerberos = Some(Kerberos {
            keytab: dir.join("keytab"),
            realms: vec!["PHOEBUS.TEST".to_owned()],
            principals: [("jane/admin@PHOEBUS.TEST".to_owned(), "boss".to_owned())].into(),
        });
    })
}

/// A client of RFC 2228, on the library by way of Debian's python3-gssapi.
const CLIENT: &str = r#"
import base64, gssapi
krb5 = gssapi.OID.from_int_seq('1.2.840.113554.1.2.2')
class Client(ftplib.FTP):
    context, level = None, 'ENC'
    def agree(self):
        name = gssapi.Name('ftp@localhost', gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(name=name, mech=krb5, usage='initiate', flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.replay_detection); token = context.step()
        r = self.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
        while True:
            r = self.sendcmd('ADAT ' + base64.b64encode(token).decode()); assert r[:3] in ('235', '335'), r
            token = context.step(base64.b64decode(r[4:].removeprefix('ADAT=')))
            if r.startswith('235'): break
        assert context.complete; self.context = context
    def putline(self, line):
        if self.context:
            line = self.level + ' ' + base64.b64encode(self.context.wrap(line.encode(), self.level != 'MIC').message).decode()
        super().putline(line)
    def getmultiline(self):
        line = super().getmultiline()
        if self.context is None or not hasattr(self, 'context'): return line
        code = {'MIC': '631', 'ENC': '632', 'CONF': '633'}[self.level]; assert line.startswith(code), line
        opened = self.context.unwrap(base64.b64decode(line[4:])); assert opened.encrypted == (self.level != 'MIC')
        return opened.message.decode().rstrip('\r\n')
    def seal(self, s, b, private):
        m = self.context.wrap(b, private).message; s.sendall(struct.pack('>I', len(m)) + m)
    def take(self, s, private):
        got = b''
        while True:
            head = exactly(s, 4); opened = self.context.unwrap(exactly(s, struct.unpack('>I', head)[0])); assert opened.encrypted == private
            if not opened.message: return got
            got += opened.message
def exactly(s, n):
    got = b''
    while len(got) < n:
        more = s.recv(n - len(got)); assert more, 'cut'; got += more
    return got
def client(level='ENC', user='jane'):
    f = Client(timeout=30); f.connect('localhost', port); f.agree(); f.level = level; f.login(user, ''); f.voidcmd('TYPE I'); return f
"#;

/// Runs a script that has a client with these tickets.
fn client(dir: &Path, tickets: &str, serve: &Serve, script: &str) {
    let mut command = Command::new("/usr/bin/python3");
    command.env("KRB5CCNAME", format!("FILE:{}/{tickets}", dir.display()));
    ok(&python_by(command, serve, &[CLIENT, script].concat()));
}

/// curl's features. Debian 12's (7.88) logs in and can then say nothing more: "send: no filter connected" is its own
/// fault.
#[test]
fn curl_authenticates_by_a_ticket() {
    within_realm("kerberos::curl_authenticates_by_a_ticket", |dir| {
        let serve = serve(dir);
        let mut curl = tool(dir, "curl");
        curl.env("KRB5CCNAME", format!("FILE:{}/jane", dir.display()));
        // It then hangs for this time.
        curl.args(["-sSv", "--max-time", "20", "--krb", "private", "-u", "jane:"]);
        let output = run(curl.arg(format!("ftp://localhost:{}/x", serve.port())));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("< 235 ADAT=") && said.contains("* Authentication successful"), "{said}");
    });
}

#[test]
fn principals_map_to_configured_users() {
    within_realm("kerberos::principals_map_to_configured_users", |dir| {
        let serve = serve(dir);
        fs::write(serve.path("there"), "x").unwrap();
        for (tickets, user) in [("jane", "jane"), ("jane", ":globus-mapping:"), ("admin", "boss")] {
            let script = format!("f = client(user='{user}'); assert f.nlst() == ['there']\n");
            client(dir, tickets, &serve, &script);
        }
        for (tickets, user) in
            [("admin", "jane"), ("john", "jane"), ("john", "john"), ("jane", "boss"), ("jane", "anonymous")]
        {
            let script = format!(
                "try: client(user='{user}'); raise SystemExit('it is let in')\nexcept ftplib.Error as e: assert str(e).startswith('530'), e\n"
            );
            client(dir, tickets, &serve, &script);
        }
    });
}

/// Clients that follow RFC 2228, and the replies to those that break it.
#[test]
fn commands_and_data_have_the_negotiated_protection() {
    within_realm("kerberos::commands_and_data_have_the_negotiated_protection", |dir| {
        let serve = serve(dir);
        let content = bytes(3_000_001);
        fs::write(serve.local().join("data"), &content).unwrap();
        fs::write(serve.path("there"), &content).unwrap();
        let script = r#"
data = open(os.path.join(dir, 'data'), 'rb').read()
for level in 'ENC', 'CONF', 'MIC':
    f = client(level); assert f.pwd() == '/' and f.size('there') == len(data)
f = client()
refused(f, 'PBSZ 1000', '501'); r = f.sendcmd('PBSZ 4000000'); assert 'PBSZ=1048576' in r, r
refused(f, 'PROT E', '536'); refused(f, 'DCAU A', '502')
for letter, private in ('S', False), ('P', True):
    f.voidcmd('PROT ' + letter)
    s = f.transfercmd('RETR there'); assert f.take(s, private) == data; s.close(); r = answer(f); assert r.startswith('226'), r
    s = f.transfercmd('STOR put')
    for o in range(0, len(data), 500000): f.seal(s, data[o:o + 500000], private)
    f.seal(s, b'', private); r = answer(f); assert r.startswith('226'), r
    assert f.size('put') == len(data)
    # Messages that were altered, repeated, truncated or are too long are refused.
    def broken(act):
        s = f.transfercmd('STOR broken')
        try: act(s); s.close()
        except OSError: pass
        r = answer(f); assert r.startswith('426'), r
    def altered(s): m = bytearray(f.context.wrap(b'x' * 100, private).message); m[-1] ^= 1; s.sendall(struct.pack('>I', len(m)) + m)
    def twice(s): m = f.context.wrap(b'x' * 100, private).message; s.sendall((struct.pack('>I', len(m)) + m) * 2)
    def cut(s): f.seal(s, b'y' * 1000, private); s.sendall(struct.pack('>I', 1000) + b'z')
    def long(s): s.sendall(struct.pack('>I', 1 << 31)); time.sleep(0.1)
    for act in altered, twice, cut, long: broken(act)
broken(lambda s: f.seal(s, b'readable', False))
# An attacker on the path drops messages, reorders them, or ends the connection early.
def wrapped(b): m = f.context.wrap(b, True).message; return struct.pack('>I', len(m)) + m
def without(s): m = [wrapped(b'x' * 100) for _ in range(3)] + [wrapped(b'')]; s.sendall(m[0] + m[2] + m[3])
def without_first(s): m = [wrapped(b'x' * 100) for _ in range(2)] + [wrapped(b'')]; s.sendall(m[1] + m[2])
def swapped(s): m = [wrapped(b'x' * 100), wrapped(b'y' * 100), wrapped(b'')]; s.sendall(m[1] + m[0] + m[2])
def early(s): s.sendall(wrapped(b'x' * 100))
def nothing(s): pass
for act in without, without_first, swapped, early, nothing: broken(act)
# Commands that were sent meanwhile have sequence numbers, too. If the size is known, an unannounced end is enough.
s = f.transfercmd('STOR meanwhile'); s.sendall(wrapped(b'abc')); f.putcmd('NOOP'); f.putcmd('NOOP'); s.sendall(wrapped(b'def') + wrapped(b'')); s.close()
for wanted in '226', '200', '200': r = answer(f); assert r.startswith(wanted), r
f.voidcmd('ALLO 6'); s = f.transfercmd('STOR announced'); s.sendall(wrapped(b'abc') + wrapped(b'def')); s.close(); r = answer(f); assert r.startswith('226'), r
assert f.size('meanwhile') == f.size('announced') == 6
# A message cannot be replayed in a new frame, and data cannot be passed off as a command.
def command(m): f.sock.sendall(b'ENC ' + base64.b64encode(m) + b'\r\n')
m = f.context.wrap(b'NOOP', True).message; framed = bytes.fromhex('06092a864886f712010202') + m; assert len(framed) < 128
command(b'\x60' + bytes([len(framed)]) + framed); r = answer(f); assert r.startswith('535'), r
command(m); r = answer(f); assert r.startswith('200'), r
s = f.transfercmd('STOR broken'); m = [f.context.wrap(b'x' * 100, True).message for _ in range(2)]
s.sendall(struct.pack('>I', len(m[0])) + m[0]); command(m[1]); s.sendall(wrapped(b'')); s.close()
for wanted in '426', '500': r = answer(f); assert r.startswith(wanted), r
f.voidcmd('MODE E'); r = refused(f, 'PASV', '504'); f.voidcmd('MODE S'); f.voidcmd('PROT C')
s = f.transfercmd('RETR there'); got = b''.join(iter(lambda: s.recv(1 << 20), b'')); assert got == data; assert answer(f).startswith('226')
# A command in the clear, and one that was sent before.
f.context, context = None, f.context; r = refused(f, 'NOOP', '632'); f.context = context
f.level = 'ENC'; m = base64.b64encode(context.wrap(b'NOOP', True).message).decode()
for wanted in '200', '535':
    f.sock.sendall(('ENC %s\r\n' % m).encode()); r = f.getmultiline(); assert r.startswith(wanted), r
"#;
        client(dir, "jane", &serve, script);
        assert!(fs::read(serve.path("put")).unwrap() == content && !serve.path("broken").exists());
        assert_eq!(serve.hidden(), Vec::<String>::new());
        works("python3-gssapi", "phoebus serve", "Kerberos", "get put list safe private");
    });
}

#[test]
fn insufficient_protection_is_refused_with_the_reason() {
    within_realm("kerberos::insufficient_protection_is_refused_with_the_reason", |dir| {
        let serve = serve(dir);
        let script = r#"
name = gssapi.Name('ftp@localhost', gssapi.NameType.hostbased_service)
flag = gssapi.RequirementFlag
for flags, lacks in (flag.mutual_authentication, 'detection of messages that come twice'), (flag.replay_detection, 'mutual authentication'):
    f = ftplib.FTP(timeout=30); f.connect('localhost', port); r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
    token = gssapi.SecurityContext(name=name, mech=krb5, usage='initiate', flags=flags).step()
    r = refused(f, 'ADAT ' + base64.b64encode(token).decode(), '535'); assert lacks in r, r
    refused(f, 'USER jane', '331', '530'); refused(f, 'PASS -', '530')
"#;
        client(dir, "jane", &serve, script);
    });
}

#[test]
fn invalid_tickets_and_clear_commands_are_refused() {
    within_realm("kerberos::invalid_tickets_and_clear_commands_are_refused", |dir| {
        let serve = serve(dir);
        let script = r#"
import base64
f = ftplib.FTP(timeout=30); f.connect(host, port)
refused(f, 'ADAT ' + base64.b64encode(b'\x60\x03abc').decode(), '503')
refused(f, 'DCAU A', '502')
r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
refused(f, 'ADAT ' + base64.b64encode(b'\x60\x03abc').decode(), '535')
r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
r = refused(f, 'ADAT ' + base64.b64encode(b'\x16\x03\x01\x00\x05').decode(), '535'); assert 'Kerberos' in r, r
r = refused(f, 'PBSZ 1000000', '503'); r = refused(f, 'PROT P', '503')
r = f.sendcmd('FEAT'); assert 'AUTH GSSAPI' in r or 'GSSAPI' in r, r
"#;
        ok(&support::python(&serve, script));
    });
}

/// An attacker on the path delays a ticket, and inserts commands around it while the server checks a password.
#[test]
fn clear_commands_sent_before_a_ticket_are_discarded() {
    within_realm("kerberos::clear_commands_sent_before_a_ticket_are_discarded", |dir| {
        let serve = serve(dir);
        let script = r#"
name = gssapi.Name('ftp@localhost', gssapi.NameType.hostbased_service)
for pause in 0, 0.005, 0.02, 0.05, 0.1:
    f = Client(timeout=30); f.connect('localhost', port)
    token = gssapi.SecurityContext(name=name, mech=krb5, usage='initiate', flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.replay_detection).step()
    r = f.sendcmd('AUTH GSSAPI'); assert r.startswith('334'), r
    f.sock.sendall(b'USER nobody\r\nPASS wrong\r\n'); time.sleep(pause)
    lines = ['ADAT ' + base64.b64encode(token).decode(), 'USER jane', 'PASS -', 'MKD stolen', 'PWD']
    f.sock.sendall(''.join(line + '\r\n' for line in lines).encode())
    f.sock.shutdown(socket.SHUT_WR); said = f.file.read()
    # Lines from before the authentication end the connection. Later ones are refused under protection.
    assert '\n235' in said and ('\n533' in said or '\n632' in said), said
    assert '\n230' not in said and '\n257' not in said, said
"#;
        client(dir, "jane", &serve, script);
        assert!(!serve.path("stolen").exists());
    });
}
