//! The supervisor process, which owns a testbed on behalf of a command, and the command's handle to it.
//!
//! `phoebus testbed run` and `up` start their own program again as the supervisor: the only process that
//! enters a user namespace without root, runs the links, and answers the control socket. It gets its order as
//! a line of JSON on its standard input and answers with lines of JSON on its standard output, the first when
//! the testbed is up. Unless ordered to stay, it takes the testbed down when its input ends, which also
//! happens when the command that started it is killed.

use super::control::{self, Answer, Refused, Request};
use super::environment::{self, ENV_DIRECTORY};
use super::namespace::Namespaces;
use super::report::Report;
use super::{Error, GatewayOptions, Gateways, Scenario, Testbed, leftovers};
use crate::model::Direction;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// An order to a supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The testbed's name; `None` generates one.
    pub name: Option<String>,
    /// The scenario to build.
    pub scenario: Scenario,
    /// The gateways to start on the gateway hosts, if any.
    pub gateways: Option<GatewayOptions>,
    /// Whether the testbed stays up after the ordering process ends.
    pub stay: bool,
}

/// A message of a supervisor on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Notice {
    Up(Box<Report>),
    Failed(Refused),
    Down(Box<Report>),
}

/// The handle of the process that started a supervisor. Dropping it takes the testbed down, unless the order
/// was to stay.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    orders: ChildStdin,
    notices: BufReader<ChildStdout>,
    report: Report,
}

impl Supervisor {
    /// Starts `program`, which must call [`supervise`] first of all, and waits until the testbed is up.
    pub fn start(mut program: Command, order: &Order) -> Result<Self, Error> {
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        // In a user namespace the supervisor is root, and would use root's directory.
        program.env(ENV_DIRECTORY, environment::base()?);
        let mut child = program.spawn().map_err(Error::system("cannot start the testbed's process"))?;
        let (Some(mut orders), Some(notices)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Lost);
        };
        let mut line = serde_json::to_vec(order).map_err(|_| Error::Lost)?;
        line.push(b'\n');
        orders.write_all(&line).map_err(|_| Error::Lost)?;
        let mut notices = BufReader::new(notices);
        match next(&mut notices) {
            Ok(Notice::Up(report)) => Ok(Self { child, orders, notices, report: *report }),
            Ok(Notice::Failed(refused)) => {
                let _ = child.wait();
                Err(refused.into())
            }
            Ok(Notice::Down(_)) | Err(_) => {
                let _ = child.wait();
                Err(Error::Lost)
            }
        }
    }

    /// The report at the start of the testbed.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// A descriptor that reports a hang-up if the testbed ends early.
    pub(super) fn liveness(&self) -> BorrowedFd<'_> {
        self.notices.get_ref().as_fd()
    }

    /// Takes the testbed down and returns its last report.
    pub fn down(mut self) -> Result<Report, Error> {
        self.orders.write_all(GOODBYE).map_err(|_| Error::Lost)?;
        let notice = next(&mut self.notices);
        let _ = self.child.wait();
        match notice {
            Ok(Notice::Down(report)) => Ok(*report),
            _ => Err(Error::Lost),
        }
    }
}

/// Distinguishes an orderly end from the death of the ordering process.
const GOODBYE: &[u8] = b"down\n";

