//! libudt as a loadable driver between processes: what is sent arrives, and a process that is killed never looks like one that
//! was done.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../../../../crates/net/tests/it/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use support::{Workshop, loopback, pattern};

/// A process that is killed with its handle.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(library: &Path, role: &str, addr: SocketAddr, receive: Option<u64>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drivercat"));
        command.arg(library).args([role, &addr.to_string()]);
        command.args(receive.map(|bytes| format!("--receive={bytes}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Where it listens.
    fn addr(&mut self) -> SocketAddr {
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        addr.parse().unwrap()
    }

    /// Feeds it the stream of the tests, as far as it takes it.
    fn feed(&mut self, len: u64) -> JoinHandle<()> {
        let mut input = self.0.stdin.take().unwrap();
        thread::spawn(move || {
            for start in (0..len).step_by(1 << 20) {
                if input.write_all(&pattern(start, (len - start).min(1 << 20) as usize)).is_err() {
                    return;
                }
            }
        })
    }

    /// Checks that it writes that stream, and says how much of it.
    fn check(&mut self) -> JoinHandle<u64> {
        let mut output = self.0.stdout.take().unwrap();
        thread::spawn(move || {
            let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
            loop {
                let n = output.read(&mut buffer).unwrap();
                if n == 0 {
                    return at;
                }
                assert!(buffer[..n] == pattern(at, n), "a wrong byte among {n} from {at} on");
                at += n as u64;
            }
        })
    }

    /// Whether it succeeded, and what it said.
    fn finish(mut self) -> (bool, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().success(), said)
    }
}

#[test]
fn two_processes_exchange_256_mib_each_way_over_libudt() {
    const LEN: u64 = 256 << 20;
    let workshop = Workshop::new();
    let library = workshop.libudt();
    let mut first = Process::start(&library, "listen", loopback(), Some(LEN));
    let mut second = Process::start(&library, "connect", first.addr(), Some(LEN));
    let _feeding = [first.feed(LEN), second.feed(LEN)];
    for checking in [first.check(), second.check()] {
        assert_eq!(checking.join().unwrap(), LEN);
    }
    for end in [first, second] {
        let (success, said) = end.finish();
        assert!(success, "{said}");
        assert!(
            said.contains(&format!("bytes_received: {}", LEN + 1)),
            "the driver counts what came, and a last word: {said}"
        );
    }
}

#[test]
fn ends_are_those_of_the_peer_over_a_driver_that_has_true_ends() {
    const LEN: u64 = 64 << 20;
    let workshop = Workshop::new();
    let library = workshop.tcp();
    let mut first = Process::start(&library, "listen", loopback(), None);
    let mut second = Process::start(&library, "connect", first.addr(), None);
    let _feeding = [first.feed(LEN), second.feed(1000)];
    let checking = [first.check(), second.check()];
    assert_eq!(checking.map(|thread| thread.join().unwrap()), [1000, LEN]);
    for end in [first, second] {
        let (success, said) = end.finish();
        assert!(success, "{said}");
    }
}

/// libudt itself takes 5 to 50 seconds to notice.
#[test]
fn a_killed_process_is_an_error_at_its_peer_and_not_an_end() {
    let workshop = Workshop::new();
    let cases = [(workshop.tcp(), None), (workshop.libudt(), Some(1 << 40))];
    let killed = cases.map(|(library, receive)| {
        thread::spawn(move || {
            let mut first = Process::start(&library, "listen", loopback(), receive);
            let mut second = Process::start(&library, "connect", first.addr(), receive);
            // Bytes flow both ways, so that both are in the middle of it.
            let _input = (first.0.stdin.take(), second.feed(1 << 30));
            first.0.stdout.as_mut().unwrap().read_exact(&mut [0; 1 << 20]).unwrap();
            first.0.kill().unwrap();
            second.finish()
        })
    });
    for (thread, name) in killed.into_iter().zip(["tcp", "libudt"]) {
        let (success, said) = thread.join().unwrap();
        assert!(!success && said.to_lowercase().contains("connection "), "{name}: {said}");
    }
}

#[test]
fn a_driver_is_described_and_a_wrong_option_is_named() {
    let workshop = Workshop::new();
    let library = workshop.tcp();
    let run = |args: &[&str]| -> Output {
        Command::new(env!("CARGO_BIN_EXE_drivercat")).arg(&library).args(args).output().unwrap()
    };
    let told = String::from_utf8(run(&[]).stdout).unwrap();
    assert!(told.starts_with("blocking TCP\n  send_buffer (a size such as 8MiB: "), "{told}");
    let refused = run(&["connect", "127.0.0.1:9", "nagle=1"]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("it has no option nagle; its options are: send_buffer"), "{said}");
}
