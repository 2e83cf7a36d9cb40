//! `phoebus testbed` as a user meets it: exit codes, other processes beside it, and what a SIGKILL leaves. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);
const PHOEBUS: &str = env!("CARGO_BIN_EXE_phoebus");

/// A place for state directories that no other test shares.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        place
    }

    fn testbeds(&self) -> PathBuf {
        self.0.path().join("testbeds")
    }

    fn phoebus(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PHOEBUS);
        command.arg("testbed").args(arguments).env("PHOEBUS_TESTBED_DIR", self.testbeds()).env("PHOEBUS", PHOEBUS);
        command.env_remove("PHOEBUS_TESTBED").stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.phoebus(arguments).output().unwrap()
    }

    /// Runs a command that is to succeed, and returns what it printed.
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that is to fail with `code`, and returns its one line of explanation.
    fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        said.trim_end().to_owned()
    }

    /// Runs a shell script as a user of this machine without any rights, to whom `/dev/net/tun` has the given mode.
    fn as_user(&self, tun: &str, script: &str) -> Output {
        let program = self.0.path().join("phoebus");
        fs::copy(PHOEBUS, &program).unwrap();
        let prepare = "cd \"$0\" && mkdir dev && mount -t tmpfs -o mode=755 none dev && mknod dev/tun c 10 200 && \
                       chmod \"$1\" dev/tun && mount --bind dev/tun /dev/net/tun && \
                       exec setpriv --reuid 54321 --regid 54321 --clear-groups --inh-caps=-all sh -c \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", prepare]).arg(self.0.path()).args([tun, script]);
        command.env("PHOEBUS", program).env("PHOEBUS_TESTBED_DIR", self.testbeds()).env_remove("PHOEBUS_TESTBED");
        command.output().unwrap()
    }

    /// What stands in the directory of state directories, hidden entries included.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.testbeds()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn report(&self) -> serde_json::Value {
        serde_json::from_str(&self.succeed(&["status", "--json"])).unwrap()
    }

    /// The process that owns the only testbed.
    fn owner(&self) -> u32 {
        self.report()["running"][0]["pid"].as_u64().unwrap().try_into().unwrap()
    }
}

/// A testbed that `run` keeps up while its command waits, with a program in a host and another outside.
struct Running {
    place: Place,
    name: String,
    /// `phoebus testbed run`.
    front: Child,
    command: u32,
    /// The program in a host.
    inhabitant: u32,
    owner: u32,
}

impl Running {
    fn start() -> Self {
        let place = Place::new();
        let script = "sleep 1000 & $PHOEBUS testbed exec dst -- sh -c 'echo $$; exec sleep 1000' & \
                      echo $$ $PHOEBUS_TESTBED; wait";
        let mut run = place.phoebus(&["run", "--quiet", "--", "sh", "-c", script]);
        let mut front = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = BufReader::new(front.stdout.take().unwrap()).lines();
        let mut lines: Vec<String> = said.take(2).map(|line| line.unwrap()).collect();
        lines.sort_by_key(|line| line.split(' ').count());
        let (command, name) = lines[1].split_once(' ').unwrap();
        let [command, inhabitant] = [command, &lines[0]].map(|pid| pid.parse().unwrap());
        Self { name: name.to_owned(), owner: place.owner(), place, front, command, inhabitant }
    }

    /// Waits until nothing is left, no process that bears the testbed's name and no directory, and returns `run`'s code.
    fn end(&mut self) -> Option<i32> {
        wait_until("no process is left", || bearers(&self.name).is_empty());
        wait_until("no directory is left", || self.place.left().is_empty());
        self.front.wait().unwrap().code()
    }
}

/// A failed test leaves nothing either.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.front.kill();
        for pid in bearers(&self.name) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
    }
}

