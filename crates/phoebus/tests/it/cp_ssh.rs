//! `host:path` and `sshftp://` with a real sshd on loopback, the toolkit's server behind it and our own, and the toolkit's client with
//! our own (U1). Home directories are the test's: programs run in a mount namespace of their own.

use crate::support;
use serde_json::Value;
use std::fs;
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

/// The home directory of the user who runs the tests. ssh asks the system for it, not the environment.
fn home() -> String {
    let entry = ok(&run(Command::new("sh").args(["-c", "getent passwd $(id -u)"])));
    entry.split(':').nth(5).unwrap().to_owned()
}

/// A remote side behind sshd, and a local side with the configuration of ssh.
struct Far {
    sshd: Child,
    port: u16,
    /// A process that keeps a network namespace of its own, in which data ports are closed.
    net: Option<Child>,
    /// `home` is the home directory of both sides. Commands run in `near`.
    dir: TempDir,
}

impl Far {
    fn new() -> Self {
        Self::with_net(None)
    }

    /// A remote side that only accepts connections to the port of SSH, and refuses others.
    fn closed() -> Self {
        let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; }; \
                     add rule inet t in tcp dport != 22 tcp flags & (syn|ack) == syn reject with tcp reset";
        let script = format!("ip link set lo up; nft '{rules}'; echo ready; exec sleep 600");
        let mut command = Command::new("unshare");
        let mut net = command.args(["-n", "sh", "-euc", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(net.stdout.take().unwrap()), &mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let far = Self::with_net(Some(net));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_phoebus"), far.home("bin/phoebus")).unwrap();
        far
    }

    fn with_net(net: Option<Child>) -> Self {
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
        let port = if net.is_some() { 22 } else { support::port::free() };
        let key = fs::read_to_string(at("hostkey.pub")).unwrap();
        fs::write(at("home/.ssh/known_hosts"), format!("far {key}")).unwrap();
        // Only this configuration knows the hosts "far" and "other". Commands to the second come from another address
        // than data does, as when one host sends to another.
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
        // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
        let config = format!(
            "ListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nStrictModes no\nMaxStartups 100\nUsePAM no\nPidFile none\nSetEnv SHLVL=2 PATH={}:/usr/bin:/bin:/usr/sbin\n",
            at("hostkey"),
            at("authorized"),
            at("home/bin"),
        );
        fs::write(at("sshd_config"), config).unwrap();
        fs::create_dir_all("/run/sshd").unwrap();
        let mut command = within(dir.path(), net.as_ref(), "/usr/sbin/sshd");
        command.args(["-D", "-f", &at("sshd_config"), "-E", &at("sshd.log")]).stdin(Stdio::null());
        let sshd = command.spawn().unwrap_or_else(|error| panic!("sshd: {error}; scripts/setup installs it"));
        let start = Instant::now();
        // At each address in turn.
        let listens =
            || fs::read_to_string(at("sshd.log")).is_ok_and(|log| log.matches("Server listening").count() == 2);
        while !listens() {
            assert!(start.elapsed() < PATIENCE, "sshd does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { sshd, port, net, dir }
    }

    /// The same with our own program where the remote shell finds it.
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

    /// A program on the remote side.
    fn install(&self, path: &str, script: &str) {
        // Written by another process: a file that a child of another test still has open for writing cannot be
        // executed.
        let mut install = Command::new("sh");
        install.args(["-c", "rm -f \"$0\" && printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(self.home(path));
        ok(&run(install.arg(script)));
    }

    fn phoebus(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = within(self.dir.path(), self.net.as_ref(), env!("CARGO_BIN_EXE_phoebus"));
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

    /// Uploads and downloads files and trees. Returns the report of the first.
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
        if let Some(net) = &mut self.net {
            let _ = net.kill();
            let _ = net.wait();
        }
    }
}

/// A program with the test's home directory, in the test's network namespace if there is one.
fn within(dir: &Path, net: Option<&Child>, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    let script = format!("mount --bind \"$0\" {}; exec \"$@\"", home());
    command.arg(format!("--net=/proc/{}/ns/net", net.map_or("self".to_owned(), |net| net.id().to_string())));
    command.args(["unshare", "-m", "sh", "-euc", &script]).arg(dir.join("home")).arg(program);
    command
}

const MODES: &[&[&str]] = &[&[], &["--streams", "2"]];

#[test]
fn ssh_starts_our_server_at_the_far_side() {
    let far = Far::with_phoebus();
    // Relative to the home directory, on a host that only ssh's configuration knows.
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
    // A local name with a colon.
    fs::write(far.near("a:b"), "here").unwrap();
    assert_eq!(far.does(&["cat", "./a:b"]), "here");
    works("phoebus cp", "phoebus serve", "SSH", "get put list manage tree sum parallel private");
}

#[test]
fn ssh_gets_the_options_of_scp() {
    let far = Far::with_phoebus();
    fs::write(far.home("x"), "there").unwrap();
    // This configuration has neither the port nor the key of 127.0.0.1, which only the host's other address has.
    let (dir, port) = (far.dir.path().display(), far.port.to_string());
    let (key, known) = (format!("{dir}/home/.ssh/id"), format!("{dir}/home/.ssh/known_hosts"));
    let config = format!(
        "Host 127.0.0.2\n IdentityFile {key}\nHost 127.0.0.1\n IdentityFile {dir}/none\nHost *\n HostKeyAlias far\n \
         IdentitiesOnly yes\n BatchMode yes\n UserKnownHostsFile {known}\n"
    );
    fs::write(far.dir.path().join("another"), config).unwrap();
    let ssh = format!("ssh -F '{dir}/another' -o 'ConnectTimeout 30'");
    let with = |arguments: &[&str]| {
        let mut command = within(far.dir.path(), None, env!("CARGO_BIN_EXE_phoebus"));
        command.args(arguments).current_dir(far.near("")).env("HOME", home()).env("PHOEBUS_SSH", &ssh);
        says(&run(&mut command))
    };
    let jump = format!("127.0.0.2:{port}");
    let all = ["-P", &port, "-i", &key, "-J", &jump, "127.0.0.1:x"];
    let (code, said) = with(&[&["cat"], &all[..]].concat());
    assert_eq!((code, said.as_str()), (0, "there"));
    let log = fs::read_to_string(far.dir.path().join("sshd.log")).unwrap();
    assert!(log.matches("Accepted publickey").count() == 2, "one login on the way and one at its end: {log}");
    // If a jump host is refused a connection, this is reported at once, too.
    let closed = format!("sshftp://127.0.0.1:{}/x", support::port::free());
    let (code, said) = with(&["cp", "-J", &jump, &closed, "y"]);
    assert!(code == 11 && said.contains("Connection refused") && !said.contains("trying again"), "{code}: {said}");
    // Without one of the jump hosts, the connection fails.
    let (code, said) = with(&["cp", "--attempts", "1", "-P", &port, "127.0.0.1:x", "y"]);
    assert!(code == 6 && said.contains("Permission denied"), "{code}: {said}");
    let (code, said) = with(&["cat", "-P", &port, "ftp://127.0.0.1/x"]);
    assert!(
        code == 2 && said.contains("-P is for HOST:PATH and sshftp://, as in scp, and no place here is one"),
        "{code}: {said}"
    );
}

#[test]
fn sshftp_finds_the_far_server() {
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
    // Our own server, started by the script in the documentation.
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sshftp");
    far.install(".globus/sshftp", &fs::read_to_string(example).unwrap());
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_phoebus"), far.home("bin/phoebus")).unwrap();
    let said = far.everything(&url, MODES);
    assert!(said.contains("data under TLS"), "{said}");
}

#[test]
fn data_goes_inside_ssh_if_ports_are_closed() {
    let far = Far::closed();
    // Ours in any mode, without an option, and the report says why.
    let said = far.everything(&|path| format!("far:{path}"), &[&[], &["--streams", "3"]]);
    let why =
        "commands by ssh, data inside ssh, since data connections do not get through: cannot connect to 127.0.0.1:";
    assert!(said.contains(why) && said.contains("refused"), "{said}");
    let url = format!("sshftp://127.0.0.1:{}/~/", far.port);
    let said = far.does(&["cp", "--data-auth", "none", "tree/deep/c", &format!("{url}c")]);
    assert!(said.contains("data inside ssh"), "{said}");
    assert!(fs::read(far.home("c")).unwrap() == bytes(300_000));
    // One connection for commands and one for data serve many files.
    let logins = || fs::read_to_string(far.dir.path().join("sshd.log")).unwrap().matches("Accepted publickey").count();
    fs::create_dir(far.near("many")).unwrap();
    for i in 0..40 {
        fs::write(far.near("many").join(i.to_string()), bytes(1000 + i)).unwrap();
    }
    let before = logins();
    let said = report(&far.does(&["cp", "--json", "-r", "--transfers", "1", "many/", "far:many"]));
    assert!(logins() - before <= 6, "{} logins", logins() - before);
    assert!(said["path"].as_str().unwrap().contains("data inside ssh"), "{said:#}");
    ok(&run(Command::new("diff").arg("-r").args([far.near("many"), far.home("many")])));
    // Between two hosts, data passes through this end, and the report says why.
    fs::write(far.home("one"), bytes(300_000)).unwrap();
    let said = report(&far.does(&["cp", "--json", "far:one", "third:two"]));
    assert!(said["by_way_of_this_end"].as_str().unwrap().contains("inside SSH"), "{said:#}");
    assert!(fs::read(far.home("two")).unwrap() == bytes(300_000));
    // A user who may access only some files gets a server for each login, which still carries data.
    let some = format!("command=\"phoebus serve --inetd --root {}/some\" ", home());
    fs::create_dir(far.home("some")).unwrap();
    let keys = fs::read_to_string(far.dir.path().join("authorized")).unwrap();
    fs::write(far.dir.path().join("authorized"), format!("{some}{keys}")).unwrap();
    far.does(&["cp", "source", "far:/x"]);
    assert!(fs::read(far.home("some/x")).unwrap() == fs::read(far.near("source")).unwrap());
    fs::write(far.dir.path().join("authorized"), keys).unwrap();
    // A stack that the user has named is not replaced.
    far.fails(11, "refused", &["cp", "--attempts", "1", "--stack", "tcp,tls", "source", "far:y"]);
    // A remote side without this feature: commands work, and the data transfer reports the failure.
    far.install(
        ".globus/sshftp",
        "#!/bin/sh\nexec /usr/sbin/globus-gridftp-server -ssh -allow-root -anonymous-user root -data-interface 127.0.0.1\n",
    );
    far.does(&["mkdir", &format!("{url}made")]);
    far.fails(11, "refused", &["cp", "--attempts", "1", "source", &format!("{url}made/")]);
    far.fails(1, "takes no data inside SSH", &["cp", "--stack", "ssh", "source", &format!("{url}made/")]);
}

#[test]
fn data_goes_inside_ssh_on_request() {
    let far = Far::with_phoebus();
    let said = far.everything(&|path| format!("far:{path}"), &[&["--stack", "ssh"]]);
    assert!(said.contains("commands by ssh, data inside ssh") && !said.contains("get through"), "{said}");
    far.fails(2, "--stack ssh is for HOST:PATH and sshftp://", &["cp", "--stack", "ssh", "x", "ftp://127.0.0.1/x"]);
    far.fails(2, "driver ssh is not available", &["ls", "--stack", "ssh,tls", "far:"]);
}

/// An SSH connection that carries data is cut. The file is incomplete, and the same command resumes it.
#[test]
fn a_cut_of_data_inside_ssh_never_looks_complete() {
    let far = Far::with_phoebus();
    let content = bytes(30_000_000);
    fs::write(far.near("source"), &content).unwrap();
    // The remote relay receives some of the data, and then is killed, as if its connection were cut.
    let script =
        "#!/bin/sh\ncase $3 in --data) head -c 9000000 | phoebus.real \"$@\";; *) exec phoebus.real \"$@\";; esac\n";
    fs::rename(far.home("bin/phoebus"), far.home("bin/phoebus.real")).unwrap();
    far.install("bin/phoebus", script);
    // The rest of it would wait a minute for more.
    let once = ["cp", "--stack", "ssh", "--attempts", "1", "--timeout", "5s"];
    let copy = [&once[..], &["source", "far:target"]].concat();
    let (code, said) = far.phoebus(&copy);
    assert!(code != 0, "{said}");
    assert!(!far.home("target").exists());
    far.install("bin/phoebus", "#!/bin/sh\nexec phoebus.real \"$@\"\n");
    far.does(&copy);
    assert!(fs::read(far.home("target")).unwrap() == content);
    let script =
        "#!/bin/sh\ncase $3 in --data) phoebus.real \"$@\" | head -c 9000000;; *) exec phoebus.real \"$@\";; esac\n";
    far.install("bin/phoebus", script);
    let (code, said) = far.phoebus(&[&once[..], &["--verify", "none", "far:target", "back"]].concat());
    assert!(code != 0 && !far.near("back").exists(), "{code}: {said}");
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
    // Both hosts know each other's key, and data comes from an address that sends no commands.
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
    // A restricted user may not make the server connect elsewhere. Data then passes through this end, and the report
    // says why.
    far.install("bin/some", &format!("#!/bin/sh\nexec phoebus \"$@\" --root {}\n", home()));
    let said = copy(&["--remote-command", "bin/some", "far:source", "third:y"]);
    assert_eq!(said["bytes_between_servers"], 0, "{said:#}");
    let why = said["by_way_of_this_end"].as_str().unwrap();
    assert!(why.contains("data connections go to 127.0.0.1 only"), "{why}");
    assert!(fs::read(far.home("y")).unwrap() == content);
    // Keys are not sent to a server in the clear. Data that would be under TLS does not go in the clear because of it.
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
fn gct_servers_send_to_each_other() {
    let far = Far::new();
    let toolkits = "#!/bin/sh\nexec /usr/sbin/globus-gridftp-server -ssh -allow-root -anonymous-user root -data-interface 127.0.0.1\n";
    far.install(".globus/sshftp", toolkits);
    let content = bytes(20_000_001);
    fs::write(far.home("source"), &content).unwrap();
    // Two names count as two servers.
    let url = |host: &str, path: &str| format!("sshftp://{host}:{}/~/{path}", far.port);
    for mode in [&[][..], &["--streams", "2"]] {
        let copy = ["cp", "--json", &url("127.0.0.1", "source"), &url("localhost", "x")];
        let said = report(&far.does(&[&copy[..], mode].concat()));
        assert_eq!(said["bytes_between_servers"], 20_000_001, "{said:#}");
        assert!(said["path"].as_str().unwrap().contains("data in clear"), "{said:#}");
        assert!(fs::read(far.home("x")).unwrap() == content, "{mode:?}");
        fs::remove_file(far.home("x")).unwrap();
    }
    // With an FTP server in the clear, which both support.
    let serve = Serve::writable();
    let said = report(&far.does(&["cp", "--json", &url("127.0.0.1", "source"), &serve.url("y")]));
    assert_eq!(said["bytes_between_servers"], 20_000_001, "{said:#}");
    assert!(fs::read(serve.path("y")).unwrap() == content);
    // If one of the two has its data under TLS, no data goes in the clear without need.
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
fn gct_client_uses_our_server_by_ssh() {
    let far = Far::with_phoebus();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sshftp");
    far.install(".globus/sshftp", &fs::read_to_string(example).unwrap());
    let content = bytes(5_000_001);
    fs::write(far.near("source"), &content).unwrap();
    let guc = |arguments: &[&str]| ok(&run(within(far.dir.path(), None, "globus-url-copy").args(arguments)));
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
fn failures_of_ssh_are_reported() {
    let far = Far::new();
    fs::write(far.near("x"), "x").unwrap();
    far.fails(1, "the far side has no phoebus", &["cp", "x", "far:x"]);
    far.fails(1, "the far side has no phoebus", &["cp", "--remote-command", "/gone/phoebus", "x", "far:x"]);
    far.fails(
        11,
        "phoebus: nowhere.invalid: ssh does not get there",
        &["cp", "--attempts", "1", "x", "nowhere.invalid:x"],
    );
    // A refused connection is reported at once, as by scp.
    let closed = format!("sshftp://127.0.0.1:{}/x", support::port::free());
    let (code, said) = far.phoebus(&["cp", "x", &closed]);
    assert!(code == 11 && said.contains("Connection refused") && !said.contains("trying again"), "{code}: {said}");
    for host in ["-oProxyCommand=x:x", "-v:x", "a@-oProxyCommand=x:x", "-la@far:x", "$(touch pwned)@far:x"] {
        far.fails(2, "expected", &["cat", "--", host]);
    }
    assert!(!far.near("pwned").exists());
    far.fails(2, "and not through gateways", &["ls", "--via", "pg1", "far:"]);
    far.fails(2, "none was expected in the URL", &["ls", "sshftp://me:pw@127.0.0.1/"]);
    // A program that does not speak the protocol of a server.
    far.install("bin/phoebus", "#!/bin/sh\necho hello; sleep 1\n");
    far.fails(1, "the far side said \"hello\" where a server's greeting was expected", &["ls", "far:"]);
    // A silent program.
    far.install("bin/phoebus", "#!/bin/sh\nexec sleep 20\n");
    far.fails(11, "far: nothing came within 2 s", &["cp", "--stall", "2s", "--attempts", "1", "x", "far:x"]);
    // Another host's key, and a user who may not log in.
    fs::write(far.home(".ssh/known_hosts"), fs::read_to_string(far.home(".ssh/id.pub")).unwrap()).unwrap();
    far.fails(6, "Host key verification failed", &["cp", "x", "far:x"]);
    let key = fs::read_to_string(far.dir.path().join("hostkey.pub")).unwrap();
    fs::write(far.home(".ssh/known_hosts"), format!("far {key}")).unwrap();
    fs::write(far.dir.path().join("authorized"), "").unwrap();
    far.fails(6, "Permission denied", &["cp", "x", "far:x"]);
    assert!(!far.home("x").exists());
}

/// `ssh` may wait for ever, if the host or its shell has died.
#[test]
fn abandoned_ssh_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x"), "x").unwrap();
    let pid_of = dir.path().join("pid");
    for (said, code, expected) in [("", 11, "nothing came within 1 s"), ("hi", 1, "the far side said \"hi\" where")] {
        // Its output ends the wait, so it writes its process number first.
        let script = format!("echo $$ > '{}'; printf '%s' '{said}'; exec sleep 100", pid_of.display());
        fs::write(dir.path().join("ssh"), script).unwrap();
        let mut command = support::phoebus();
        command.args(["cp", "--timeout", "1", "--attempts", "1", "x", "far:x"]).current_dir(dir.path());
        command.env("PHOEBUS_SSH", "sh ./ssh").env("HOME", dir.path()).env_remove("XDG_CONFIG_HOME");
        let output = run(&mut command);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && told.contains(expected), "{:?}: {told}", output.status);
        let pid = fs::read_to_string(&pid_of).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{said}: it is left running");
    }
}
