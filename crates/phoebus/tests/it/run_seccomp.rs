//! `phoebus run` where the preload library cannot reach: connects that seccomp catches behave as they do without
//! gateways, and nothing goes direct, whatever a program or its signals do. The program is `tests/c/connects.c`.

use crate::support::works::works;
use crate::support::{Certificates, Gateway, PATIENCE, address, wait_until};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A directory with the static program.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/connects.c");
        let mut cc = Command::new("cc");
        cc.args(["-static", "-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(place.path("connects")).arg(source);
        assert!(cc.status().unwrap().success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program with a case, by itself.
    fn alone(&self, case: &str, to: SocketAddr, more: &str) -> Command {
        let mut command = Command::new(self.path("connects"));
        command.args([case, &to.ip().to_string(), &to.port().to_string(), more]).stdin(Stdio::null());
        command
    }

    /// The program with a case, under `phoebus run` with a gateway.
    fn caught(&self, gateway: SocketAddr, case: &str, to: SocketAddr, more: &str) -> Command {
        let mut command = run(gateway);
        command.arg("--").arg(self.path("connects"));
        command.args([case, &to.ip().to_string(), &to.port().to_string(), more]);
        command
    }
}

/// `phoebus run` with everything on loopback led through this gateway.
fn run(gateway: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["run", "--catch", "seccomp", "--only", "127.0.0.0/8,[::1]/128", "--gateway", &gateway.to_string()]);
    command.env("HOME", "/nonexistent").env("XDG_RUNTIME_DIR", "/nonexistent").stdin(Stdio::null());
    command
}

/// A server that sends back what it gets, and counts its connections.
struct Echo {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        Self::start_at(SocketAddr::from((address(), 7000)))
    }

    fn start_at(addr: SocketAddr) -> Self {
        // All clients of a test may come at once.
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&addr.into()).unwrap();
        socket.listen(1024).unwrap();
        let listener = TcpListener::from(socket);
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let mut client = client.unwrap();
                thread::spawn(move || io::copy(&mut client.try_clone().unwrap(), &mut client));
            }
        });
        Self { addr, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command prints. It must succeed and complain of nothing.
fn output(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success() && stderr.is_empty(), "{command:?}: {status}: {}", text(&stderr));
    text(&stdout)
}

fn sessions(gateway: &Gateway) -> u64 {
    gateway.status()["totals"]["sessions_opened"].as_u64().unwrap()
}

/// A program that runs, and its lines.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self(child, lines)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its remaining lines, its exit status, and what it complained of.
    fn end(mut self) -> (String, std::process::ExitStatus, String) {
        let (mut rest, mut said) = (String::new(), String::new());
        self.1.read_to_string(&mut rest).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (rest, self.0.wait().unwrap(), said)
    }
}

/// What stands before a gateway, and passes nothing on until it is told to.
fn barrier() -> TcpListener {
    TcpListener::bind((address(), 5006)).unwrap()
}

/// Passes a connection on.
fn pass_on(client: TcpStream, gateway: SocketAddr) {
    let server = TcpStream::connect(gateway).unwrap();
    for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

#[test]
fn caught_connects_behave_as_without_gateways() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    for case in ["errors", "kinds"] {
        let more = |which: &str| place.path(&format!("{case}-{which}")).to_str().unwrap().to_owned();
        let before = sessions(&gateway);
        let alone = output(place.alone(case, echo.addr, &more("alone")));
        assert_eq!(output(place.caught(gateway.addr, case, echo.addr, &more("caught"))), alone, "{case}");
        assert!(alone.lines().count() > 10, "{alone}");
        assert!(sessions(&gateway) >= before + 3, "{case}: its connections went through the gateway");
    }
}

