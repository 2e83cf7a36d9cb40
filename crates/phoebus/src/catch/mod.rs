//! `phoebus run` for programs beyond the preload library (static, Go): their connect(2) is caught by seccomp user
//! notification, and their very socket is led to the agent or gateway (P29–P33). No part of it needs root.
//!
//! ```text
//! phoebus run ── front: stands for the program, passes signals on, exits as it does
//!   └─ supervisor: answers caught connects, adopts orphans, ends with the last process below it
//!        └─ the program, and all that it starts
//! ```
//!
//! The supervisor is an ancestor of all whom it serves, since Yama (`ptrace_scope` 1) lets a process have only the sockets
//! of its descendants. The front exists because a program may leave others running when it ends: whoever has called
//! `phoebus run` goes on then, and the supervisor stays for them.
//!
//! - [`front`] and [`supervisor`] are the two processes; [`message`] is what one says to the other.
//! - [`call`] answers one caught connect; [`attempts`] keeps the sessions that are being opened, one for each socket.
//! - [`lead`] opens a session on a socket; [`dial`] connects it.
//! - [`shared`] has the settings, [`names`] the addresses of names in them, [`report`] what users are told.

mod address;
mod attempts;
mod call;
mod dial;
mod front;
mod lead;
mod message;
mod names;
mod report;
mod shared;
mod supervisor;

use crate::exit::{self, Exit};
use anyhow::{Context, Result};
use phoebus_config::settings::Settings;
pub(crate) use phoebus_seccomp::Inherited;
use phoebus_seccomp::{Fork, fork, signals, usable};
use rustix::process::getpgrp;
use std::process::{Command, ExitCode};

/// Runs the program to its end; returns its exit code. Only the program keeps the inherited descriptors.
///
/// # Errors
/// It could not be prepared ([`exit::PREPARE`]), or not be executed. In the supervisor, this returns too.
pub(crate) fn run(program: &mut Command, settings: &Settings, inherited: Inherited) -> Result<ExitCode> {
    let cannot = |error: &dyn std::fmt::Display| {
        let why = "--catch preload runs it with connections past the gateways";
        Exit::with(exit::PREPARE, format!("cannot catch the program's connections: {error}; {why}"))
    };
    usable().map_err(|error| cannot(&error))?;
    let (ours, theirs) = message::channel().context("cannot prepare the program")?;
    let group = getpgrp();
    let held = signals::Held::new().context("cannot hold signals for the program")?;
    match fork().context("cannot start the process that catches connections")? {
        Fork::Parent(supervisor) => {
            drop(theirs);
            inherited.close();
            front::stand_for(&ours, &held, supervisor)
        }
        Fork::Child => {
            // Signals stay blocked: the program gets those that were meant for it, and is served until it has ended.
            drop((ours, held));
            supervisor::run(program, group, theirs, settings, inherited, &cannot)
        }
    }
}
