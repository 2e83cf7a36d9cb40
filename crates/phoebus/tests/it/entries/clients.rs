//! ssh, git, PySocks and requests, by a gateway's entries.

use super::{Site, address, run, wait_until};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[track_caller]
pub(super) fn ok(command: &mut Command) -> String {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server of ssh on an address of its own, and the options of its client.
struct Ssh {
    server: Child,
    dir: tempfile::TempDir,
    at: SocketAddr,
}

impl Ssh {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "user"] {
            ok(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]));
        }
        let at = SocketAddr::from((address(), 2222));
        // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
        let config = format!(
            "ListenAddress {at}\nHostKey {}\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\nPermitRootLogin yes\n\
             UsePAM no\nSetEnv SHLVL=2\n",
            file("host"),
            file("user.pub")
        );
        fs::write(file("config"), config).unwrap();
        fs::create_dir_all("/run/sshd").unwrap();
        let mut sshd = Command::new("/usr/sbin/sshd");
        sshd.args(["-D", "-f", &file("config"), "-E", &file("log")]).stdin(Stdio::null());
        let server = sshd.spawn().unwrap();
        wait_until(|| TcpStream::connect(at).is_ok(), || "sshd does not listen".to_owned());
        Self { server, dir, at }
    }

    fn command(&self, proxy: &str) -> Command {
        let mut ssh = Command::new("ssh");
        let key = self.dir.path().join("user");
        ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", &format!("ProxyCommand={proxy}"), "-i"]).arg(key);
        ssh.args(["-p", &self.at.port().to_string(), &format!("root@{}", self.at.ip()), "echo through"]);
        ssh
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn ssh_comes_by_its_proxy_commands() {
    let site = Site::new("");
    let ssh = Ssh::new();
    let (at, host, port) = (site.at, site.at.ip(), site.at.port());
    for proxy in [
        format!("nc -X 5 -x {at} %h %p"),
        format!("nc -X connect -x {at} %h %p"),
        format!("connect-proxy -R remote -S {at} %h %p"),
        format!("connect-proxy -H {at} %h %p"),
        format!("socat - PROXY:{host}:%h:%p,proxyport={port}"),
    ] {
        assert_eq!(ok(&mut ssh.command(&proxy)), "through\n", "{proxy}");
    }
}

#[test]
fn git_clones_by_both_entries() {
    let site = Site::new("");
    let served = site.web.dir.path().join("repo.git");
    let script = "git init -q -b main work && cd work && echo 1 >a && git add a && \
                  git -c user.name=a -c user.email=a@a commit -qm a && git clone -q --bare . \"$0\" && \
                  git -C \"$0\" update-server-info";
    ok(Command::new("sh").args(["-euc", script]).arg(&served).current_dir(site.dir.path()));
    for (n, proxy) in [format!("socks5h://{}", site.at), format!("http://{}", site.at)].iter().enumerate() {
        let to = site.dir.path().join(format!("clone{n}"));
        let mut git = Command::new("git");
        git.args(["-c", &format!("http.proxy={proxy}")]);
        git.args(["clone", "-q", &site.web.url("repo.git")]).arg(&to).env_remove("no_proxy").env_remove("NO_PROXY");
        // By HTTP, git asks for a page unless the address is one of https.
        if n == 1 {
            let said = String::from_utf8_lossy(&run(&mut git).stderr).into_owned();
            assert!(said.contains("405"), "{said}");
            continue;
        }
        ok(&mut git);
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "1\n");
    }
}

const PYTHON: &str = r#"
import requests, socks, socket, sys, urllib.parse
host, port, to = sys.argv[1], int(sys.argv[2]), urllib.parse.urlsplit(sys.argv[3])
def fetch(kind, **login):
    s = socks.socksocket()
    s.set_proxy(kind, host, port, rdns=True, **login)
    s.connect((to.hostname, to.port))
    s.sendall(b"GET /file HTTP/1.0\r\n\r\n")
    all = b""
    while part := s.recv(65536):
        all += part
    return len(all.partition(b"\r\n\r\n")[2])
login = dict(username="ada", password="a secret")
print(fetch(socks.SOCKS5, **login), fetch(socks.HTTP, **login))
for kind in socks.SOCKS5, socks.HTTP:
    try:
        fetch(kind, username="ada", password="wrong")
    except socks.ProxyError as error:
        print(type(error.socket_err).__name__)
proxy = f"socks5h://ada:a%20secret@{host}:{port}"
print(len(requests.get(sys.argv[3], proxies={"http": proxy}).content))
"#;

#[test]
fn pysocks_and_requests_come_with_passwords() {
    let site = Site::new(super::AUTH);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", PYTHON, &site.at.ip().to_string(), &site.at.port().to_string(), &site.web.url("file")]);
    let said = ok(python.env_remove("no_proxy").env_remove("NO_PROXY"));
    assert_eq!(said, "3000001 3000001\nSOCKS5AuthError\nHTTPError\n3000001\n");
}

/// A static program that fetches what its arguments name, by the proxy of its environment. The build is kept.
pub(super) fn go_program() -> std::path::PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let own = tempfile::tempdir_in({
        fs::create_dir_all(&cache).unwrap();
        &cache
    });
    let built = own.unwrap().keep().join("fetch");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&built).arg("fetch.go");
    go.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers"));
    go.env("GOCACHE", cache.join("build")).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
    ok(&mut go);
    assert!(fs::metadata(&built).unwrap().permissions().mode() & 0o100 != 0);
    built
}