#[test]
fn socket_of_one_family_reaches_a_gateway_of_another() {
    let allow = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"::1/128\"]\n";
    let (place, gateway) = (Place::new(), Gateway::start("pg1", allow));
    let echo = Echo::start_at("[::1]:0".parse().unwrap());
    // The program has the address itself.
    let to = SocketAddr::from(([127, 0, 0, 1], echo.addr.port()));
    assert_eq!(output(place.caught(gateway.addr, "six", to, "")), "connect: 0\nit answers: 0\n");
    assert_eq!((sessions(&gateway), echo.connections()), (1, 1));
}

#[test]
fn ways_past_connect_are_closed() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    let said = output(place.caught(gateway.addr, "detours", echo.addr, ""));
    let mut expected = "sendto: EOPNOTSUPP\nsendmsg: EOPNOTSUPP\nsendmmsg: EOPNOTSUPP\n\
                        io_uring_setup: ENOSYS\nio_uring_enter: ENOSYS\n"
        .to_owned();
    if cfg!(target_arch = "x86_64") {
        expected.push_str("x32: ENOSYS\n");
    }
    assert_eq!((said, echo.connections()), (expected, 0));
}

#[test]
fn five_hundred_processes_connect_at_once() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    assert_eq!(output(place.caught(gateway.addr, "children", echo.addr, "500")), "500\n");
    assert_eq!((sessions(&gateway), echo.connections()), (500, 500));
}

#[test]
fn socket_that_is_closed_amid_the_call_leaves_the_next_one_alone() {
    let (place, barrier, echo) = (Place::new(), barrier(), Echo::start());
    let mut program = Running::start(place.caught(barrier.local_addr().unwrap(), "swapped", echo.addr, ""));
    let (mut client, _) = barrier.accept().unwrap();
    // The handshake has begun.
    client.read_exact(&mut [0]).unwrap();
    program.0.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert_eq!((program.line(), program.line()), ("the same number: 1".to_owned(), "swapped".to_owned()));
    drop(client);
    let (rest, status, said) = program.end();
    assert_eq!(rest, "connect: ECONNRESET\nthe new socket: ENOTCONN\n", "{said}");
    assert!(status.success() && said.contains("failed before the session was open"), "{said}");
    assert_eq!(echo.connections(), 0);
}

/// The address is judged and used as one, whatever the caller's memory holds before and after.
#[test]
fn address_that_changes_amid_the_call_leads_nothing_past_the_gateway() {
    let (place, gateway) = (Place::new(), Gateway::start("pg1", ""));
    let selected = Echo::start();
    let port = selected.addr.port();
    let direct = Echo::start_at(SocketAddr::from((address(), port)));
    let mut command = run(gateway.addr);
    command.arg("--except").arg(direct.addr.ip().to_string()).arg("--").arg(place.path("connects"));
    let ip = selected.addr.ip().to_string();
    command.args(["flips", &ip, &port.to_string(), &direct.addr.ip().to_string()]);
    assert_eq!(output(command), "1000\n");
    assert_eq!(sessions(&gateway) as usize, selected.connections(), "all that it leads to the one, and nothing else");
    assert_eq!(selected.connections() + direct.connections(), 1000);
    assert!(selected.connections() > 0 && direct.connections() > 0);
}

