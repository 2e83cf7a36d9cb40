//! The process that whoever called `phoebus run` knows. It behaves as the program does: signals reach the program, and
//! it stops and ends as the program stops and ends.

use super::message::{End, Message};
use crate::exit::{self, Exit};
use anyhow::{Context, Result};
use phoebus_seccomp::signals::{self, Held};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use std::fs::OpenOptions;
use std::process::ExitCode;
use std::time::Duration;

/// How often this process looks whether the program has stopped, when nobody tells it.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// Stands for the program until it has ended.
///
/// # Errors
/// The supervisor was killed.
pub(super) fn stand_for(supervisor: &End, held: &Held, process: Pid) -> Result<ExitCode> {
    let_go();
    let mut program: Option<Program> = None;
    loop {
        let mut waits = [PollFd::new(supervisor, PollFlags::IN), PollFd::new(held, PollFlags::IN)];
        // Signals wait until there is a program to pass them on to.
        let count = if program.is_some() { 2 } else { 1 };
        match poll(&mut waits[..count], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the program"),
        }
        if let Some(program) = &program {
            program.pass_on(held);
        }
        let mut is_stopped = false;
        loop {
            match supervisor.hear() {
                Ok(None) => break,
                Ok(Some(Message::Started(pid))) => {
                    program = Program::of(pid);
                }
                Ok(Some(Message::Exited(code))) => return Ok((code as u8).into()),
                Ok(Some(Message::Killed(signal))) => {
                    signals::die_of(signal);
                    return Ok(exit::SIGNAL.saturating_add(signal as u8).into());
                }
                Ok(Some(Message::Stopped)) => is_stopped = true,
                Ok(Some(Message::Continued)) => is_stopped = false,
                Err(_) => return without(process, program.as_ref(), held),
            }
        }
        if is_stopped {
            signals::stop();
        }
    }
}

/// The program, as a process that this one passes signals on to.
struct Program {
    number: i32,
    process: OwnedFd,
}

impl Program {
    fn of(number: i32) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        Some(Self { number, process })
    }

    /// Passes on the signals that wait.
    fn pass_on(&self, held: &Held) {
        while let Some(signal) = held.take() {
            // The terminal sends its signals to the program, too.
            if signal.is_sent || comes_alone(signal.number) {
                let _ = signals::send(self.process.as_fd(), signal.number);
            }
        }
    }

    /// Whether it is stopped.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.number)).unwrap_or_default();
        // Its name may have any characters.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

/// A shell continues its whole job, but the program may be a group of its own. A terminal that hangs up tells only the
/// leader of the session, which the command may be.
fn comes_alone(number: i32) -> bool {
    number == Signal::CONT.as_raw() || number == Signal::HUP.as_raw()
}

/// Lets go of the program's input and output: whoever is at their other ends waits for the program alone.
fn let_go() {
    if let Ok(nothing) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
    }
}

/// Goes on after the supervisor's end. If the program never began, the supervisor has said why, and this process exits
/// with its code. Otherwise the program runs on, and all its connects fail; its exit code cannot be known.
fn without(supervisor: Pid, program: Option<&Program>, held: &Held) -> Result<ExitCode> {
    let ended = loop {
        match waitpid(Some(supervisor), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            ended => break ended.context("cannot wait for the process that catches connections")?,
        }
    };
    if let (None, Some(code)) = (program, ended.and_then(|(_, status)| status.exit_status())) {
        return Ok((code as u8).into());
    }
    let why = "the process that catches the program's connections was killed; further connects of the program fail";
    if let Some(program) = program {
        eprintln!("phoebus: {why}");
        // Nobody tells any more that it stops.
        let pause = Timespec { tv_sec: 0, tv_nsec: STOP_CHECK.subsec_nanos().into() };
        loop {
            let mut waits = [PollFd::new(&program.process, PollFlags::IN), PollFd::new(held, PollFlags::IN)];
            match poll(&mut waits, Some(&pause)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the program"),
            }
            if !waits[0].revents().is_empty() {
                break;
            }
            program.pass_on(held);
            if program.is_stopped() {
                signals::stop();
                program.pass_on(held);
            }
        }
    }
    Err(Exit::with(
        exit::PREPARE,
        "the program's exit code is unknown: the process that catches connections was killed",
    ))
}
