//! A better first hop: real programs, real gateways, and the agent between them that `phoebus run --first-hop` starts (S1).

use crate::common;
use common::gateways::{Server, address, payload, until_listening};
use common::{LIMIT, library, phoebus, plain, preloaded, program, run};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MEGABYTE: usize = 1 << 20;

/// Two gateways, and a directory for agents. The first gateway accepts clients with a certificate over TLS, QUIC and
/// UDT.
struct Place {
    room: tempfile::TempDir,
    gateways: [SocketAddr; 2],
    processes: Vec<Child>,
}

impl Place {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let gateways = [address(), address()];
        let mut place = Self { room, gateways, processes: Vec::new() };
        let [first, second] = gateways;
        let mut init = plain(phoebus());
        init.args(["cert", "init", "--dir"]).arg(place.file("certificates"));
        run(init.arg(format!("{},pg1", first.ip())).arg("ada.users.example")).ok();
        let udt = SocketAddr::new(first.ip(), first.port() + 1);
        let ca = place.certificate("ca.pem");
        let [own, key] = ["", "-key"].map(|end| place.certificate(&format!("{}{end}.pem", first.ip())));
        let listen = |address: SocketAddr, more: &str| format!("[[listen]]\naddress = \"{address}\"\n{more}");
        place.start(
            "pg1",
            &[
                listen(first, ""),
                listen(first, "transport = \"quic\"\n"),
                listen(udt, "transport = \"udt\"\nsecurity = \"encrypt\"\nprofile = \"patient\"\n"),
                listen(udt, "security = \"encrypt\"\n"),
                format!("[tls]\ncertificate = {own:?}\nkey = {key:?}\nauthorities = {ca:?}\n"),
                peer("pg2", second),
                "[profile.patient]\nidle_timeout = \"1h\"\n".to_owned(),
                "[[allow]]\nfrom = [\"127.0.0.0/8\", \"certificate:.users.example\"]\nto = [\"127.0.0.0/8\"]\n"
                    .to_owned(),
            ]
            .concat(),
        );
        let allow = "[[allow]]\nfrom = [\"pg1\", \"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\"]\n";
        place.start("pg2", &[listen(second, ""), peer("pg1", first), allow.to_owned()].concat());
        gateways.into_iter().for_each(until_listening);
        place
    }

    fn start(&mut self, name: &str, text: &str) {
        let file = self.file(name);
        fs::write(&file, format!("name = \"{name}\"\n{text}")).unwrap();
        let mut command = plain(phoebus());
        command.args(["gateway", "--config"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
        self.processes.push(command.spawn().unwrap());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    fn certificate(&self, name: &str) -> PathBuf {
        self.file("certificates").join(name)
    }

    /// `command` as this place's user runs it: with certificates, a runtime directory, and no setting for an agent.
    fn settle(&self, mut command: Command) -> Command {
        let [first, second] = self.gateways;
        command.env("PHOEBUS_PATH", format!("{first},{second}")).env("PHOEBUS_ONLY", "127.0.0.0/8");
        command.env("PHOEBUS_REPORT", self.file("report")).env("HOME", self.room.path());
        command.env("XDG_RUNTIME_DIR", self.room.path()).env("PHOEBUS_PRELOAD_LIB", library());
        command.env("PHOEBUS_CA", self.certificate("ca.pem")).env("PHOEBUS_AGENT_IDLE", "500ms");
        command.env("PHOEBUS_CERT", self.certificate("ada.users.example.pem"));
        command.env("PHOEBUS_KEY", self.certificate("ada.users.example-key.pem"));
        command
    }

    /// `phoebus run --first-hop HOP -- …`
    fn run(&self, hop: &str) -> Command {
        let mut command = self.settle(plain(phoebus()));
        command.args(["run", "--first-hop", hop, "--"]);
        command
    }

    /// The reports since the last call.
    fn reports(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("report")).unwrap_or_default();
        let _ = fs::remove_file(self.file("report"));
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// The process numbers of the agents in this directory.
    fn agents(&self) -> Vec<i32> {
        let ours = format!("XDG_RUNTIME_DIR={}\0", self.room.path().display());
        let is_agent = |pid: &i32| {
            let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
            words.split('\0').nth(1) == Some("agent") && String::from_utf8_lossy(&read("environ")).contains(&ours)
        };
        let entries = fs::read_dir("/proc").unwrap();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_agent).collect()
    }

    fn until_agents(&self, count: usize) {
        let begun = Instant::now();
        while self.agents().len() != count {
            assert!(begun.elapsed() < LIMIT, "{} agents; {count} expected", self.agents().len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A program that holds an agent for `hop` until its standard input ends.
    fn hold(&self, hop: &str) -> Child {
        let mut holder = self.run(hop);
        let mut child = holder.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"here\n").unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.agents() {
            kill(pid);
        }
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

fn peer(name: &str, address: SocketAddr) -> String {
    format!("[[peer]]\nname = \"{name}\"\naddress = \"{address}\"\nsecurity = \"none\"\nfrom = [\"127.0.0.0/8\"]\n")
}

/// The ends of a report's hops, and transport and protection of the first two.
fn way(report: &Value) -> (Vec<String>, Vec<String>) {
    let hops = report["hops"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let carried = hops.iter().take(2).map(|hop| format!("{} {}", text(&hop["transport"]), text(&hop["security"])));
    (hops.iter().map(|hop| text(&hop["from"])).collect(), carried.collect())
}

/// Files over HTTP, from a directory.
fn web(place: &Place) -> (Server, String) {
    let address = address();
    let mut python = plain(program("python3"));
    python.args(["-m", "http.server", "--directory"]).arg(place.room.path()).arg("--bind");
    let server = Server::start(python.arg(address.ip().to_string()).arg(address.port().to_string()), address);
    (server, format!("http://{address}"))
}

#[test]
fn every_first_hop_carries_programs_and_says_so() {
    let place = Place::new();
    let bytes = payload(&place.file("data"), 8 * MEGABYTE);
    let (_server, url) = web(&place);
    for (hop, carried) in [("quic", "quic encrypt"), ("udt/5007", "udt encrypt"), ("tls", "tcp encrypt")] {
        let to = place.file("copy");
        let mut curl = place.run(hop);
        run(curl.arg(program("curl")).args(["-sS", "--fail", "-o"]).arg(&to).arg(format!("{url}/data"))).ok();
        assert!(fs::read(&to).unwrap() == bytes, "{hop}");
        let reports = place.reports();
        let (from, by) = way(&reports[0]);
        assert_eq!(from, ["client", "agent", "pg1", "pg2"], "{reports:#?}");
        assert_eq!(by, ["tcp none", carried], "{reports:#?}");
    }
    // One agent for each first hop, and none stays for long.
    place.until_agents(0);
    assert!(fs::read_dir(place.file("phoebus/agents")).unwrap().all(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.contains('.')
    }));
}

#[test]
fn static_program_is_led_to_the_agent() {
    let place = Place::new();
    let bytes = payload(&place.file("data"), MEGABYTE);
    let (_server, url) = web(&place);
    let mut wget = place.run("quic");
    wget.arg(program("busybox")).args(["wget", "-q", "-O"]).arg(place.file("copy")).arg(format!("{url}/data"));
    let ended = run(&mut wget);
    assert!(ended.status.success() && ended.err.contains("seccomp catches its connections"), "{ended:?}");
    assert!(fs::read(place.file("copy")).unwrap() == bytes);
    let report = place.reports().remove(0);
    let (from, by) = way(&report);
    assert_eq!(from, ["client", "agent", "pg1", "pg2"], "{report:#}");
    assert_eq!((&by[1][..], &report["caught_by"]), ("quic encrypt", &"seccomp".into()), "{report:#}");
    place.until_agents(0);
}

#[test]
fn auto_chooses_what_can_be_had_and_says_so() {
    let place = Place::new();
    payload(&place.file("data"), MEGABYTE);
    let (_server, url) = web(&place);
    let get = |path: String| {
        let mut curl = place.run("auto");
        curl.env("PHOEBUS_PATH", path).arg(program("curl")).args(["-sS", "--fail", "-o", "/dev/null"]);
        let ended = run(curl.arg(format!("{url}/data")));
        assert!(ended.status.success(), "{ended:?}");
        (ended.err, place.reports().remove(0))
    };
    let [first, second] = place.gateways;
    let (said, report) = get(format!("{first},{second}"));
    let (from, by) = way(&report);
    assert_eq!((said.as_str(), from[1].as_str(), by[1].ends_with("encrypt")), ("", "agent", true), "{report:#}");
    assert_eq!(by[1], "quic encrypt");
    // Only TLS is available at the other port.
    let (said, report) = get(format!("{}:{},{second}", first.ip(), first.port() + 1));
    // If that takes long, a message that the gateway has not answered yet comes first.
    assert!(said.contains("phoebus: the first hop goes by tls, since quic was not available: "), "{said}");
    assert_eq!(way(&report).1[1], "tcp encrypt", "{report:#}");
    // pg2 has no TLS at all.
    let (said, report) = get(second.to_string());
    assert!(
        said.contains("phoebus: no first hop by auto to ") && said.contains("it goes by tcp, without an agent"),
        "{said}"
    );
    assert_eq!(way(&report).0, ["client", "pg2"], "{report:#}");
    let note = report["hops"][0]["note"].as_str().unwrap();
    assert_eq!(note, "asked for auto as the first hop, in force is tcp: no agent runs");
}

#[test]
fn auto_uses_no_agent_with_another_certificate() {
    let place = Place::new();
    let (_server, url) = web(&place);
    let mut holder = place.hold("tls");
    // Without a certificate, pg1 accepts no encrypted connection.
    let get = |mut command: Command, rest: &[&str]| {
        command.env_remove("PHOEBUS_CERT").env_remove("PHOEBUS_KEY");
        let ended = run(command.args(rest));
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.err.contains("; it goes by tcp, without an agent"), "{ended:?}");
        let report = place.reports().remove(0);
        assert_eq!(way(&report).0[..2], ["client", "pg1"], "{report:#}");
    };
    let file = format!("{url}/certificates/");
    get(place.run("auto"), &["curl", "-sS", "--fail", "-o", "/dev/null", &file]);
    let connect = place.settle(plain(phoebus()));
    get(connect, &["connect", "--first-hop", "auto", url.strip_prefix("http://").unwrap()]);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn standard_streams_have_it_too() {
    let place = Place::new();
    fs::write(place.file("data"), "of a file").unwrap();
    let (_server, url) = web(&place);
    let mut connect = place.settle(plain(phoebus()));
    connect.args(["connect", "--first-hop", "quic", "--json", url.strip_prefix("http://").unwrap()]);
    let mut child = connect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"GET /data HTTP/1.0\r\n\r\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.ends_with(b"of a file"), "{output:?}");
    let (from, by) = way(&serde_json::from_slice(&output.stderr).unwrap());
    assert_eq!((from[1].as_str(), by[1].as_str()), ("agent", "quic encrypt"));
}

#[test]
fn programs_that_start_at_once_share_one_agent_that_stays_while_they_live() {
    let place = Place::new();
    let mut holders: Vec<Child> = Vec::new();
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| place.hold("quic"))).collect();
        holders.extend(starts.into_iter().map(|start| start.join().unwrap()));
    });
    // Agents that found another one have ended, or are about to.
    place.until_agents(1);
    let agents = place.agents();
    // Several times as long as an agent waits without clients.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(place.agents(), agents);
    for mut holder in holders {
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }
    place.until_agents(0);
}

/// Prints how each step went: an open session and its end, then another connect.
const READER: &str = r#"
import socket, sys
def connect():
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    s.sendall(b"GET /data HTTP/1.0\r\n\r\n")
    return s
s = connect()
s.recv(1)
print("open", flush=True)
sys.stdin.readline()
try:
    while s.recv(1 << 16): pass
    print("clean end", flush=True)
except ConnectionResetError:
    print("reset", flush=True)
try:
    connect()
    print("connected", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
"#;

/// A process that is being killed has no command line before it has closed its sockets, and is a zombie after that. Its
/// last thread need not be the first.
fn until_gone(pid: i32) {
    let begun = Instant::now();
    while let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        if threads <= 1 && stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{stat}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs [`READER`] and kills its agent while it reads.
fn read_through_a_death(place: &Place, mut python: Command, url: &str) -> Vec<String> {
    let (host, port) = url.strip_prefix("http://").unwrap().split_once(':').unwrap();
    python.arg("-c").arg(READER).args([host, port]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = vec![lines.next().unwrap().unwrap()];
    let agents = place.agents();
    assert_eq!(agents.len(), 1);
    kill(agents[0]);
    place.until_agents(0);
    until_gone(agents[0]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    said.extend(lines.map(Result::unwrap));
    child.wait().unwrap();
    said
}

#[test]
fn dead_agent_resets_its_sessions() {
    let place = Place::new();
    // More than all buffers on the path hold.
    payload(&place.file("data"), 256 * MEGABYTE);
    let (_server, url) = web(&place);
    let mut demanded = place.run("quic");
    demanded.arg(program("python3"));
    assert_eq!(read_through_a_death(&place, demanded, &url), ["open", "reset", "Connection refused"]);
    let reports = place.reports();
    let note = reports[1]["note"].as_str().unwrap();
    assert!(note.contains("no agent carries the first hop to gateway") && note.contains("by quic any more"), "{note}");

    // A program without a setting for it continues without an agent, and finds the next one.
    let mut holder = place.hold("quic");
    let bare = place.settle(preloaded(program("python3"), self::address()));
    assert_eq!(read_through_a_death(&place, bare, &url), ["open", "reset", "connected"]);
    let from: Vec<_> = place.reports().iter().map(|report| way(report).0[1].clone()).collect();
    assert_eq!(from, ["agent", "pg1"]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let mut next = place.hold("quic");
    let mut bare = place.settle(preloaded(program("curl"), self::address()));
    run(bare.args(["-sS", "--fail", "-o", "/dev/null"]).arg(format!("{url}/certificates/"))).ok();
    let mut without = place.settle(preloaded(program("curl"), self::address()));
    without.env("PHOEBUS_FIRST_HOP", "tcp");
    run(without.args(["-sS", "--fail", "-o", "/dev/null"]).arg(format!("{url}/certificates/"))).ok();
    let from: Vec<_> = place.reports().iter().map(|report| way(report).0[1].clone()).collect();
    assert_eq!(from, ["agent", "pg1"]);
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn destination_sees_the_death_of_an_agent() {
    let place = Place::new();
    let destination = TcpListener::bind((address().ip(), 0)).unwrap();
    let to = destination.local_addr().unwrap();
    let connect =
        "import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\ns.sendall(b'x')\ns.recv(1)";
    // Over UDT, only the beacon tells pg1, which tolerates an hour of silence.
    let mut python = place.run("udt/5007");
    python.arg(program("python3")).args(["-c", connect]).arg(to.ip().to_string()).arg(to.port().to_string());
    let mut child = python.stderr(Stdio::null()).spawn().unwrap();
    let (mut end, _) = destination.accept().unwrap();
    end.set_read_timeout(Some(LIMIT)).unwrap();
    end.read_exact(&mut [0]).unwrap();
    kill(place.agents()[0]);
    let error = end.read(&mut [0]).expect_err("a cut session must not end cleanly");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(!child.wait().unwrap().success());
}

#[test]
fn missing_settings_are_reported_before_the_start() {
    let place = Place::new();
    let refused = |code: i32, change: &dyn Fn(&mut Command), expected: &str| {
        let mut command = place.run("quic");
        change(command.arg("true"));
        let ended = run(&mut command);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(ended.err.contains(expected) && ended.err.lines().count() == 1, "{expected}: {ended:?}");
    };
    let first = place.gateways[0].ip().to_string();
    let unset = |name: &'static str| {
        move |command: &mut Command| {
            command.env_remove(name);
        }
    };
    let set = |name: &'static str, value: String| {
        move |command: &mut Command| {
            command.env(name, &value);
        }
    };
    refused(
        2,
        &unset("PHOEBUS_CA"),
        &format!("set PHOEBUS_CA (--ca) to a file with the authority that signed the certificate of {first}"),
    );
    refused(2, &unset("PHOEBUS_KEY"), "PHOEBUS_CERT is set and PHOEBUS_KEY (--key) is not; expected both");
    refused(2, &unset("PHOEBUS_CERT"), "PHOEBUS_KEY is set and PHOEBUS_CERT (--cert) is not");
    refused(2, &set("PHOEBUS_CERT", "/no/such/file".into()), "cannot read /no/such/file: no such file or directory");
    refused(2, &set("PHOEBUS_FALLBACK", "1".into()), "does not go with going direct instead");
}

#[test]
fn unavailable_first_hop_is_reported_before_the_start() {
    let place = Place::new();
    let other = place.file("other");
    run(plain(phoebus()).args(["cert", "init", "--dir"]).arg(&other).arg("mallory.example")).ok();
    let refused = |hop: &str, change: &dyn Fn(&mut Command), expected: &str| {
        let mut command = place.run(hop);
        change(command.arg("true"));
        let ended = run(&mut command);
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        let begins = format!("phoebus: no first hop by {hop} to ");
        // If that takes long, a message that the gateway has not answered yet comes first.
        let said: Vec<&str> =
            ended.err.lines().filter(|line| !line.contains("has not answered the agent by")).collect();
        assert!(said.len() == 1 && said[0].starts_with(&begins) && said[0].contains(expected), "{expected}: {ended:?}");
        assert!(place.agents().is_empty());
    };
    let mallory = |command: &mut Command| {
        command.env("PHOEBUS_CERT", other.join("mallory.example.pem"));
        command.env("PHOEBUS_KEY", other.join("mallory.example-key.pem"));
    };
    let stranger = |command: &mut Command| {
        command.env("PHOEBUS_CA", other.join("ca.pem"));
    };
    let nameless = |command: &mut Command| {
        command.env_remove("PHOEBUS_CERT").env_remove("PHOEBUS_KEY");
    };
    let untrusted =
        "its certificate is not signed by an authority that is trusted here: --ca (PHOEBUS_CA) has to name the one";
    for hop in ["quic", "tls"] {
        refused(hop, &mallory, "it does not accept this end's certificate");
        refused(hop, &stranger, untrusted);
        refused(hop, &nameless, "it wants to see a certificate of this end: give one (--cert, --key)");
    }
    // pg2 has only TCP.
    let deaf = |command: &mut Command| {
        command.env("PHOEBUS_PATH", place.gateways[1].to_string());
    };
    let port = place.gateways[1].port();
    refused("quic", &deaf, &format!("transport = \"quic\", and does a firewall let UDP port {port} through?"));
    let away = |command: &mut Command| {
        let nobody = address();
        command.env("PHOEBUS_PATH", format!("{nobody},{}", place.gateways[1]));
    };
    refused("tls", &away, "connection refused");
}

#[test]
fn other_users_cannot_use_the_agent() {
    // Only root can act as another user.
    if !fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        return;
    }
    let place = Place::new();
    let mut holder = place.hold("quic");
    // Others may read the files that the place's owner may read, except those that the agent itself protects.
    fs::set_permissions(place.room.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |command: &Command| {
        let mut nobody = Command::new(program("setpriv"));
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(command.get_program());
        nobody.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nobody.env(name, value),
                None => nobody.env_remove(name),
            };
        }
        run(&mut nobody)
    };
    let agents = place.file("phoebus/agents");
    let file = fs::read_dir(&agents)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| !path.is_symlink() && !path.file_name().unwrap().to_str().unwrap().contains('.'));
    let file = file.unwrap();
    let mut cat = Command::new("cat");
    let ended = as_nobody(cat.arg(&file));
    assert!(!ended.status.success() && ended.err.contains("Permission denied"), "{ended:?}");
    // A program that is told to use the agent cannot reach it, and does not go another way.
    fs::copy(library(), place.file("shim.so")).unwrap();
    let destination = TcpListener::bind((address().ip(), 0)).unwrap();
    let mut curl = place.settle(preloaded("/usr/bin/curl", self::address()));
    curl.env_remove("PHOEBUS_REPORT").env("LD_PRELOAD", place.file("shim.so"));
    curl.env("PHOEBUS_FIRST_HOP", "quic").env("PHOEBUS_VERBOSE", "1");
    curl.args(["-sS", "--max-time", "60"]).arg(format!("http://{}/", destination.local_addr().unwrap()));
    let ended = as_nobody(&curl);
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(ended.err.contains("no agent carries the first hop to gateway"), "{ended:?}");
    // A client that knows the address needs the secret.
    let text = fs::read_to_string(&file).unwrap();
    let listens = text.lines().find_map(|line| line.strip_prefix("listen ")).unwrap();
    let mut connect = plain(phoebus());
    connect.args(["connect", "--gateway", listens, "127.0.0.1:9"]).env("HOME", place.room.path());
    let ended = run(&mut connect);
    assert!(ended.err.contains("asks for authentication (agent)"), "{ended:?}");
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    holder.kill().unwrap();
    holder.wait().unwrap();
}
