//! The process that owns a testbed on behalf of a command, and the command's end of it.
//!
//! `phoebus testbed run` and `up` start their own program again as the supervisor: the one process that goes into a user
//! namespace without root, runs the links, and answers the control socket. It is ordered by a line of JSON on its standard
//! input and answers with lines of JSON on its standard output, the first when the testbed stands. Unless told to stay, it
//! takes the testbed down when that input ends, as it does when the command that started it is killed.

use super::control::{self, Answer, Refused, Request};
use super::report::Report;
use super::{Error, Scenario, Testbed, leftovers};
use crate::model::{Direction, DirectionUpdate};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What a supervisor is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The testbed's name; one of its own if there is none.
    pub name: Option<String>,
    /// What to build.
    pub scenario: Scenario,
    /// Whether to stay when the process that ordered ends.
    pub stay: bool,
}

/// What a supervisor says on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Notice {
    Up(Box<Report>),
    Failed(Refused),
    Down(Box<Report>),
}

/// A supervisor as the process that started it sees it. Dropping it takes the testbed down, unless the order was to stay.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    orders: ChildStdin,
    notices: BufReader<ChildStdout>,
    report: Report,
}

impl Supervisor {
    /// Starts `program`, which is to call [`supervise`] as the first thing it does, and waits until the testbed stands.
    pub fn start(mut program: Command, order: &Order) -> Result<Self, Error> {
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
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

    /// The testbed when it came up.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// A descriptor that hangs up if the testbed ends too early.
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

/// Tells an orderly end from the death of the process that ordered.
const GOODBYE: &[u8] = b"down\n";

/// A line of a supervisor's output. It is this program's own, so only its end needs to be reckoned with.
fn next(notices: &mut BufReader<ChildStdout>) -> io::Result<Notice> {
    let mut line = String::new();
    notices.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Is a supervisor: the whole work of the process that [`Supervisor::start`] starts, which must not have a second thread yet.
pub fn supervise() -> Result<(), Error> {
    // Out of reach of the terminal's signals, which are for the command.
    let _ = rustix::process::setsid();
    let mut line = String::new();
    // One byte at a time: what follows the order is looked for with poll.
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
    let started = super::gain_privileges().and_then(|()| start(&order));
    let (testbed, listener) = match started {
        Ok(started) => started,
        Err(error) => {
            notify(&Notice::Failed(error.into()));
            return Ok(());
        }
    };
    notify(&Notice::Up(Box::new(testbed.report())));
    if order.stay {
        detach(&testbed);
    }
    let end = serve(&testbed, &listener, (!order.stay).then_some(stdin));
    if matches!(end, End::Orphaned) {
        // What the command left outside the hosts.
        leftovers::kill_by_name(testbed.name());
    }
    let report = testbed.down();
    match end {
        End::Asked(stream) => drop(control::send(&stream, &Answer::Done, None)),
        End::Ordered => notify(&Notice::Down(Box::new(report))),
        End::Orphaned => {}
    }
    Ok(())
}

fn start(order: &Order) -> Result<(Testbed, UnixListener), Error> {
    let testbed = match &order.name {
        Some(name) => Testbed::up_as(name, &order.scenario)?,
        None => Testbed::up(&order.scenario)?,
    };
    let path = control::socket(testbed.directory());
    let listener = UnixListener::bind(&path).map_err(Error::state(path))?;
    Ok((testbed, listener))
}

/// Lets go of the terminal or pipe that the process was started from.
fn detach(testbed: &Testbed) {
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&nothing);
    let _ = rustix::stdio::dup2_stdout(&nothing);
    let log = File::create(testbed.directory().join("log")).unwrap_or(nothing);
    let _ = rustix::stdio::dup2_stderr(&log);
}

fn notify(notice: &Notice) {
    if let Ok(text) = serde_json::to_string(notice) {
        // Nobody reads it if the command was killed; that shows elsewhere.
        let _ = writeln!(io::stdout(), "{text}");
    }
}

/// Why a testbed ends.
enum End {
    /// Somebody asked over the control socket and waits for the answer.
    Asked(UnixStream),
    /// The command is done.
    Ordered,
    /// The command was killed.
    Orphaned,
}

/// Answers requests until one of them, or the command's input, says that the testbed shall end.
fn serve(testbed: &Testbed, listener: &UnixListener, mut orders: Option<File>) -> End {
    loop {
        let listening = PollFd::new(listener, PollFlags::IN);
        let mut polled = vec![listening];
        if let Some(orders) = &orders {
            polled.push(PollFd::new(orders, PollFlags::IN));
        }
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
            && let Ok((stream, _)) = listener.accept()
            && let Some(end) = converse(testbed, stream)
        {
            return end;
        }
    }
}

/// Takes one request and answers it.
fn converse(testbed: &Testbed, stream: UnixStream) -> Option<End> {
    stream.set_read_timeout(Some(control::REQUEST_TIME)).ok()?;
    stream.set_write_timeout(Some(control::REQUEST_TIME)).ok()?;
    let (request, _) = control::receive(&stream).ok()?;
    let (answer, host) = match request {
        Request::Down => return Some(End::Asked(stream)),
        Request::Report => (Ok(Answer::Report(Box::new(testbed.report()))), None),
        Request::Enter { host } => match testbed.namespaces(&host) {
            Ok(namespaces) => (Ok(Answer::Done), Some(namespaces)),
            Err(error) => (Err(error), None),
        },
        Request::Set { link, direction, update } => (set(testbed, &link, direction, &update), None),
        Request::Cut { link } => (testbed.link(&link).map(|link| link.cut()).map(|()| Answer::Done), None),
        Request::Heal { link } => (testbed.link(&link).map(|link| link.heal()).map(|()| Answer::Done), None),
    };
    let answer = answer.unwrap_or_else(|error| Answer::Refused(error.into()));
    // Whoever asked may be gone; that is its own affair.
    let _ = control::send(&stream, &answer, host.as_deref());
    None
}

fn set(testbed: &Testbed, link: &str, direction: Option<Direction>, update: &DirectionUpdate) -> Result<Answer, Error> {
    let link = testbed.link(link)?;
    for one in Direction::BOTH {
        if direction.is_none_or(|wanted| wanted == one) {
            link.update(one, update);
        }
    }
    Ok(Answer::Done)
}