/// A program that believes that its socket connects would write amid the handshake.
#[test]
fn signals_do_not_end_the_wait_for_a_session() {
    let (place, gateway, echo, barrier) = (Place::new(), Gateway::start("pg1", ""), Echo::start(), barrier());
    let at = barrier.local_addr().unwrap();
    for case in ["restarted", "interrupted"] {
        let mut program = Running::start(place.caught(at, case, echo.addr, ""));
        let (client, _) = barrier.accept().unwrap();
        assert_eq!(program.line(), "interrupted");
        pass_on(client, gateway.addr);
        let (rest, _, said) = program.end();
        assert_eq!((&rest[..], &said[..]), ("connect: 0\nit answers: 0\nagain: EISCONN\n", ""), "{case}");
    }
    assert_eq!((sessions(&gateway), echo.connections()), (2, 2));
    barrier.set_nonblocking(true).unwrap();
    assert_eq!(barrier.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it was connected once");
}

#[test]
fn socket_that_waits_no_longer_is_unconnected() {
    let (place, barrier, echo) = (Place::new(), barrier(), Echo::start());
    let program = Running::start(place.caught(barrier.local_addr().unwrap(), "impatient", echo.addr, ""));
    let (mut client, _) = barrier.accept().unwrap();
    let mut heard = Vec::new();
    let end = client.read_to_end(&mut heard);
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    assert!(!text(&heard).contains("too early"), "{heard:?}");
    let (rest, _, said) = program.end();
    assert!(rest.starts_with("connect: ETIMEDOUT\n") && rest.ends_with("send: EPIPE\n"), "{rest}");
    assert!(said.contains("the longest wait of this socket"), "{said}");
}

#[test]
fn names_that_cannot_be_looked_up_let_nothing_go_direct() {
    // A label is shorter.
    let none = format!("{}.example", "x".repeat(63));
    let to = SocketAddr::from(([192, 0, 2, 1], 9));
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["run", "--catch", "seccomp", "--only", &none, "--gateway", "127.0.0.1/1", "--"]);
    command.arg(place.path("connects")).args(["children", &to.ip().to_string(), "9", "2"]).env("HOME", "/nonexistent");
    let Output { stdout, stderr, .. } = command.output().unwrap();
    assert_eq!(text(&stdout), "child: EHOSTUNREACH\nchild: EHOSTUNREACH\n0\n");
    let said = text(&stderr);
    assert!(said.contains("whose addresses cannot be looked up") && said.lines().count() == 1, "{said}");
}

/// Elsewhere, whoever listens at the agent's address is another program.
#[test]
fn agent_is_not_sought_in_another_network() {
    let (place, certificates) = (Place::new(), Certificates::new());
    let at = SocketAddr::from((address(), 5006));
    let listen = format!("[[listen]]\naddress = \"{at}\"\ntransport = \"quic\"\nclient_certificate = \"optional\"\n");
    let tls = certificates.issue(&at.ip().to_string());
    let gateway = Gateway::start_at(at, "pg1", &format!("{listen}{tls}"));
    let mut command = run(gateway.addr);
    command.args(["--first-hop", "quic", "--ca"]).arg(certificates.file("ca.pem"));
    command.args(["--", "unshare", "-Urn"]).arg(place.path("connects")).args(["children", "127.0.0.1", "9", "1"]);
    command.env("XDG_RUNTIME_DIR", place.0.path()).env("PHOEBUS_AGENT_IDLE", "100ms");
    let Output { stdout, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert_eq!(text(&stdout), "child: ENETUNREACH\n0\n", "{said}");
    assert!(said.contains("another network namespace than the agent, which alone carries"), "{said}");
}

#[test]
fn signals_to_all_processes_leave_the_program_served() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    let mut command = run(gateway.addr);
    let script = "trap 'exec \"$0\" \"$@\"' TERM; echo $PPID; while :; do sleep 0.05; done";
    command.args(["--", "sh", "-c", script]).arg(place.path("connects"));
    command.args(["children", &echo.addr.ip().to_string(), &echo.addr.port().to_string(), "3"]);
    let mut program = Running::start(command);
    let supervisor = rustix::process::Pid::from_raw(program.line().parse().unwrap()).unwrap();
    for number in [1, 2, 3, 10, 12, 14, 15, 34] {
        let signal = rustix::process::Signal::from_named_raw(number);
        if let Some(signal) = signal {
            rustix::process::kill_process(supervisor, signal).unwrap();
        }
    }
    let front = rustix::process::Pid::from_child(&program.0);
    rustix::process::kill_process(front, rustix::process::Signal::TERM).unwrap();
    let (rest, status, said) = program.end();
    assert_eq!((&rest[..], status.code(), &said[..]), ("3\n", Some(0), ""));
}

