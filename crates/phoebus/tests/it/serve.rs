//! `phoebus serve` as a process: its options, its log and its end.

use crate::support;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::grid::lab::Lab;
use support::serve::{Serve, bytes, run, with_input};

/// Runs a script with the server's address as `host` and `port`, and a directory of its own as `dir`.
fn python(serve: &Serve, script: &str) -> Output {
    run(&mut python_command(serve, script))
}

/// The command for this.
fn python_command(serve: &Serve, script: &str) -> Command {
    let before = "import ftplib, io, os, sys\nhost, port, dir = sys.argv[1], int(sys.argv[2]), sys.argv[3]\n\
        def login(name='anonymous', password='me@'):\n    f = ftplib.FTP(timeout=30)\n    f.connect(host, port)\n    f.login(name, password)\n    return f\n";
    let mut command = Command::new("python3");
    command.args(["-c", &[before, script].concat(), "127.0.0.1", &serve.port().to_string()]).arg(serve.local());
    command
}

fn ok(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn users_log_in_by_password_and_see_their_own_root() {
    let mut hash = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    let hashed = with_input(hash.args(["serve", "--hash-password"]), b"s3cret word\n");
    let config = format!(
        "[limits]\nper_user = 2\n[[user]]\nname = \"jane\"\npassword = \"{}\"\nroot = \"ROOT\"\n",
        hashed.trim()
    );
    let serve = Serve::configured(&config);
    fs::write(serve.path("hers"), "hers").unwrap();
    let script = r#"
f = login('jane', 's3cret word'); assert f.nlst() == ['hers']; f.storbinary('STOR own', io.BytesIO(b'own'))
assert f.sendcmd('SITE WHOAMI') == '200 jane'
for name, password in [('jane', 'other'), ('nobody', 's3cret word'), ('anonymous', 'me@')]:
    try: login(name, password); raise SystemExit(name + ' is in')
    except ftplib.error_perm as e: assert str(e).startswith('530'), e
g = login('jane', 's3cret word')
try: login('jane', 's3cret word'); raise SystemExit('a third connection')
except ftplib.error_perm as e: assert str(e).startswith('530'), e
"#;
    ok(&python(&serve, script));
    let log = serve.log();
    assert!(log.contains("jane") && !log.contains("s3cret"), "{log}");
    // Unknown names may be passwords, so the log does not show them.
    let failed: Vec<_> = log.lines().filter(|line| line.contains(": a login failed")).collect();
    assert_eq!(failed.len(), 3, "{log}");
    for (line, user) in failed.iter().zip(["jane", "(unknown)", "(unknown)"]) {
        let who = format!("user=\"{user}\" by=\"password\"");
        assert!(line.contains(" peer=127.0.0.1:") && line.contains(&who), "{user}: {line}");
    }
}

#[test]
fn changes_are_logged_and_names_cannot_forge_lines() {
    let serve = Serve::writable();
    let script = r#"
f = login(); f.encoding = 'latin-1'
f.storbinary('STOR a"b', io.BytesIO(b'x')); f.mkd('d'); f.rename('a"b', 'd/c e\\x'); f.sendcmd('SITE CHMOD 600 d/c e\\x'); f.delete('d/c e\\x'); f.rmd('d')
try: f.rmd('gone" user="root'); raise SystemExit('it was there')
except ftplib.error_perm: pass
"#;
    ok(&python(&serve, script));
    let log = serve.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("changed")).collect();
    for (line, says) in lines.iter().zip([
        "make directory \"/d\"",
        "rename \"/a\\\"b\" to \"/d/c e",
        "set attributes of \"/d/c e",
        "remove \"/d/c e",
        "remove directory \"/d\"",
        "remove directory \"/gone\\\" user=\\\"root\"",
    ]) {
        assert!(line.contains(says) && line.contains("user=\"anonymous\""), "{says}: {line}");
    }
    assert!(lines.len() == 6 && lines[5].contains("not changed"), "{log}");
    assert!(log.contains("store \"/a\\\"b\""), "{log}");
}