/// Reads a line of a supervisor's output. It comes from this same program, so only its end needs handling.
fn next(notices: &mut BufReader<ChildStdout>) -> io::Result<Notice> {
    let mut line = String::new();
    notices.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Runs a supervisor: the whole work of the process that [`Supervisor::start`] starts. The process must be
/// single-threaded and must not have opened anything.
pub fn supervise() -> Result<(), Error> {
    super::descriptors::close_inherited();
    // A new session, because signals of the terminal are for the command only.
    let _ = rustix::process::setsid();
    let mut line = String::new();
    // Read byte by byte: buffering would hide what follows the order from `poll`.
    let mut stdin =
        File::from(io::stdin().as_fd().try_clone_to_owned().map_err(Error::system("cannot use standard input"))?);
    while !line.ends_with('\n') {
        let mut byte = [0];
        match stdin.read(&mut byte) {
            Ok(1) => line.push(char::from(byte[0])),
            _ => return Err(Error::Lost),
        }
    }
    let order: Order = serde_json::from_str(&line).map_err(|error| Error::scenario(error.to_string()))?;
    match super::gain_privileges().and_then(|()| SupervisedTestbed::build(&order)) {
        Ok(stand) => stand.keep((!order.stay).then_some(stdin)),
        Err(error) => notify(&Notice::Failed(error.into())),
    }
    Ok(())
}

/// A running testbed with its gateways and control socket.
struct SupervisedTestbed {
    gateways: Gateways,
    listener: UnixListener,
    testbed: Testbed,
}

impl SupervisedTestbed {
    fn build(order: &Order) -> Result<Self, Error> {
        let testbed = match &order.name {
            Some(name) => Testbed::up_as(name, &order.scenario)?,
            None => Testbed::up(&order.scenario)?,
        };
        let path = environment::control_socket(testbed.directory());
        let listener = UnixListener::bind(&path).map_err(Error::state(path))?;
        let gateways = order.gateways.as_ref().map(|options| testbed.start_gateways(options)).transpose()?;
        Ok(Self { gateways: gateways.unwrap_or_default(), listener, testbed })
    }

    /// Serves the testbed until its end, and takes it down.
    fn keep(mut self, orders: Option<File>) {
        notify(&Notice::Up(Box::new(self.report())));
        if orders.is_none() {
            detach(&self.testbed);
        }
        let end = self.serve(orders);
        if matches!(end, End::Orphaned) {
            // Processes that the command left outside the hosts.
            leftovers::kill_by_name(self.testbed.name());
        }
        let gateways = self.gateways.report();
        let report = Report { gateways, ..self.testbed.down() };
        match end {
            End::Asked(stream) => drop(control::send(&stream, &Answer::Done, None)),
            End::Ordered => notify(&Notice::Down(Box::new(report))),
            End::Orphaned => {}
        }
    }

    fn report(&mut self) -> Report {
        Report { gateways: self.gateways.report(), ..self.testbed.report() }
    }

    /// Answers requests until one of them, or the end of the command's input, ends the testbed.
    fn serve(&mut self, mut orders: Option<File>) -> End {
        loop {
            let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
            polled.extend(orders.as_ref().map(|orders| PollFd::new(orders, PollFlags::IN)));
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let [called, ordered] = [0, 1].map(|at| polled.get(at).is_some_and(|fd| !fd.revents().is_empty()));
            if ordered && let Some(orders) = &mut orders {
                return match orders.read(&mut [0; 16]) {
                    Ok(1..) => End::Ordered,
                    _ => End::Orphaned,
                };
            }
            if called
                && let Ok((stream, _)) = self.listener.accept()
                && let Some(end) = self.converse(stream)
            {
                return end;
            }
        }
    }

    /// Receives one request and answers it.
    fn converse(&mut self, stream: UnixStream) -> Option<End> {
        stream.set_read_timeout(Some(control::REQUEST_TIME)).ok()?;
        stream.set_write_timeout(Some(control::REQUEST_TIME)).ok()?;
        let (request, _) = control::receive(&stream).ok()?;
        if request == Request::Down {
            return Some(End::Asked(stream));
        }
        let (answer, host) = match self.answer(request) {
            Ok(answer) => answer,
            Err(error) => (Answer::Refused(error.into()), None),
        };
        // The client may be gone, which does not matter.
        let _ = control::send(&stream, &answer, host.as_deref());
        None
    }

    fn answer(&mut self, request: Request) -> Result<(Answer, Option<Arc<Namespaces>>), Error> {
        match request {
            Request::Report => return Ok((Answer::Report(Box::new(self.report())), None)),
            Request::Enter { host } => return Ok((Answer::Done, Some(self.testbed.namespaces(&host)?))),
            Request::Set { link, direction, update } => {
                let link = self.testbed.link(&link)?;
                let directions =
                    Direction::BOTH.into_iter().filter(|one| direction.is_none_or(|wanted| wanted == *one));
                directions.for_each(|one| link.update(one, &update));
            }
            Request::Cut { link } => self.testbed.link(&link)?.cut(),
            Request::Heal { link } => self.testbed.link(&link)?.heal(),
            Request::Down => {}
        }
        Ok((Answer::Done, None))
    }
}

/// The reason why a testbed ends.
enum End {
    /// A client requested it over the control socket and waits for the answer.
    Asked(UnixStream),
    /// The command has ended.
    Ordered,
    /// The command was killed.
    Orphaned,
}

/// Detaches from the terminal or pipe that the process was started from.
fn detach(testbed: &Testbed) {
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&nothing);
    let _ = rustix::stdio::dup2_stdout(&nothing);
    let log = File::create(testbed.directory().join("log")).unwrap_or(nothing);
    let _ = rustix::stdio::dup2_stderr(&log);
}

fn notify(notice: &Notice) {
    if let Ok(text) = serde_json::to_string(notice) {
        // If the command was killed, nobody reads this; the end of the input shows that.
        let _ = writeln!(io::stdout(), "{text}");
    }
}