#[test]
fn command_stands_for_its_program_when_the_supervisor_was_killed() {
    use rustix::process::{Pid, Signal, kill_process};
    let gateway = Gateway::start("pg1", "");
    let script = "trap 'echo told; exit 3' USR1; echo $PPID; echo $$; while :; do sleep 0.05; done";
    let mut command = run(gateway.addr);
    command.args(["--", "sh", "-c", script]);
    // The kernel stops no group that nobody could continue, and the test may be in such a group.
    command.process_group(0);
    let mut program = Running::start(command);
    let [supervisor, own] = [program.line(), program.line()].map(|line| Pid::from_raw(line.parse().unwrap()).unwrap());
    let front = Pid::from_child(&program.0);
    kill_process(supervisor, Signal::KILL).unwrap();
    kill_process(own, Signal::STOP).unwrap();
    wait_until(|| state(front.as_raw_pid()) == 'T', || "the command does not stop".to_owned());
    kill_process(front, Signal::CONT).unwrap();
    kill_process(front, Signal::USR1).unwrap();
    let (rest, status, _) = program.end();
    assert_eq!((&rest[..], status.code()), ("told\n", Some(125)));
}

#[test]
fn command_that_has_stopped_ends_with_its_program() {
    use rustix::process::{Pid, Signal, kill_process};
    let mut command = run(SocketAddr::from((address(), 1)));
    command.args(["--", "sh", "-c", "echo $$; kill -STOP $$"]);
    // The kernel hangs up a stopped group that nobody could continue, and the test may be in such a group.
    command.process_group(0);
    let mut program = Running::start(command);
    let own = Pid::from_raw(program.line().parse().unwrap()).unwrap();
    let front = program.0.id() as i32;
    wait_until(|| state(front) == 'T', || "the command does not stop".to_owned());
    kill_process(own, Signal::KILL).unwrap();
    assert_eq!(program.end().1.signal(), Some(9));
    // Nor does it keep what a program has closed.
    let run = run(SocketAddr::from((address(), 1)));
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 3>&1", "sh"]).arg(run.get_program()).args(run.get_args());
    command.args(["--", "sh", "-c", "exec >/dev/null 3>&-; read line; exit 4"]);
    let mut program = Running::start(command);
    assert_eq!(program.line(), "");
    program.0.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert_eq!(program.end().1.code(), Some(4));
}

#[test]
fn nothing_goes_direct_after_the_supervisor_was_killed() {
    let (place, barrier, echo) = (Place::new(), barrier(), Echo::start());
    let mut program = Running::start(place.caught(barrier.local_addr().unwrap(), "orphaned", echo.addr, ""));
    let supervisor = rustix::process::Pid::from_raw(program.line().parse().unwrap()).unwrap();
    assert_ne!(supervisor, rustix::process::Pid::from_child(&program.0));
    let (mut client, _) = barrier.accept().unwrap();
    client.read_exact(&mut [0]).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    let (rest, status, said) = program.end();
    let failed = "connect: ENOSYS\n".repeat(3);
    assert_eq!(rest, format!("{failed}child: ENOSYS\nfresh process: 0\n"));
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains("was killed; further connects of the program fail"), "{said}");
    assert_eq!(echo.connections(), 0);
}

#[test]
fn command_that_is_killed_takes_the_program_and_its_connect_along() {
    let (place, barrier, echo) = (Place::new(), barrier(), Echo::start());
    let mut program = Running::start(place.caught(barrier.local_addr().unwrap(), "orphaned", echo.addr, ""));
    program.line();
    let (mut client, _) = barrier.accept().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.read_exact(&mut [0]).unwrap();
    program.0.kill().unwrap();
    let end = io::copy(&mut client, &mut io::sink());
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    let (rest, status, _) = program.end();
    assert_eq!((&rest[..], status.signal(), echo.connections()), ("", Some(9), 0));
}