#[test]
fn draining_server_lets_transfers_finish() {
    let serve = Serve::writable();
    let script = r#"
import os, signal, time
f = login(); f.voidcmd('TYPE I'); idle = login()
s = f.transfercmd('STOR x'); s.sendall(b'x' * 100000)
os.kill(int(open(os.path.join(dir, 'pid')).read()), signal.SIGTERM)
assert idle.file.readline().startswith('421')
s.sendall(b'y' * 100000); s.close()
assert f.voidresp().startswith('226'); assert f.file.readline().startswith('421')
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::metadata(serve.path("x")).unwrap().len(), 200_000);
    assert!(serve.ended().success());
}

#[test]
fn draining_server_refuses_new_transfers() {
    let serve = Serve::writable();
    let script = r#"
import os, signal, socket, time
def refused(f, line, code):
    try: raise SystemExit(f.sendcmd(line))
    except ftplib.Error as e: assert str(e).startswith(code), (line, e)
f = login(); f.voidcmd('TYPE I'); g = login(); g.voidcmd('TYPE I')
s = f.transfercmd('STOR part'); g.storbinary('STOR other', io.BytesIO(b'whole'))
s.sendall(b'x' * 100000)
os.kill(int(open(os.path.join(dir, 'pid')).read()), signal.SIGTERM)
# After the signal, the server accepts nobody.
while True:
    try: socket.create_connection((host, port), 30).close(); time.sleep(0.01)
    except ConnectionResetError: pass # It was in the queue of the listener that was closed.
    except ConnectionRefusedError: break
for line in 'RETR other', 'MLSD', 'STOR third':
    for _ in range(2):
        g.makepasv(); refused(g, line, '450')
assert g.sendcmd('CKSM MD5 0 -1 other').startswith('213'); g.rename('other', 'named')
s.close(); assert f.voidresp().startswith('226')
for c in f, g: assert c.file.readline().startswith('421')
"#;
    ok(&python(&serve, script));
    assert!(serve.path("named").exists() && serve.path("part").exists() && !serve.path("third").exists());
    assert!(serve.ended().success());
}

#[test]
fn unfinished_transfers_are_stopped_after_the_drain_time() {
    let serve = Serve::configured("[limits]\ndrain = \"1s\"\n[anonymous]\nroot = \"ROOT\"\nread_only = false\n");
    let script = r#"
import os, signal
f = login(); f.voidcmd('TYPE I')
s = f.transfercmd('STOR x'); s.sendall(b'x' * 100000)
os.kill(int(open(os.path.join(dir, 'pid')).read()), signal.SIGTERM)
for code in '426', '421':
    line = f.file.readline(); assert line.startswith(code), line
"#;
    ok(&python(&serve, script));
    support::wait_until(|| serve.hidden().is_empty(), || format!("{:?} is left", serve.hidden()));
    assert_eq!(serve.ended().code(), Some(1));
}

