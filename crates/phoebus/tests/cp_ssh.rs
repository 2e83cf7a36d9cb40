//! `host:path` and `sshftp://` with a real sshd on loopback, the toolkit's server behind it and our own, and the toolkit's client with
//! our own (U1). Home directories are the test's: programs run in a mount namespace of their own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::PATIENCE;
use support::grid::ok;
use support::here::says;
use support::serve::{Serve, bytes, run};
use support::works::works;
use tempfile::TempDir;

/// The home directory of whoever runs the tests, by the system and not by the environment, as ssh has it.
fn home() -> String {
    let entry = ok(&run(Command::new("sh").args(["-c", "getent passwd $(id -u)"])));
    entry.split(':').nth(5).unwrap().to_owned()
}

/// A far side behind sshd, and a near side with what ssh needs to know.
struct Far {
    sshd: Child,
    port: u16,
    /// `home` is both sides', `near` where commands run.
    dir: TempDir,
}

impl Far {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for name in ["home/.ssh", "home/.globus", "home/bin", "near", "run"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::set_permissions(dir.path().join("home/.ssh"), fs::Permissions::from_mode(0o700)).unwrap();
        for key in ["hostkey", "home/.ssh/id"] {
            ok(&run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)])));
        }
        fs::copy(at("home/.ssh/id.pub"), at("authorized")).unwrap();
        let port = support::port::free();
        let key = fs::read_to_string(at("hostkey.pub")).unwrap();
        fs::write(at("home/.ssh/known_hosts"), format!("far {key}")).unwrap();
        // "far" and "other" are hosts by names that only this configuration knows. To the second one commands come from elsewhere than
        // data does, as they do where one host sends to another.
        let config = format!(
            "Host far\n HostName 127.0.0.1\n Port {port}\n\
             Host other\n HostName 127.0.0.2\n Port {port}\n BindAddress 127.0.0.9\n\
             Host third\n HostName 127.0.0.2\n Port {port}\n\
             Host *\n HostKeyAlias far\n IdentityFile {}\n IdentitiesOnly yes\n BatchMode yes\n\
             StrictHostKeyChecking yes\n UserKnownHostsFile {}\n",
            at("home/.ssh/id"),
            at("home/.ssh/known_hosts"),
        );
        fs::write(at("home/.ssh/config"), config).unwrap();
        fs::set_permissions(at("home/.ssh/config"), fs::Permissions::from_mode(0o600)).unwrap();
        let config = format!(
            "ListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nStrictModes no\nMaxStartups 100\nUsePAM no\nPidFile none\nSetEnv PATH={}:/usr/bin:/bin:/usr/sbin\n",
            at("hostkey"),
            at("authorized"),
            at("home/bin"),
        );
        fs::write(at("sshd_config"), config).unwrap();
        fs::create_dir_all("/run/sshd").unwrap();
        let mut command = within(dir.path(), "/usr/sbin/sshd");
        command.args(["-D", "-f", &at("sshd_config"), "-E", &at("sshd.log")]).stdin(Stdio::null());
        let sshd = command.spawn().unwrap_or_else(|error| panic!("sshd: {error}; scripts/setup installs it"));
        let start = Instant::now();
        // At one address after the other.
        while !["127.0.0.1", "127.0.0.2"].iter().all(|host| TcpStream::connect((*host, port)).is_ok()) {
            assert!(start.elapsed() < PATIENCE, "sshd does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { sshd, port, dir }
    }

    /// The same with our own program where the far side's shell finds it.
    fn with_phoebus() -> Self {
        let far = Self::new();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_phoebus"), far.home("bin/phoebus")).unwrap();
        far
    }

    fn home(&self, path: &str) -> PathBuf {
        self.dir.path().join("home").join(path)
    }

    fn near(&self, path: &str) -> PathBuf {
        self.dir.path().join("near").join(path)
    }

    /// A program for the far side to have.
    fn install(&self, path: &str, script: &str) {
        // By another process: what some other test's child still has open for writing cannot be executed.
        let mut install = Command::new("sh");
        install.args(["-c", "rm -f \"$0\" && printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(self.home(path));
        ok(&run(install.arg(script)));
    }

    fn phoebus(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = within(self.dir.path(), env!("CARGO_BIN_EXE_phoebus"));
        says(&run(command.args(arguments).current_dir(self.near("")).env("HOME", home())))
    }

    #[track_caller]
    fn does(&self, arguments: &[&str]) -> String {
        let (code, said) = self.phoebus(arguments);
        assert_eq!(code, 0, "{arguments:?}: {said}\n{}", fs::read_to_string(self.dir.path().join("sshd.log")).unwrap());
        said
    }

    #[track_caller]
    fn fails(&self, code: i32, words: &str, arguments: &[&str]) {
        let (found, said) = self.phoebus(arguments);
        assert!(found == code && said.contains(words), "{arguments:?}: {found}: {said}");
    }

    /// Files and trees there and back; gives what was said of the first.
    fn everything(&self, url: &dyn Fn(&str) -> String, modes: &[&[&str]]) -> String {
        let content = bytes(20_000_001);
        fs::write(self.near("source"), &content).unwrap();
        fs::create_dir_all(self.near("tree/deep")).unwrap();
        for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 300_000)] {
            fs::write(self.near("tree").join(name), bytes(len)).unwrap();
        }
        let mut first = None;
        for mode in modes {
            let said = self.does(&[&["cp"], *mode, &["source", &url("target")]].concat());
            first.get_or_insert(said);
            assert!(fs::read(self.home("target")).unwrap() == content, "put {mode:?}");
            self.does(&[&["cp"], *mode, &[&url("target"), "back"]].concat());
            assert!(fs::read(self.near("back")).unwrap() == content, "get {mode:?}");
            self.does(&[&["cp", "-r"], *mode, &["tree/", &url("tree")]].concat());
            self.does(&[&["cp", "-r"], *mode, &[&url("tree/"), "down"]].concat());
            for other in [self.near("down"), self.home("tree")] {
                ok(&run(Command::new("diff").arg("-r").args([&self.near("tree"), &other])));
                fs::remove_dir_all(other).unwrap();
            }
            fs::remove_file(self.near("back")).unwrap();
            assert!(self.does(&["ls", &url("")]).contains("target"));
            fs::remove_file(self.home("target")).unwrap();
        }
        first.unwrap()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

/// A program whose home directory is the test's.
fn within(dir: &Path, program: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("mount --bind \"$0\" {}; exec \"$@\"", home());
    command.args(["-m", "sh", "-euc", &script]).arg(dir.join("home")).arg(program);
    command
}

const MODES: &[&[&str]] = &[&[], &["--streams", "2"]];

#[test]
fn our_own_server_is_started_at_the_far_side() {
    let far = Far::with_phoebus();
    // Relative to the home directory, and by a name that only ssh knows.
    let said = far.everything(&|path| format!("far:{path}"), MODES);
    assert!(said.contains("commands by ssh, data under TLS"), "{said}");
    let root = far.dir.path().join("home").display().to_string();
    let said = far.everything(&|path| format!("far:{root}/{path}"), &[&["--data-auth", "none"]]);
    assert!(said.contains("data in clear"), "{said}");
    far.does(&["mkdir", "far:dir"]);
    far.does(&["cp", "source", "far:dir/"]);
    far.does(&["mv", "far:dir/source", "far:x"]);
    assert!(far.does(&["stat", "--checksum", "MD5", "far:x"]).contains("bytes: 20000001"));
    far.does(&["rm", "-r", "far:dir", "far:x"]);
    far.fails(5, "does not exist", &["cat", "far:x"]);
    // What has a colon and is no host.
    fs::write(far.near("a:b"), "here").unwrap();
    assert_eq!(far.does(&["cat", "./a:b"]), "here");
    works("phoebus cp", "phoebus serve", "SSH", "get put list manage tree sum parallel private");
}

#[test]
fn sshftp_finds_what_the_far_side_has_for_it() {
    let far = Far::new();
    let url = |path: &str| format!("sshftp://127.0.0.1:{}/~/{path}", far.port);
    far.fails(1, "the far side has no sshftp for its users", &["ls", &url("")]);
    let toolkits = "#!/bin/sh\nexec /usr/sbin/globus-gridftp-server -ssh -allow-root -anonymous-user root -data-interface 127.0.0.1 \
                    -dc-whitelist tcp,gsi,udt\n";
    far.install(".globus/sshftp", toolkits);
    let said = far.everything(&url, &[&[], &["--streams", "2"], &["--stack", "udt"]]);
    assert!(said.contains("commands by ssh, data in clear"), "{said}");
    far.fails(1, "does not carry data by tcp,tls", &["ls", "--data-protection", "private", &url("")]);
    works("phoebus cp", "globus-gridftp-server", "SSH", "get put list tree sum parallel udt");
    // Our own, by the script that the documentation has.
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sshftp");
    far.install(".globus/sshftp", &fs::read_to_string(example).unwrap());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_phoebus"), far.home("bin/phoebus")).unwrap();
    let said = far.everything(&url, MODES);
    assert!(said.contains("data under TLS"), "{said}");
}

fn report(said: &str) -> Value {
    said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_else(|| panic!("no report: {said}"))
}

#[test]
fn files_go_from_host_to_host() {
    let far = Far::with_phoebus();
    let content = bytes(20_000_001);
    fs::write(far.home("source"), &content).unwrap();
    fs::create_dir_all(far.home("tree/deep")).unwrap();
    for (name, len) in [("a", 0), ("b b", 1), ("deep/c", 300_000)] {
        fs::write(far.home("tree").join(name), bytes(len)).unwrap();
    }
    let copy = |arguments: &[&str]| report(&far.does(&[&["cp", "--json", "--attempts", "1"], arguments].concat()));
    // Between keys, of which each host is told the other's, and from an address that neither has commands from.
    for (mode, to) in [(&[][..], "other:x"), (&["--streams", "2"], "other:x"), (&[], "far:x")] {
        let said = copy(&[mode, &["far:source", to]].concat());
        assert_eq!((&said["bytes_between_servers"], &said["failed"]), (&20_000_001.into(), &0.into()), "{said:#}");
        assert!(said["by_way_of_this_end"].is_null() && said["path"].as_str().unwrap().contains("data under TLS"));
        assert!(fs::read(far.home("x")).unwrap() == content, "{mode:?} {to}");
        fs::remove_file(far.home("x")).unwrap();
    }
    let said = copy(&["-r", "other:tree/", "far:copy"]);
    assert_eq!(said["bytes_between_servers"], 300_001, "{said:#}");
    ok(&run(Command::new("diff").arg("-r").args([far.home("tree"), far.home("copy")])));
    // Whom somebody has let in for some files alone has nobody connect elsewhere: then it comes by here, and it is said why.
    far.install("bin/some", &format!("#!/bin/sh\nexec phoebus \"$@\" --root {}\n", home()));
    let said = copy(&["--far-phoebus", "bin/some", "far:source", "third:y"]);
    assert_eq!(said["bytes_between_servers"], 0, "{said:#}");
    let why = said["by_way_of_this_end"].as_str().unwrap();
    assert!(why.contains("data connections go to 127.0.0.1 only"), "{why}");
    assert!(fs::read(far.home("y")).unwrap() == content);
    // A server in clear is told no keys, and what is under TLS otherwise does not go in clear for it.
    let serve = Serve::writable();
    let said = copy(&["far:source", &serve.url("y")]);
    assert_eq!(said["bytes_between_servers"], 0, "{said:#}");
    assert!(
        said["by_way_of_this_end"].as_str().unwrap().contains("the data of one of them goes by tcp,tls"),
        "{said:#}"
    );
    assert!(fs::read(serve.path("y")).unwrap() == content);
    let said = copy(&["--limit-rate", "1gbit", "far:tree/b b", "other:z"]);
    assert!(said["by_way_of_this_end"].as_str().unwrap().contains("--limit-rate"), "{said:#}");
    works("phoebus cp", "phoebus serve", "SSH", "third");
}

#[test]
fn the_toolkits_servers_send_to_each_other() {
    let far = Far::new();
    let toolkits = "#!/bin/sh\nexec /usr/sbin/globus-gridftp-server -ssh -allow-root -anonymous-user root -data-interface 127.0.0.1\n";
    far.install(".globus/sshftp", toolkits);
    let content = bytes(20_000_001);
    fs::write(far.home("source"), &content).unwrap();
    // By two names it is two servers.
    let url = |host: &str, path: &str| format!("sshftp://{host}:{}/~/{path}", far.port);
    for mode in [&[][..], &["--streams", "2"]] {
        let copy = ["cp", "--json", &url("127.0.0.1", "source"), &url("localhost", "x")];
        let said = report(&far.does(&[&copy[..], mode].concat()));
        assert_eq!(said["bytes_between_servers"], 20_000_001, "{said:#}");
        assert!(said["path"].as_str().unwrap().contains("data in clear"), "{said:#}");
        assert!(fs::read(far.home("x")).unwrap() == content, "{mode:?}");
        fs::remove_file(far.home("x")).unwrap();
    }
    // With a server of FTP in clear, which is what both have.
    let serve = Serve::writable();
    let said = report(&far.does(&["cp", "--json", &url("127.0.0.1", "source"), &serve.url("y")]));
    assert_eq!(said["bytes_between_servers"], 20_000_001, "{said:#}");
    assert!(fs::read(serve.path("y")).unwrap() == content);
    // Where one of the two has its data under TLS, nothing goes in clear that did not have to.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_phoebus"), far.home("bin/phoebus")).unwrap();
    let said = report(&far.does(&["cp", "--json", "far:source", &url("127.0.0.1", "z")]));
    assert_eq!(said["bytes_between_servers"], 0, "{said:#}");
    let why = said["by_way_of_this_end"].as_str().unwrap();
    assert!(why.contains("one of them goes by tcp,tls, and that of the other by nothing but TCP"), "{why}");
    assert!(fs::read(far.home("z")).unwrap() == content);
    far.fails(
        1,
        "does not carry data by tcp,tls",
        &["cp", "--data-protection", "private", "far:source", &url("127.0.0.1", "w")],
    );
    assert!(!far.home("w").exists());
    works("phoebus cp", "globus-gridftp-server", "SSH", "third");
}

#[test]
fn the_toolkits_client_uses_our_own_server() {
    let far = Far::with_phoebus();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sshftp");
    far.install(".globus/sshftp", &fs::read_to_string(example).unwrap());
    let content = bytes(5_000_001);
    fs::write(far.near("source"), &content).unwrap();
    let guc = |arguments: &[&str]| ok(&run(within(far.dir.path(), "globus-url-copy").args(arguments)));
    let (local, back) =
        (format!("file://{}", far.near("source").display()), format!("file://{}", far.near("back").display()));
    let url = |path: &str| format!("sshftp://127.0.0.1:{}{}/{path}", far.port, home());
    for mode in [&[][..], &["-p", "2"], &["-fast"]] {
        guc(&[mode, &[&local, &url("target")]].concat());
        assert!(fs::read(far.home("target")).unwrap() == content, "put {mode:?}");
        guc(&[mode, &[&url("target"), &back]].concat());
        assert!(fs::read(far.near("back")).unwrap() == content, "get {mode:?}");
        fs::remove_file(far.near("back")).unwrap();
        fs::remove_file(far.home("target")).unwrap();
    }
    works("globus-url-copy", "phoebus serve", "SSH", "get put parallel");
}

#[test]
fn what_keeps_ssh_from_it_is_said() {
    let far = Far::new();
    fs::write(far.near("x"), "x").unwrap();
    far.fails(1, "the far side has no phoebus", &["cp", "x", "far:x"]);
    far.fails(1, "the far side has no phoebus", &["cp", "--far-phoebus", "/gone/phoebus", "x", "far:x"]);
    far.fails(
        11,
        "phoebus: nowhere.invalid: ssh does not get there",
        &["cp", "--attempts", "1", "x", "nowhere.invalid:x"],
    );
    for host in ["-oProxyCommand=x:x", "-v:x", "a@-oProxyCommand=x:x", "-la@far:x", "$(touch pwned)@far:x"] {
        far.fails(2, "expected", &["cat", "--", host]);
    }
    assert!(!far.near("pwned").exists());
    far.fails(2, "and not through gateways", &["ls", "--via", "pg1", "far:"]);
    far.fails(2, "none was expected in the URL", &["ls", "sshftp://me:pw@127.0.0.1/"]);
    // A program that says something else than servers do.
    far.install("bin/phoebus", "#!/bin/sh\necho hello; sleep 1\n");
    let (code, said) = far.phoebus(&["ls", "far:"]);
    assert!(code != 0 && said.contains("hello"), "{code}: {said}");
    // One that says nothing.
    far.install("bin/phoebus", "#!/bin/sh\nexec sleep 20\n");
    far.fails(11, "far: nothing came within 2 s", &["cp", "--stall", "2s", "--attempts", "1", "x", "far:x"]);
    // Another host's key, and nobody who may log in.
    fs::write(far.home(".ssh/known_hosts"), fs::read_to_string(far.home(".ssh/id.pub")).unwrap()).unwrap();
    far.fails(6, "Host key verification failed", &["cp", "x", "far:x"]);
    let key = fs::read_to_string(far.dir.path().join("hostkey.pub")).unwrap();
    fs::write(far.home(".ssh/known_hosts"), format!("far {key}")).unwrap();
    fs::write(far.dir.path().join("authorized"), "").unwrap();
    far.fails(6, "Permission denied", &["cp", "x", "far:x"]);
    assert!(!far.home("x").exists());
}