#[test]
fn command_behaves_as_its_program() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    let shell = |script: &str| {
        let mut command = run(gateway.addr);
        command.args(["--", "sh", "-c", script]).arg(place.path("connects"));
        command.args(["children", &echo.addr.ip().to_string(), &echo.addr.port().to_string(), "3"]);
        command
    };
    for (script, code, signal) in
        [("exit 7", Some(7), None), ("kill -9 $$", None, Some(9)), ("kill $$", None, Some(15))]
    {
        let status = shell(script).status().unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
    // It gives the program what it has itself: signals, descriptors, limits, process group.
    let own = "grep -E '^Sig[BCI]' /proc/self/status; ls /proc/self/fd | wc -l; ulimit -n; pwd; cut -d' ' -f5 /proc/self/stat";
    let mut alone = Command::new("sh");
    alone.args(["-c", own]).stdin(Stdio::null());
    assert_eq!(output(shell(own)), output(alone));
    // A signal to the command reaches the program.
    let mut program = Running::start(shell("trap 'echo told; exit 3' USR1; echo ready; while :; do sleep 0.05; done"));
    assert_eq!(program.line(), "ready");
    let front = rustix::process::Pid::from_child(&program.0);
    rustix::process::kill_process(front, rustix::process::Signal::USR1).unwrap();
    let (rest, status, said) = program.end();
    assert_eq!((&rest[..], status.code(), &said[..]), ("told\n", Some(3), ""));
    // It stops and goes on with the program.
    let mut program = Running::start(shell("echo $$; kill -STOP $$; echo on"));
    let own: i32 = program.line().parse().unwrap();
    let front = rustix::process::Pid::from_child(&program.0);
    wait_until(|| state(front.as_raw_pid()) == 'T' && state(own) == 'T', || "the command does not stop".to_owned());
    rustix::process::kill_process(front, rustix::process::Signal::CONT).unwrap();
    assert_eq!(program.line(), "on");
    assert!(program.end().1.success());
    // What the program leaves running is served after the command has ended.
    let before = sessions(&gateway);
    let (go, done) = (place.path("go"), place.path("done"));
    let script = format!(
        "(while [ ! -e {0} ]; do sleep 0.05; done; \"$0\" \"$@\" >{1}.new; mv {1}.new {1}) >/dev/null 2>&1 & echo left",
        go.display(),
        done.display()
    );
    assert_eq!(output(shell(&script)), "left\n");
    fs::write(go, "").unwrap();
    wait_until(|| done.exists(), || "the orphan has not connected".to_owned());
    assert_eq!((fs::read_to_string(done).unwrap(), sessions(&gateway) - before), ("3\n".to_owned(), 3));
}