#[test]
fn example_configuration_is_valid_and_faults_are_named() {
    let serve = |arguments: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_phoebus")).arg("serve").args(arguments));
    // The example, with its paths in a directory of the test.
    let lab = Lab::new();
    let at = |name: &str| lab.path(name).display().to_string();
    let mut example =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/serve-dtn.toml")).unwrap();
    for (theirs, own) in [
        ("/etc/grid-security/hostcert.pem", "host.pem"),
        ("/etc/grid-security/hostkey.pem", "host.key"),
        ("/etc/grid-security/certificates", "certs"),
        ("/etc/grid-security/grid-mapfile", "grid-mapfile"),
        ("/etc/phoebus/serve.pem", "host.pem"),
        ("/etc/phoebus/serve.key", "serve.key"),
        ("/etc/phoebus/stripes.secret", "stripes.secret"),
        ("/srv/public", "public"),
        ("/srv/home/jane", "jane"),
    ] {
        assert!(example.contains(theirs), "{theirs}");
        example = example.replace(theirs, &at(own));
    }
    let example = example.replace("# [stripes]", "[stripes]").replace("# secret", "secret");
    assert!(example.contains("\nsecret = "), "{example}");
    let config = at("serve.toml");
    fs::write(&config, &example).unwrap();
    for name in ["public", "jane"] {
        fs::create_dir(lab.path(name)).unwrap();
    }
    fs::copy(lab.path("host.key"), lab.path("serve.key")).unwrap();
    fs::write(lab.path("stripes.secret"), "s".repeat(64)).unwrap();
    let mode = |name: &str, mode| fs::set_permissions(lab.path(name), fs::Permissions::from_mode(mode)).unwrap();
    mode("stripes.secret", 0o600);
    let check = || serve(&["--config", &config, "--check"]);
    assert!(ok(&check()).contains("valid"));
    // Who else can read the password hashes in the configuration.
    for (bits, who) in [(0o644, Some("everybody on this host")), (0o640, Some("its group")), (0o600, None)] {
        mode("serve.toml", bits);
        let output = check();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = who.map(|who| format!("{config}: {who} can read the password hashes in it (mode 0{bits:o})"));
        assert!(ok(&output).contains("valid") && told.is_none_or(|told| text.contains(&told)), "{text}");
        assert_eq!(text.contains(&format!("chmod 600 {config}")), who.is_some(), "{text}");
    }
    let fails = |says: &[&str]| {
        let output = check();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && says.iter().all(|says| text.contains(says)), "{says:?}: {text}");
    };
    for (name, says) in [("serve.key", "[tls]"), ("host.key", "[gsi]"), ("stripes.secret", "stripes.secret")] {
        mode(name, 0o644);
        fails(&[says, name]);
        mode(name, 0o600);
    }
    fs::remove_dir(lab.path("jane")).unwrap();
    fails(&["the root of jane", "does not exist"]);
    fs::write(lab.path("jane"), "no directory").unwrap();
    fails(&["the root of jane"]);
    fs::remove_file(lab.path("jane")).unwrap();
    fs::create_dir(lab.path("jane")).unwrap();
    // A user without permission for that directory.
    fs::write(&config, example.replace("# account = \"jane\"", "account = \"daemon\"")).unwrap();
    mode("jane", 0o700);
    fails(&["the root of jane, ", "/jane: cannot be listed: ", "ermission"]);
    fs::write(&config, example.replace("[data]", "[data]\nstall = \"0s\"")).unwrap();
    fails(&["data.stall"]);
    fs::write(&config, "[anonymous]\nroot = \"public\"\n[data]\n  stal = \"1s\"\n").unwrap();
    let one_line = String::from_utf8_lossy(&check().stderr).into_owned();
    let expected = format!("phoebus: {config}:4:3: unknown field `stal`, expected one of ");
    assert!(one_line.starts_with(&expected) && one_line.lines().count() == 1, "{one_line}");
    // The error names a key that belongs to another certificate.
    let other = ["genpkey", "-algorithm", "ed25519", "-out", &at("serve.key")];
    ok(&run(Command::new("openssl").args(other)));
    fs::write(&config, &example).unwrap();
    fails(&["[tls]: ", "serve.key: is not the key of the certificate in "]);
    fs::copy(lab.path("host.key"), lab.path("serve.key")).unwrap();
    // A valid configuration that is probably a mistake.
    let clear = example.replace("[tls]", "[tls]\nrequired = false");
    fs::write(&config, clear).unwrap();
    let output = check();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.starts_with("phoebus: tls.required is false: users may log in"), "{text}");
    for (arguments, says) in [
        (&["--check"][..], "--root DIR with --anonymous"),
        (&["--root", "/gone", "--anonymous"], "/gone does not exist"),
        (&["--config", "/gone.toml"], "cannot read /gone.toml"),
    ] {
        let output = serve(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(says), "{arguments:?}: {text}");
    }
}

