//! The process that whoever called `phoebus run` knows. It behaves as the program does: signals reach the program, and
//! it stops and ends as the program stops and ends.

use super::message::{End, Message};
use crate::exit::{self, Exit};
use anyhow::{Context, Result};
use phoebus_seccomp::signals::{self, Held};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use std::process::ExitCode;

/// Stands for the program until it has ended.
///
/// # Errors
/// The supervisor was killed.
pub(super) fn stand_for(supervisor: &End, held: &Held, process: Pid) -> Result<ExitCode> {
    let mut program: Option<OwnedFd> = None;
    loop {
        let mut waits = [PollFd::new(supervisor, PollFlags::IN), PollFd::new(held, PollFlags::IN)];
        // Signals wait until there is a program to pass them on to.
        let count = if program.is_some() { 2 } else { 1 };
        match poll(&mut waits[..count], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the program"),
        }
        if let Some(program) = &program {
            while let Some(signal) = held.take() {
                // The terminal sends its signals to the program, too.
                if signal.is_sent || is_continue(signal.number) {
                    let _ = signals::send(program.as_fd(), signal.number);
                }
            }
        }
        let mut is_stopped = false;
        loop {
            match supervisor.hear() {
                Ok(None) => break,
                Ok(Some(Message::Started(pid))) => {
                    program = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                }
                Ok(Some(Message::Exited(code))) => return Ok((code as u8).into()),
                Ok(Some(Message::Killed(signal))) => {
                    signals::die_of(signal);
                    return Ok(exit::SIGNAL.saturating_add(signal as u8).into());
                }
                Ok(Some(Message::Stopped)) => is_stopped = true,
                Ok(Some(Message::Continued)) => is_stopped = false,
                Err(_) => return without(process, program.as_ref()),
            }
        }
        if is_stopped {
            signals::stop();
        }
    }
}

/// A shell continues its whole job, but the program may be a group of its own.
fn is_continue(number: i32) -> bool {
    number == Signal::CONT.as_raw()
}

/// Goes on after the supervisor's end. If the program never began, the supervisor has said why, and this process exits
/// with its code. Otherwise the program runs on, and all its connects fail; its exit code cannot be known.
fn without(supervisor: Pid, program: Option<&OwnedFd>) -> Result<ExitCode> {
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
        while poll(&mut [PollFd::new(program, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }
    Err(Exit::with(
        exit::PREPARE,
        "the program's exit code is unknown: the process that catches connections was killed",
    ))
}
