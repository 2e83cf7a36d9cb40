//! A signal or a SIGKILL to any process of a testbed leaves nothing behind. Needs root.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::place::{Place, text};

/// A testbed that `run` keeps while its command waits, with one program in a host and another outside.
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
    // It is visible once it has executed the other program.
    wait_until("the program runs", || bearers(&running.name).contains(&running.inhabitant));
    signal("KILL", &[running.front.id()]);
    assert_eq!(running.end(), None);
}

#[test]
fn killing_the_command_leaves_nothing_in_the_hosts() {
    let mut running = Running::start();
    signal("KILL", &[running.command]);
    assert_eq!(running.front.wait().unwrap().code(), Some(128 + 9));
    // Processes that the command left outside its testbed are not the testbed's concern.
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
fn stale_testbed_is_reported_and_removed() {
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
        // The sentinel first, so that no process is left to clean up.
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

    // The next testbed removes the remains, whatever its name.
    let mut inhabitant = kill_all();
    place.succeed(&["run", "--quiet", "--name", "next", "--", "true"]);
    assert!(!inhabitant.wait().unwrap().success());
    assert_eq!(place.left(), Vec::<String>::new());
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
