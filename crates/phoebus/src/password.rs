//! A password on standard input: all of it, or lines of a terminal that does not show them.

use crate::exit::{self, Exit};
use crate::standard;
use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{self, BufRead, IsTerminal, Read, Stdin, Write};
use tokio::signal::unix::{SignalKind, signal};

/// The longest password that is read.
const MAX: u64 = 4096;

/// Reads a new password, which a terminal asks for twice.
///
/// # Errors
/// None, too long, or two different ones (exit code 2); an interruption (130 and 143).
pub(crate) fn read_new() -> Result<Vec<u8>> {
    read(twice)
}

/// Reads a password that is known.
///
/// # Errors
/// None, or too long (exit code 2); an interruption (130 and 143).
pub(crate) fn read_once() -> Result<Vec<u8>> {
    read(|| line("password: "))
}

fn read(typed: fn() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    standard::check_input()?;
    let password = match io::stdin().is_terminal() {
        true => ask(typed)?,
        false => {
            let mut password = Vec::new();
            io::stdin().take(MAX + 1).read_to_end(&mut password).context("cannot read standard input")?;
            without_end(password)
        }
    };
    if password.contains(&b'\n') {
        return Err(Exit::usage("one line with a password was expected on standard input"));
    }
    if password.is_empty() || password.len() as u64 > MAX {
        return Err(Exit::usage("a password of 1 to 4096 bytes was expected on standard input"));
    }
    Ok(password)
}

fn without_end(mut line: Vec<u8>) -> Vec<u8> {
    if line.last() == Some(&b'\n') {
        line.pop();
        // Some editors end lines in this way.
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    line
}

/// Asks a terminal for it.
fn ask(question: fn() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // After an interruption, the terminal is as before.
    let silent = Silent::begin()?;
    let asked = runtime.block_on(async {
        let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let number = tokio::select! {
            typed = tokio::task::spawn_blocking(question) => return typed?,
            _ = int.recv() => 2,
            _ = term.recv() => 15,
        };
        let _ = writeln!(io::stderr());
        Err(Exit::with(exit::SIGNAL + number, "interrupted"))
    });
    drop(silent);
    // A thread may still wait for input.
    runtime.shutdown_background();
    asked
}

fn twice() -> Result<Vec<u8>> {
    let first = line("password: ")?;
    match first.is_empty() || line("the same again: ")? == first {
        true => Ok(first),
        false => Err(Exit::usage("the same password was expected twice")),
    }
}

/// Reads a line after `prompt`.
fn line(prompt: &str) -> Result<Vec<u8>> {
    let mut typed = Vec::new();
    write!(io::stderr(), "{prompt}").context("cannot write to standard error")?;
    let read = io::stdin().lock().take(MAX + 2).read_until(b'\n', &mut typed);
    // The terminal does not show that either.
    let _ = writeln!(io::stderr());
    read.context("cannot read standard input")?;
    Ok(without_end(typed))
}

/// A terminal without echo. Dropping it restores the echo.
struct Silent(Stdin, Termios);

impl Silent {
    fn begin() -> Result<Self> {
        let (terminal, context) = (io::stdin(), "cannot have the terminal not show what is typed");
        let before = tcgetattr(&terminal).context(context)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        // Earlier input is dropped, since it was echoed.
        tcsetattr(&terminal, OptionalActions::Flush, &silent).context(context)?;
        Ok(Self(terminal, before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.0, OptionalActions::Now, &self.1);
    }
}