#[test]
fn a_command_runs_beside_its_testbed_and_passes_its_code_on() {
    let place = Place::new();
    let script = "$PHOEBUS testbed exec src -- hostname; \
                  $PHOEBUS testbed exec dst -- $PHOEBUS testbed exec pg1 -- hostname; exit 7";
    let output = place.output(&["run", "--wan-rtt", "20ms", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "src\npg1\n");
    let conditions = text(&output.stderr);
    let wan = "wan pg1 - pg2: each way delay 10ms, loss 0, rate 1gbit, queue 16MB; MTU 1500";
    for stated in [wan, "tcp_rmem 4096 ", " 134217728", "tcp_no_metrics_save 1", "tcp_fastopen 3"] {
        assert!(conditions.contains(stated), "{conditions}");
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn exit_codes_tell_what_failed() {
    let place = Place::new();
    let run = |arguments: &[&'static str]| [&["run", "--quiet"], arguments].concat();
    assert_eq!(place.output(&run(&["--", "sh", "-c", "kill -TERM $$"])).status.code(), Some(128 + 15));
    assert!(place.fail(127, &run(&["--", "/nonexistent/program"])).contains("\"/nonexistent/program\" was not found"));
    assert!(place.fail(126, &run(&["--", "/etc/passwd"])).contains("\"/etc/passwd\" cannot be executed"));
    let none = "phoebus: no testbed is running; start one with `phoebus testbed up`";
    assert_eq!(place.fail(2, &["exec", "src", "--", "true"]), none);
    assert_eq!(place.fail(2, &["cut", "--name", "x", "wan"]), "phoebus: no testbed is running, so none is called x");
    let missing = "phoebus: /nonexistent.toml: cannot be read: No such file or directory";
    assert_eq!(place.fail(2, &run(&["--scenario", "/nonexistent.toml", "--", "true"])), missing);
    let endless = place.fail(2, &run(&["--scenario", "/dev/zero", "--", "true"]));
    assert_eq!(endless, "phoebus: /dev/zero: this is longer than 1048576 bytes; expected a scenario in TOML");
    let binary = place.0.path().join("binary.toml");
    std::fs::write(&binary, b"seed = 1\n\x7fELF\xff").unwrap();
    let said = place.fail(2, &["run", "--scenario", binary.to_str().unwrap(), "--", "true"]);
    assert_eq!(
        said,
        format!("phoebus: {}:2:5: this is no text in UTF-8; expected a scenario in TOML", binary.display())
    );
    std::fs::remove_file(binary).unwrap();
    let unwritable = place.fail(125, &run(&["--counters", "/nonexistent/x", "--", "false"]));
    assert_eq!(unwritable, "phoebus: cannot use /nonexistent/x: No such file or directory");
    let refused = text(&place.output(&run(&["--cc", "nonsense", "--", "true"])).stderr);
    assert!(
        refused.starts_with("phoebus: host src: congestion control nonsense was refused: the kernel has "),
        "{refused}"
    );
    for refused in [
        &["--scenario", "x", "--wan-rtt", "1ms"][..],
        &["--mtu", "500"],
        &["--wan-cc", "bbr"],
        &["--wan-streams", "8"],
        &["--seed", "x"],
    ] {
        assert_eq!(place.output(&run(&[refused, &["--", "true"]].concat())).status.code(), Some(2), "{refused:?}");
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn without_the_right_to_build_one_sentence_says_what_is_missing() {
    let place = Place::new();
    let output = place.as_user("600", "exec $PHOEBUS testbed run -- true");
    let missing = "phoebus: /dev/net/tun is not open to this user; a testbed needs root, or `chmod 666 /dev/net/tun`\n";
    assert_eq!(text(&output.stderr), missing);
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn a_user_builds_one_where_tun_is_open() {
    let place = Place::new();
    let script = "exec $PHOEBUS testbed run --quiet -- sh -c 'id -u; $PHOEBUS testbed exec src -- getent ahostsv4 dst | head -1; \
                  $PHOEBUS testbed exec src -- $PHOEBUS testbed exec pg2 -- hostname; $PHOEBUS testbed cut wan && exit 5'";
    let output = place.as_user("666", script);
    // The command is still the user's own; in the hosts it is root of its user namespace.
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "54321\n10.9.0.4        STREAM dst\npg2\n");
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn testbeds_stay_until_they_are_taken_down() {
    let place = Place::new();
    place.succeed(&["up", "--name", "one", "--wan-rtt", "10ms"]);
    // The only one needs no name.
    assert_eq!(place.succeed(&["exec", "pg2", "--", "hostname"]), "pg2\n");
    place.succeed(&["up", "--name", "two", "--json"]);
    let several = "phoebus: several testbeds are running, one and two; choose one with --name";
    assert_eq!(place.fail(2, &["exec", "pg2", "--", "hostname"]), several);
    assert!(place.fail(2, &["up", "--name", "one"]).starts_with("phoebus: a testbed named one is running; "));
    let unknown = "phoebus: testbed one has no host \"dts\"; it has src, pg1, pg2 and dst";
    assert_eq!(place.fail(2, &["exec", "--name", "one", "dts", "--", "true"]), unknown);

    place.succeed(&["set", "--name", "one", "wan:backward", "loss=1%", "delay=7ms"]);
    place.succeed(&["cut", "--name", "one", "lan1"]);
    let links = place.report()["running"][0]["links"].take();
    assert_eq!([0, 1].map(|link| &links[link]["counters"]["cut"]), [&true, &false]);
    assert_eq!(["loss", "delay"].map(|key| &links[1]["config"]["backward"][key]), ["0.01", "7ms"]);
    assert_eq!(["loss", "delay"].map(|key| &links[1]["config"]["forward"][key]), ["0", "5ms"]);
    place.succeed(&["heal", "--name", "one", "lan1"]);
    assert_eq!(place.report()["running"][0]["links"][0]["counters"]["cut"], false);
    let sideways = "phoebus: \"sideways\" is no direction of a link; expected forward or backward";
    assert_eq!(place.fail(2, &["set", "--name", "one", "wan:sideways", "loss=1%"]), sideways);
    let unknown = "phoebus: testbed one has no link \"w\"; it has lan1, wan and lan2";
    assert_eq!(place.fail(2, &["heal", "--name", "one", "w"]), unknown);

    place.succeed(&["down", "--name", "one"]);
    assert_eq!(place.succeed(&["down"]), "testbed two is down\n");
    assert_eq!(place.succeed(&["status"]), "no testbed is running\n");
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_testbed_that_stays_holds_nothing_of_its_starter() {
    let place = Place::new();
    let mut shell = Command::new("sh");
    // Both the supervisor and the sentinel could inherit the pipe.
    shell.args(["-c", "exec 9>&1; exec \"$0\" testbed up --name stays >/dev/null", PHOEBUS]);
    let mut shell = shell.env("PHOEBUS_TESTBED_DIR", place.testbeds()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = shell.stdout.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(std::io::copy(&mut pipe, &mut std::io::sink()).is_ok()));
    let ended = told.recv_timeout(PATIENCE);
    assert!(shell.wait().unwrap().success());
    place.succeed(&["down"]);
    assert_eq!(ended, Ok(true), "somebody still holds the pipe");
}

#[test]
fn the_counters_file_holds_the_last_report() {
    let place = Place::new();
    let file = place.0.path().join("counters.json");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wan/scenarios/columbia.toml");
    // It has arrived when the receiver ends.
    let hello = r#"
        $PHOEBUS testbed exec columbia -- python3 -c '
import socket
receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiver.settimeout(60)
receiver.bind(("::", 9))
print("ready", flush=True)
receiver.recv(100)' >"$1/columbia" &
        until grep -q ready "$1/columbia"; do sleep 0.02; done
        $PHOEBUS testbed exec sdsc -- bash -c 'echo hello >/dev/udp/columbia/9'
        wait
    "#;
    let [counters, scenario, directory] = [&file, &scenario, place.0.path()].map(|path| path.to_str().unwrap());
    let run =
        ["run", "--quiet", "--counters", counters, "--scenario", scenario, "--", "sh", "-c", hello, "sh", directory];
    place.succeed(&run);
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let links = report["links"].as_array().unwrap();
    let entered = |name: &str| {
        let link = links.iter().find(|link| link["name"] == name).unwrap();
        link["counters"]["forward"]["entered"]["segments"].as_u64().unwrap()
    };
    // A host on one link says nothing of its own accord, so this is the datagram alone.
    assert_eq!(entered("sdsc-la"), 1, "{report:#}");
    assert!(entered("chi-columbia") >= 1, "{report:#}");
}

#[test]
fn gateways_join_the_ends_in_both_directions() {
    join_the_ends(&["--wan-cc", "reno"], "pg1 at pg1:5006 by tcp");
}

#[test]
fn gateways_join_the_ends_over_another_transport() {
    join_the_ends(&["--wan-transport", "udt"], "pg1 at pg1:5007 by udt");
    join_the_ends(&["--wan-streams", "3"], "pg1 at pg1:5006 by tcp");
    join_the_ends(&["--wan-transport", "quic"], "pg1 at pg1:5006 by quic (encrypt)");
    join_the_ends(&["--wan-security", "auth"], "pg1 at pg1:5006 by tcp (auth)");
}

#[test]
fn a_hop_of_several_connections_moves_data_over_a_wan_that_loses_some() {
    let place = Place::new();
    // A server that answers with the checksum of what it has received, to its end.
    let script = r#"
        $PHOEBUS testbed exec dst -- python3 -c '
import hashlib, socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
client, _ = server.accept()
digest = hashlib.sha256()
while piece := client.recv(1 << 20):
    digest.update(piece)
client.sendall(digest.hexdigest().encode() + b"\n")
client.close()' >"$1/dst" &
        server=$!
        until grep -q ready "$1/dst"; do kill -0 $server || exit 1; sleep 0.02; done
        head -c 30000000 /dev/urandom >"$1/data"
        sha256sum <"$1/data" | cut -d" " -f1
        $PHOEBUS testbed exec src -- env PHOEBUS_PATH=pg1/5006,pg2/5006 $PHOEBUS connect dst:7000 <"$1/data"
        until grep -q "session ended" "$1/logs/pg1.log"; do sleep 0.02; done
        grep -o "tcp,tcp.8" "$1/logs/pg1.log"
    "#;
    let directory = place.0.path().to_str().unwrap();
    let logs = place.0.path().join("logs");
    let options = ["--wan-streams", "8", "--wan-cc", "cubic", "--wan-loss", "0.1%", "--wan-rtt", "20ms"];
    let run = ["run", "--quiet", "--gateways", "--gateway-logs", logs.to_str().unwrap()];
    let said = place.succeed(&[&run[..], &options, &["--", "sh", "-c", script, "sh", directory]].concat());
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((lines.len(), lines.get(2)), (3, Some(&"tcp,tcp*8")), "{said}");
    assert_eq!(lines[0], lines[1], "the data was changed");
}

/// Sessions through gateways that were started with `options`, so that pg2 calls its peer `peer`.
fn join_the_ends(options: &[&str], peer: &str) {
    let place = Place::new();
    // A server that answers in capitals in each end, then a session from each to the other, by path and by routes.
    let script = r#"
        for host in src dst; do
            $PHOEBUS testbed exec $host -- python3 -c '
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(client.recv(100).upper())
    client.close()' >"$1/$host" &
        done
        until grep -q ready "$1/src" && grep -q ready "$1/dst"; do sleep 0.02; done
        echo out | $PHOEBUS testbed exec src -- env PHOEBUS_PATH=pg1/5006,pg2/5006 $PHOEBUS connect dst:7000
        echo back | $PHOEBUS testbed exec dst -- env PHOEBUS_PATH=pg2/5006,pg1/5006 $PHOEBUS connect src:7000
        echo routed | $PHOEBUS testbed exec src -- env PHOEBUS_GW=pg1/5006 $PHOEBUS connect dst:7000
        $PHOEBUS testbed exec src -- env PHOEBUS_GW=pg1/5006 $PHOEBUS connect pg2:22 </dev/null || echo refused $?
        $PHOEBUS testbed exec pg2 -- $PHOEBUS status | grep -oE "^gateway pg2|pg1 at .*:" | cut -d: -f1-2
    "#;
    let directory = place.0.path().to_str().unwrap();
    let run = ["run", "--quiet", "--gateways", "--wan-send-buffer", "8MiB", "--wan-rtt", "10ms"];
    let logs = place.0.path().join("logs");
    let output = place.output(
        &[&run[..], options, &["--gateway-logs", logs.to_str().unwrap(), "--", "sh", "-c", script, "sh", directory]]
            .concat(),
    );
    let expected = format!("OUT\nBACK\nROUTED\nrefused 3\ngateway pg2\n{peer}\n");
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let log = fs::read_to_string(logs.join("pg1.log")).unwrap();
    assert!(
        log.contains("listening address=10.9.0.2:5006") && log.contains("listening address=[fd09::2]:5006"),
        "{log}"
    );
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_gateway_that_does_not_start_fails_the_testbed() {
    let place = Place::new();
    let scenario = place.0.path().join("one.toml");
    fs::write(&scenario, "host = [{ name = \"a\" }]").unwrap();
    let run = ["run", "--quiet", "--gateways", "--scenario", scenario.to_str().unwrap(), "--", "true"];
    let none = "phoebus: gateways were asked for, but no [[host]] of the scenario says `gateway = true`";
    assert_eq!(place.fail(2, &run), none);
    // A name that means nothing to a gateway, though a host may bear it.
    fs::write(
        &scenario,
        "host = [{ name = \"direct\", gateway = true }, { name = \"b\", gateway = true }]\n\
                          link = [{ name = \"l\", ends = [\"direct\", \"b\"] }]",
    )
    .unwrap();
    let said = place.fail(125, &run);
    assert!(said.starts_with("phoebus: the gateway on b ended at its start, exit status: 2; it said: "), "{said}");
    assert!(said.contains("\"direct\" is no name for a peer"), "{said}");
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn signals_reach_the_command() {
    let place = Place::new();
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = place.phoebus(&["run", "--quiet", "--", "sh", "-c", script]);
    let mut front = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(front.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal("TERM", &[front.id()]);
    assert_eq!(front.wait().unwrap().code(), Some(9));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn killing_run_leaves_nothing() {
    let mut running = Running::start();
    assert!(bearers(&running.name).contains(&running.inhabitant));
    signal("KILL", &[running.front.id()]);
    assert_eq!(running.end(), None);
}

#[test]
fn killing_the_command_leaves_nothing_in_the_hosts() {
    let mut running = Running::start();
    signal("KILL", &[running.command]);
    assert_eq!(running.front.wait().unwrap().code(), Some(128 + 9));
    // What the command left outside its testbed is its own affair, as with any command.
    let outside = bearers(&running.name);
    assert_eq!(outside.len(), 1, "{outside:?}");
    assert!(!outside.contains(&running.inhabitant));
    signal("KILL", &outside);
    assert_eq!(running.end(), Some(128 + 9));
}

#[test]
fn killing_the_owner_ends_the_command_too() {
    let mut running = Running::start();
    signal("KILL", &[running.owner]);
    assert_eq!(running.front.wait().unwrap().code(), Some(125));
    wait_until("no program is left in the hosts", || !bearers(&running.name).contains(&running.inhabitant));
    assert!(!bearers(&running.name).contains(&running.command));
    signal("KILL", &bearers(&running.name));
    assert_eq!(running.end(), Some(125));
}

#[test]
fn a_stale_testbed_is_told_and_cleared() {
    let place = Place::new();
    let kill_all = || {
        place.succeed(&["up", "--name", "lost"]);
        let inhabitant = place
            .phoebus(&["exec", "dst", "--", "sleep", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the program runs", || program(inhabitant.id()) == "sleep");
        let owner = place.owner();
        // The sentinel first, so that nobody is left to clean up.
        let children = fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap();
        let mut both: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(both.len(), 1, "{both:?}");
        both.push(owner);
        signal("KILL", &both);
        wait_until("its death shows", || text(&place.output(&["status"]).stdout).contains("testbed lost is stale"));
        inhabitant
    };
    let mut inhabitant = kill_all();
    let others = &place.report()["others"];
    assert_eq!((&others[0]["name"], &others[0]["state"]), (&"lost".into(), &"stale".into()));
    assert!(place.succeed(&["status"]).starts_with("testbed lost is stale: its owner died; "));
    assert_eq!(program(inhabitant.id()), "sleep");
    assert_eq!(place.succeed(&["down", "--name", "lost"]), "testbed lost is down\n");
    assert!(!inhabitant.wait().unwrap().success());
    assert_eq!(place.left(), Vec::<String>::new());

    // The next testbed clears it as well, whatever its name.
    let mut inhabitant = kill_all();
    place.succeed(&["run", "--quiet", "--name", "next", "--", "true"]);
    assert!(!inhabitant.wait().unwrap().success());
    assert_eq!(place.left(), Vec::<String>::new());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, pids: &[u32]) {
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    assert!(Command::new("kill").arg(format!("-{name}")).args(pids).status().unwrap().success());
}

/// The name of the program that a process runs; empty for one that has ended.
fn program(pid: u32) -> String {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if state.contains(") Z ") { String::new() } else { name.trim().to_owned() }
}

/// The processes that have the testbed `name` in their environment.
fn bearers(name: &str) -> Vec<u32> {
    let entry = format!("PHOEBUS_TESTBED={name}");
    let pids = fs::read_dir("/proc").unwrap().filter_map(|one| one.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let bears = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == entry.as_bytes())
    };
    pids.filter(bears).collect()
}
