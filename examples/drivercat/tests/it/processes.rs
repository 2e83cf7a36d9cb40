//! libudt as a loadable driver between processes: the bytes arrive, and a killed process never looks like one that
//! finished.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../../../../crates/net/tests/it/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use support::{Workshop, loopback, pattern};

/// A child process, killed on drop.
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

    /// The address that it listens on.
    fn addr(&mut self) -> SocketAddr {
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        addr.parse().unwrap()
    }

    /// Writes the tests' byte stream to its input, as far as it accepts it.
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

    /// Checks that its output is that stream, and returns the number of bytes.
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

    /// Whether it succeeded, and its standard error.
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
fn driver_with_true_ends_passes_on_the_peers_end() {
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
fn peer_of_a_killed_process_reports_an_error() {
    let workshop = Workshop::new();
    let cases = [(workshop.tcp(), None), (workshop.libudt(), Some(1 << 40))];
    let killed = cases.map(|(library, receive)| {
        thread::spawn(move || {
            let mut first = Process::start(&library, "listen", loopback(), receive);
            let mut second = Process::start(&library, "connect", first.addr(), receive);
            // Bytes flow both ways, so that both processes are in mid-transfer.
            let _input = (first.0.stdin.take(), second.feed(1 << 30));
            first.0.stdout.as_mut().unwrap().read_exact(&mut [0; 1 << 20]).unwrap();
            first.0.kill().unwrap();
            second.finish()
        })
    });
    for (thread, name) in killed.into_iter().zip(["tcp", "libudt"]) {
        let (success, said) = thread.join().unwrap();
        // The kernel tells one call of the reset, and later ones of a broken pipe, in whichever direction they come.
        let said = said.to_lowercase();
        assert!(!success && (said.contains("connection ") || said.contains("broken pipe")), "{name}: {said}");
    }
}

#[test]
fn drivercat_describes_a_driver_and_names_a_wrong_option() {
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
