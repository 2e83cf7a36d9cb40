//! The process that answers caught connects, as long as anyone can make some.

use super::call;
use super::message::{End, Message};
use super::shared::Shared;
use crate::exit::{self, Exit};
use crate::standard;
use anyhow::{Context, Result};
use phoebus_config::settings::Settings;
use phoebus_seccomp::{Inherited, StartError, signals, start};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getppid, getrlimit, pidfd_open, set_child_subreaper,
    setpgid, setrlimit, wait,
};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Caught calls that wait to be looked at. More wait in the kernel.
const QUEUE: usize = 256;

/// Starts the program in the process group `group`, and serves it and all that it starts until the last of them ends.
///
/// # Errors
/// The program cannot be prepared or executed.
pub(super) fn run(
    program: &mut Command,
    group: Pid,
    front: End,
    settings: &Settings,
    inherited: Inherited,
    cannot: &dyn Fn(&dyn std::fmt::Display) -> anyhow::Error,
) -> Result<ExitCode> {
    let command = getppid().and_then(|command| pidfd_open(command, PidfdFlags::empty()).ok());
    // The terminal's signals are for the program.
    setpgid(None, None).context("cannot leave the process group")?;
    set_child_subreaper(Pid::from_raw(1)).context("cannot adopt the program's orphans")?;
    standard::pass_on();
    std::os::unix::process::CommandExt::process_group(program, group.as_raw_pid());
    let (child, listener) = start(program).map_err(|error| match error {
        StartError::Exec(error) => {
            let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
            let name = program.get_program().display();
            Exit::with(code, format!("cannot run {name}: {}", phoebus_client::reason(&error)))
        }
        error => cannot(&error),
    })?;
    let pid = Pid::from_child(&child);
    front.say(Message::Started(pid.as_raw_pid()));
    inherited.close();
    let_go();
    let shared = Arc::new(Shared::new(settings.clone(), listener));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let front = Arc::new(front);
    let watched = front.clone();
    if let Ok(program) = pidfd_open(pid, PidfdFlags::empty()) {
        std::thread::spawn(move || follow(&watched, &program));
    }
    std::thread::spawn(move || reap(pid, &front, command.as_ref()));
    let (sender, mut calls) = mpsc::channel(QUEUE);
    let listening = shared.clone();
    std::thread::spawn(move || {
        loop {
            match listening.listener().receive() {
                Ok(Some(call)) if sender.blocking_send(call).is_ok() => {}
                Ok(_) => break,
                Err(error) => {
                    let why = phoebus_client::reason(&error);
                    eprintln!("phoebus: cannot receive what the program's connects are: {why}");
                    // The listener ends with this process, so that these fail.
                    std::process::exit(exit::PREPARE.into());
                }
            }
        }
    });
    runtime.block_on(async {
        while let Some(call) = calls.recv().await {
            tokio::spawn(call::answer(shared.clone(), call));
        }
        // The last process has gone, and `reap` ends this one.
        std::future::pending::<()>().await;
    });
    Ok(ExitCode::SUCCESS)
}

/// Lets go of what whoever called may wait for, and takes as many descriptors as it may: each connect that waits needs
/// two.
fn let_go() {
    if let Ok(nothing) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
    }
    let _ = std::env::set_current_dir("/");
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Waits for the front's end. A front that was killed takes the program with it, as if both were one process. Otherwise
/// the program has ended before.
fn follow(front: &End, program: &OwnedFd) {
    // The other end's close is always reported.
    while poll(&mut [PollFd::new(front, PollFlags::empty())], None) == Err(Errno::INTR) {}
    let _ = signals::send(program.as_fd(), Signal::KILL.as_raw());
}

/// Reaps the program and its orphans, and tells the front about the program. Ends this process after the last of them.
/// `command` is the front's process.
fn reap(program: Pid, front: &End, command: Option<&OwnedFd>) {
    // It may have stopped with the program.
    let wake = || {
        if let Some(command) = command {
            let _ = signals::send(command.as_fd(), Signal::CONT.as_raw());
        }
    };

    loop {
        match wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Err(Errno::INTR) => {}
            Ok(Some((pid, status))) if pid == program => {
                if let Some(code) = status.exit_status() {
                    finish(front, Message::Exited(code));
                    wake();
                } else if let Some(signal) = status.terminating_signal() {
                    finish(front, Message::Killed(signal));
                    wake();
                } else if status.stopped() {
                    front.say(Message::Stopped);
                } else if status.continued() {
                    front.say(Message::Continued);
                    wake();
                }
            }
            Ok(_) => {}
            // No descendants are left, so nobody is under the filter.
            Err(_) => std::process::exit(0),
        }
    }
}

/// The program has ended. What it has left running must not keep whoever reads this command's messages.
fn finish(front: &End, end: Message) {
    if let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
    front.say(end);
}