/// Only between servers: the toolkit's client does not restart its own puts and gets, with the toolkit's own server
/// neither.
#[test]
fn gct_client_resumes_after_a_server_was_killed() {
    // So slow that much of the file is left when a marker arrives: six seconds.
    let config = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n[data]\nmarkers = \"20ms\"\n\
                  drivers = [\"tcp\", \"rate\"]\nstack = \"tcp,rate:rate=25mbit\"\n";
    let (mut source, mut target) = (Serve::that_comes_back(config), Serve::that_comes_back(config));
    let content = bytes(40_000_001);
    fs::write(source.path("long"), &content).unwrap();
    for killed in ["target", "source"] {
        let said = source.local().join("said");
        let mut command = Command::new("globus-url-copy");
        command.env("HOME", "/nonexistent").args(["-dbg", "-p", "2", "-tcp-bs", "16384"]);
        command.args(["-rst", "-rst-interval", "1"]);
        command.args([&source.url("long"), &target.url("x")]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut copy = command.stderr(File::create(&said).unwrap()).spawn().unwrap();
        let begin = Instant::now();
        while !String::from_utf8_lossy(&fs::read(&said).unwrap()).contains("111 Range Marker") {
            assert!(copy.try_wait().unwrap().is_none() && begin.elapsed() < PATIENCE, "{killed}: no marker came");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!target.path("x").exists(), "{killed}: it is there already");
        // The client gives up if nobody listens. It is stopped until the server is back.
        let pid = rustix::process::Pid::from_child(&copy);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        match killed {
            "target" => target.killed_and_started_again(),
            _ => source.killed_and_started_again(),
        }
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        while copy.try_wait().unwrap().is_none() {
            if begin.elapsed() > 2 * PATIENCE {
                let _ = copy.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let told = || String::from_utf8_lossy(&fs::read(&said).unwrap()).into_owned();
        assert!(copy.wait().unwrap().success(), "{killed}: {}\n{}", told(), target.log());
        assert!(fs::read(target.path("x")).unwrap() == content, "{killed}");
        // The bytes that had arrived were not sent again.
        let log = target.log();
        let line = log.lines().rfind(|line| line.contains(": transferred ")).unwrap();
        let moved = line.split_once("bytes=").unwrap().1.split(' ').next().unwrap();
        assert!(moved.parse::<usize>().unwrap() < content.len(), "{killed}: {line}");
        fs::remove_file(target.path("x")).unwrap();
        assert_eq!(target.hidden(), Vec::<String>::new());
    }
}

#[test]
fn sighup_reloads_the_configuration_during_transfers() {
    let everybody = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n";
    let serve = Serve::configured(everybody);
    let file = serve.local().parent().unwrap().join("serve.toml");
    let hashed =
        with_input(Command::new(env!("CARGO_BIN_EXE_phoebus")).args(["serve", "--hash-password"]), b"secret\n");
    fs::copy(&file, serve.local().join("first")).unwrap();
    let jane = format!(
        "[limits]\nper_user = 1\n[[user]]\nname = \"jane\"\npassword = \"{}\"\nroot = \"root\"\n",
        hashed.trim()
    );
    fs::write(serve.local().join("second"), jane).unwrap();
    fs::write(serve.local().join("unusable"), "[limits]\nper_user = \"many\"\n").unwrap();
    fs::write(serve.local().join("secret"), "[[user]]\nname = \"jane\"\npassword = swordfish\nroot = \"root\"\n")
        .unwrap();
    let script = r#"
import os, shutil, signal, time
config, log = os.path.join(dir, '../serve.toml'), os.path.join(dir, '../log')
def reload(name, says):
    before = open(log).read().count(says)
    shutil.copy(os.path.join(dir, name), config)
    os.kill(int(open(os.path.join(dir, 'pid')).read()), signal.SIGHUP)
    until = time.time() + 60
    while open(log).read().count(says) == before:
        assert time.time() < until, open(log).read()
        time.sleep(0.01)
f = login(); f.voidcmd('TYPE I')
s = f.transfercmd('STOR x'); s.sendall(b'x' * 100000)
reload('second', 'was read again')
try: login(); raise SystemExit('anonymous is still let in')
except ftplib.error_perm as e: assert str(e).startswith('530'), e
g = login('jane', 'secret')
try: login('jane', 'secret'); raise SystemExit('a second connection of one')
except ftplib.error_perm as e: assert str(e).startswith('530'), e
reload('unusable', 'nothing is changed')
assert 'per_user' in open(log).read()
reload('secret', 'nothing is changed')
assert 'swordfish' not in open(log).read() and 'password' in open(log).read()
g.quit(); g = login('jane', 'secret'); g.quit()
s.sendall(b'y' * 100000); s.close(); assert f.voidresp().startswith('226')
"#;
    ok(&python(&serve, script));
    assert_eq!(fs::metadata(serve.path("x")).unwrap().len(), 200_000);
}

#[test]
fn sighup_replaces_the_tls_certificate() {
    let own = tempfile::tempdir().unwrap();
    for name in ["first", "second"] {
        let make = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
             -keyout {name}.key -out {name}.pem -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
        );
        ok(&run(Command::new("openssl").args(make.split_whitespace()).current_dir(own.path())));
    }
    for kind in ["pem", "key"] {
        fs::copy(own.path().join(format!("first.{kind}")), own.path().join(format!("used.{kind}"))).unwrap();
    }
    fs::set_permissions(own.path().join("used.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let used = own.path().join("used").display().to_string();
    let serve = Serve::configured(&format!(
        "[anonymous]\nroot = \"ROOT\"\nread_only = false\n\
         [tls]\ncertificate = \"{used}.pem\"\nkey = \"{used}.key\"\ndata_must_resume = false\n"
    ));
    let script = r#"
import shutil, signal, ssl, time
own, log = sys.argv[4], os.path.join(dir, '../log')
def tls():
    f = ftplib.FTP_TLS(timeout=30, context=ssl._create_unverified_context())
    f.connect(host, port); f.login(); f.prot_p(); f.voidcmd('TYPE I'); return f
def pem(name): return ssl.PEM_cert_to_DER_cert(open(os.path.join(own, name + '.pem')).read())
def shown(): f = tls(); seen = f.sock.getpeercert(True); f.quit(); return seen
def replace(*kinds):
    for kind in kinds: shutil.copy(os.path.join(own, 'second.' + kind), os.path.join(own, 'used.' + kind))
def reload(says):
    before = open(log).read().count(says)
    os.kill(int(open(os.path.join(dir, 'pid')).read()), signal.SIGHUP)
    until = time.time() + 60
    while open(log).read().count(says) == before:
        assert time.time() < until, open(log).read()
        time.sleep(0.01)
f = tls(); assert shown() == pem('first')
s = f.transfercmd('STOR x'); s.sendall(b'x' * 100000)
# A key that belongs to another certificate is never used.
replace('key'); reload('nothing is changed'); assert shown() == pem('first')
replace('pem'); reload('was read again'); assert shown() == pem('second')
s.sendall(b'y' * 100000); s.unwrap(); s.close(); assert f.voidresp().startswith('226')
f.storbinary('STOR y', io.BytesIO(b'y')); assert f.size('x') == 200000 and f.nlst() == ['x', 'y']
f.quit()
"#;
    let mut command = python_command(&serve, script);
    ok(&run(command.arg(own.path())));
    assert_eq!(fs::metadata(serve.path("x")).unwrap().len(), 200_000);
}

#[test]
fn signals_are_obeyed_while_the_configuration_is_read() {
    let serve = Serve::configured("[anonymous]\nroot = \"ROOT\"\n");
    let file = serve.local().parent().unwrap().join("serve.toml");
    fs::copy(&file, serve.local().join("first")).unwrap();
    let script = r#"
import os, signal, time
config, log, pid = os.path.join(dir, '../serve.toml'), os.path.join(dir, '../log'), int(open(os.path.join(dir, 'pid')).read())
def logged(says):
    until = time.time() + 60
    while says not in open(log).read():
        assert time.time() < until, open(log).read()
        time.sleep(0.01)
os.mkfifo(config + '.new'); os.rename(config + '.new', config)
def reads():
    # Opening it for writing fails until it is read.
    until = time.time() + 60
    while True:
        try: return os.open(config, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as e: assert time.time() < until, (e, open(log).read())
        time.sleep(0.01)
os.kill(pid, signal.SIGHUP); one = reads()
# The second SIGHUP waits until the first is done, and is then carried out, too.
os.kill(pid, signal.SIGHUP); logged('still being read')
os.write(one, open(os.path.join(dir, 'first'), 'rb').read()); os.close(one); logged('was read again')
two = reads(); login().quit()
os.kill(pid, signal.SIGTERM)
# The server ends, and reads no more.
until = time.time() + 60
while True:
    try: os.write(two, b'\n')
    except BrokenPipeError: break
    assert time.time() < until, open(log).read()
    time.sleep(0.01)
"#;
    ok(&python(&serve, script));
    assert!(serve.ended().success());
}

#[test]
fn lookup_of_an_account_has_a_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let (hangs, asked) = (dir.path().join("hangs"), dir.path().join("asked"));
    let [h, a] = [&hangs, &asked].map(|path| path.display());
    let id = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\n[ -e {h} ] || exec id \"$@\"\n: >{a}\nwhile [ -e {h} ]; do sleep 0.1; done\nexit 1\n"
    );
    fs::write(dir.path().join("id"), id).unwrap();
    fs::set_permissions(dir.path().join("id"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let own = run(Command::new("id").arg("-un"));
    let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
    let config =
        |limit: &str| format!("[limits]\naccounts = \"{limit}\"\n[anonymous]\nroot = \"ROOT\"\naccount = \"{own}\"\n");
    let signal = |serve: &Serve, name: &str| ok(&run(Command::new("kill").args([name, &serve.pid().to_string()])));

    // A file that cannot be read in time is an error, and nothing changes.
    let serve = Serve::configured_under(&path, &config("1s"));
    File::create(&hangs).unwrap();
    signal(&serve, "-HUP");
    support::wait_until(|| serve.log().contains("nothing is changed"), || serve.log());
    let says = format!("the account \"{own}\" of anonymous: id -u has not answered within 1s");
    assert!(serve.log().contains(&says), "{}", serve.log());
    ok(&python(&serve, "login().quit()"));
    drop(serve);

    // Until then, the server can be told to end, also before it has started completely.
    fs::remove_file(&hangs).unwrap();
    let serve = Serve::configured_under(&path, &config("1h"));
    File::create(&hangs).unwrap();
    fs::remove_file(&asked).unwrap();
    signal(&serve, "-HUP");
    support::wait_until(|| asked.exists(), || serve.log());
    signal(&serve, "-INT");
    assert!(serve.ended().success());
    fs::remove_file(&asked).unwrap();
    let file = dir.path().join("serve.toml");
    fs::write(&file, format!("listen = [\"127.0.0.1:0\"]\n{}", config("1h").replace("ROOT", "."))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["serve", "--config"]).arg(file).env("PATH", &path);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    support::wait_until(|| asked.exists(), || "id is not asked".to_owned());
    ok(&run(Command::new("kill").args(["-TERM", &child.id().to_string()])));
    support::wait_until(|| child.try_wait().unwrap().is_some(), || "it does not end".to_owned());
    assert!(child.wait().unwrap().success());
}

#[test]
fn repeated_refused_logins_do_not_fill_the_log() {
    let config = "[anonymous]\nroot = \"ROOT\"\n[limits]\nper_address = 1\n[log]\nrepeats = 3\n";
    let serve = Serve::configured(config);
    let script = r#"
import socket
f = login()
for n in range(50):
    with socket.create_connection((host, port), 30) as s: assert s.recv(99).startswith(b'421')
for n in range(10): f.cwd('/'); f.nlst()
"#;
    ok(&python(&serve, script));
    let log = serve.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines("there are too many connections"), lines("is logged in")), (3, 1), "{log}");
}

#[test]
fn repeated_refused_commands_do_not_fill_the_log() {
    let config = "[anonymous]\nroot = \"ROOT\"\nread_only = false\n[log]\nrepeats = 3\n";
    let serve = Serve::configured(config);
    let script = r#"
def fails(do):
    try: do()
    except ftplib.error_perm: return
    raise SystemExit('it is done')
f = login(); f.mkd('there')
for n in range(20):
    fails(lambda: f.retrbinary('RETR nothing', print))
    fails(lambda: f.delete('nothing'))
    fails(lambda: f.mkd('there'))
    f.storbinary('STOR x', io.BytesIO(b'x')); f.delete('x')
"#;
    ok(&python(&serve, script));
    let log = serve.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines(": not transferred"), lines(": not changed")), (3, 3), "{log}");
    assert_eq!((lines(": transferred"), lines(": changed")), (20, 21), "what was done is on record: {log}");
}

#[test]
fn log_tells_start_end_and_settings_that_need_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("serve.toml"), dir.path().join("log"));
    let write = |listen: &str, repeats: u32| {
        let anonymous = format!("[anonymous]\nroot = {:?}\n", dir.path());
        fs::write(&file, format!("listen = [\"{listen}\"]\n[log]\nrepeats = {repeats}\n{anonymous}")).unwrap();
    };
    write("127.0.0.1:0", 20);
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["serve", "--config"]).arg(&file).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    let until =
        |words: &str| support::wait_until(|| said().contains(words), || format!("no \"{words}\" in {}", said()));
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    until("listening address=127.0.0.1:");
    signal("-HUP");
    until("was read again");
    assert!(!said().contains("has changed"), "{}", said());
    write("127.0.0.2:0", 21);
    signal("-HUP");
    until("listen has changed; it takes a restart");
    until("log.repeats has changed; it takes a restart");
    signal("-TERM");
    assert!(child.wait().unwrap().success());
    assert!(said().contains("SIGTERM") && said().contains("ended"), "{}", said());
}