/// The state of a process, as ps(1) shows it.
fn state(pid: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

#[test]
fn destinations_are_selected_by_address_and_by_name() {
    let (place, gateway) = (Place::new(), Gateway::start("pg1", ""));
    let echo = Echo::start_at("127.0.0.1:0".parse().unwrap());
    let with = |options: &[&str]| {
        let mut command = run(gateway.addr);
        command.arg("--verbose").args(options).arg("--").arg(place.path("connects"));
        command.args(["children", "127.0.0.1", &echo.addr.port().to_string(), "1"]);
        let Output { stdout, stderr, .. } = command.output().unwrap();
        assert_eq!(text(&stdout), "1\n");
        text(&stderr)
    };
    let said = with(&[]);
    assert!(said.contains("phoebus: seccomp catches the connections of ") && said.contains(" pg1 "), "{said}");
    let said = with(&["--except", "localhost"]);
    assert!(said.contains(": direct: ") && said.contains("--except"), "{said}");
    let said = with(&["--except", ".example.org"]);
    assert!(said.contains("PHOEBUS_EXCEPT: domains such as .example.org match no connection"), "{said}");
    assert_eq!((sessions(&gateway), echo.connections()), (2, 3));
}

#[test]
fn gateway_that_does_not_answer_is_told_or_gone_around() {
    let (place, echo) = (Place::new(), Echo::start());
    let closed = SocketAddr::from((address(), 1));
    let with = |options: &[&str]| {
        let mut command = run(closed);
        command.args(options).arg("--").arg(place.path("connects"));
        command.args(["children", &echo.addr.ip().to_string(), &echo.addr.port().to_string(), "2"]);
        let Output { stdout, stderr, .. } = command.output().unwrap();
        (text(&stdout), text(&stderr))
    };
    let (lines, said) = with(&[]);
    assert_eq!((&lines[..], echo.connections()), ("child: ECONNREFUSED\nchild: ECONNREFUSED\n0\n", 0));
    assert!(said.contains("cannot connect to ") && said.lines().count() == 1, "{said}");
    let (lines, said) = with(&["--fallback", "--verbose"]);
    assert_eq!((&lines[..], echo.connections()), ("2\n", 2));
    assert!(said.matches(": direct: gateway ").count() == 2, "{said}");
}

#[test]
fn reports_name_the_way() {
    let (place, gateway, echo) = (Place::new(), Gateway::start("pg1", ""), Echo::start());
    let report = place.path("report");
    let closed = SocketAddr::new(echo.addr.ip(), 1);
    for to in [echo.addr, closed] {
        let mut command = run(gateway.addr);
        command.arg("--report").arg(&report).arg("--").arg(place.path("connects"));
        command.args(["children", &to.ip().to_string(), &to.port().to_string(), "1"]);
        command.output().unwrap();
    }
    let report = fs::read_to_string(report).unwrap();
    let lines: Vec<serde_json::Value> = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{report}");
    assert_eq!((&lines[0]["event"], &lines[0]["caught_by"]), (&"opened".into(), &"seccomp".into()));
    assert_eq!(lines[0]["destination"], echo.addr.to_string());
    assert_eq!(lines[0]["hops"].as_array().unwrap().len(), 2);
    assert_eq!((&lines[1]["event"], &lines[1]["errno"]), (&"failed".into(), &libc::ECONNREFUSED.into()));
    assert!(lines.iter().all(|line| line["pid"].as_i64() > Some(0)), "{report}");
}

#[test]
fn two_supervisors_do_not_catch_the_same_program() {
    let gateway = Gateway::start("pg1", "");
    let mut command = run(gateway.addr);
    command.arg("--").arg(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["run", "--catch", "seccomp", "--gateway", &gateway.addr.to_string(), "true"]);
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains("another process catches calls of this one already"), "{said}");
}

/// A server of HTTP with one resource.
fn http(body: usize) -> SocketAddr {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from((address(), 0)).into()).unwrap();
    listener.listen(1024).unwrap();
    let listener = TcpListener::from(listener);
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || {
                let mut client = client.unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                // Nothing follows the request, whose end may come by itself.
                let (mut request, mut some) = (Vec::new(), [0; 4096]);
                while !request.ends_with(b"\r\n\r\n") {
                    match client.read(&mut some) {
                        Ok(n) if n > 0 => request.extend_from_slice(&some[..n]),
                        _ => return,
                    }
                }
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\nConnection: close\r\n\r\n");
                let _ = client.write_all(head.as_bytes());
                let _ = client.write_all(&vec![b'x'; body]);
            });
        }
    });
    addr
}

/// Builds the Go program; `cgo` decides whether it is static.
fn go(place: &Path) -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let program = place.join("get");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go/get.go"));
    build.env("GOCACHE", cache.join("build")).env("GOPATH", cache.join("path")).env("GOPROXY", "off");
    build.env("CGO_ENABLED", "0").env("GOFLAGS", "-modcacherw").current_dir(place);
    assert!(build.status().unwrap().success());
    program
}

const ASYNCIO: &str = "
import asyncio, sys
async def one(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b'GET / HTTP/1.0\\r\\n\\r\\n')
    answer = await reader.read()
    writer.close()
    return len(answer.partition(b'\\r\\n\\r\\n')[2])
