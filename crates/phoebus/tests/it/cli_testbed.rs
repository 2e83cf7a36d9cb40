//! `phoebus testbed` for users: exit codes, names, concurrent processes. Needs root.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::PATIENCE;
use support::place::{PHOEBUS, Place, text};

#[test]
fn testbed_passes_on_the_exit_code_of_its_command() {
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
    let counters = place.0.path().join("missing/x").display().to_string();
    let unwritable = place.fail(125, &["run", "--quiet", "--counters", &counters, "--", "false"]);
    assert_eq!(unwritable, format!("phoebus: cannot use {counters}: No such file or directory"));
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
fn missing_rights_for_a_testbed_are_named() {
    let place = Place::new();
    let output = place.as_user("600", "exec $PHOEBUS testbed run -- true");
    let missing = "phoebus: /dev/net/tun is not open to this user; a testbed needs root, or `chmod 666 /dev/net/tun`\n";
    assert_eq!(text(&output.stderr), missing);
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn user_builds_a_testbed_with_access_to_tun() {
    let place = Place::new();
    let script = "exec $PHOEBUS testbed run --quiet -- sh -c 'id -u; $PHOEBUS testbed exec src -- getent ahostsv4 dst | head -1; \
                  $PHOEBUS testbed exec src -- $PHOEBUS testbed exec pg2 -- hostname; $PHOEBUS testbed cut wan && exit 5'";
    let output = place.as_user("666", script);
    // The command still runs as the user. In the hosts, it is root of its user namespace.
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "54321\n10.9.0.4        STREAM dst\npg2\n");
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn testbeds_stay_until_they_are_taken_down() {
    let place = Place::new();
    place.succeed(&["up", "--name", "one", "--wan-rtt", "10ms"]);
    // If there is only one testbed, no name is needed.
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
fn testbed_that_stays_holds_no_descriptor_of_its_starter() {
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
fn counters_file_holds_the_last_report() {
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
    // A host with a single link sends nothing of its own, so this is only the datagram.
    assert_eq!(entered("sdsc-la"), 1, "{report:#}");
    assert!(entered("chi-columbia") >= 1, "{report:#}");
}