async def all(host, port, count):
    print(sum(await asyncio.gather(*[one(host, port) for _ in range(count)])))
asyncio.run(all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
";

const NODE: &str = "
const [host, port, count] = process.argv.slice(1);
let left = +count, sum = 0;
for (let i = 0; i < +count; i++)
    require('http').get({host, port, agent: false}, answer => {
        answer.on('data', data => sum += data.length);
        answer.on('end', () => { if (--left == 0) console.log(sum); });
    });
";

/// By an ordinary user, as most users of the preload library are.
#[test]
fn real_programs_of_an_ordinary_user_go_through_gateways() {
    const BODY: usize = 10_000;
    let (place, gateway, server) = (Place::new(), Gateway::start("pg1", ""), http(BODY));
    let own = place.path("phoebus");
    // By another process: a file that a child of another test still has open for writing cannot be executed.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_phoebus")).arg(&own).status().unwrap().success());
    assert!(Command::new("chmod").arg("755").arg(place.0.path()).status().unwrap().success());
    let get = go(place.0.path());
    let (host, port, url) = (server.ip().to_string(), server.port().to_string(), format!("http://{server}/"));
    let by_user = |catch: &str, program: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "-all"]).arg(&own);
        command.args(["run", "--catch", catch, "--only", "127.0.0.0/8", "--gateway", &gateway.addr.to_string(), "--"]);
        command.args(program).env("HOME", "/nonexistent").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        command
            .env("UV_USE_IO_URING", "1")
            .env("PHOEBUS_PRELOAD_LIB", "/nonexistent")
            .env("RCLONE_CONFIG", "/dev/null");
        let before = sessions(&gateway);
        let Output { status, stdout, stderr } = command.output().unwrap();
        assert!(status.success(), "{program:?}: {status}: {}", text(&stderr));
        (stdout, text(&stderr), sessions(&gateway) - before)
    };
    let told = "seccomp catches its connections\n";
    let (bytes, said, count) = by_user("auto", &[get.to_str().unwrap(), &url, "500"]);
    assert_eq!((text(&bytes), count), (format!("{}\n", 500 * BODY), 500));
    assert!(said.ends_with(told) && said.contains("is a Go program"), "{said}");
    let (bytes, said, count) = by_user("auto", &["busybox", "wget", "-q", "-O", "-", &url]);
    assert_eq!((bytes.len(), count), (BODY, 1));
    assert!(said.ends_with(told) && said.contains("is statically linked"), "{said}");
    let (bytes, said, count) = by_user("auto", &["rclone", "copyurl", "--stdout", &url]);
    assert_eq!(bytes.len(), BODY, "{said}");
    assert!(said.contains(told) && count >= 1, "{said}");
    for program in [["python3", "-c", ASYNCIO], ["node", "-e", NODE]] {
        let (bytes, said, count) = by_user("seccomp", &[&program[..], &[&host, &port, "100"]].concat());
        assert_eq!((text(&bytes), &said[..], count), (format!("{}\n", 100 * BODY), "", 100), "{program:?}");
    }
    let seen = [
        ("Go (net/http, without cgo)", "bytes many"),
        ("Node (with io_uring)", "bytes many"),
        ("Python (asyncio)", "bytes many"),
        ("busybox wget", "bytes"),
        ("rclone", "bytes"),
    ];
    for (program, features) in seen {
        works(program, "the test itself", "seccomp", features);
    }
    // A dynamic shell with a static child.
    let script = format!("busybox wget -q -O - {url} | wc -c");
    assert_eq!(text(&by_user("seccomp", &["sh", "-c", &script]).0).trim(), BODY.to_string());
    let closed = place.path("connects");
    let (lines, said, count) = by_user("seccomp", &[closed.to_str().unwrap(), "closed", &host, &port]);
    assert_eq!((text(&lines), count), ("connect: EACCES\n".to_owned(), 0));
    assert!(said.contains("does not let others have its sockets"), "{said}");
}
