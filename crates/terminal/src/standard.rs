//! Standard input and output as this process was given them, and results printed there.
//!
//! Rust's runtime opens `/dev/null` where a standard stream is closed, and its library takes a stream that is open the wrong way
//! for one that swallows everything: what was written would be lost, and the command would end with 0. So what was closed is
//! noted before the runtime begins, and whoever needs a stream asks here first.

use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::stdio::{stderr, stdin, stdout};
use std::io::{self, ErrorKind, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Which of the descriptors 0, 1 and 2 were closed when the process began: one bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Has the dynamic loader, or the C library of a static program, call [`look`] before `main` and so before Rust's runtime.
#[allow(unsafe_code, reason = "the section of functions that run before main has no other name")]
// SAFETY: the section holds pointers to functions of the C calling convention and nothing else, and this is one. It makes
// system calls and writes to an atomic number, and so needs nothing that main would set up first.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let closed = [stdin(), stdout(), stderr()].map(|stream| fcntl_getfd(stream).is_err());
    let bits = (0..).zip(closed).fold(0, |bits, (n, closed)| bits | u8::from(closed) << n);
    CLOSED.store(bits, Ordering::Relaxed);
}

fn was_closed(number: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << number != 0
}

/// Makes sure that standard input can be read.
///
/// # Errors
/// It is closed, or open for writing only.
pub fn check_input() -> Result<()> {
    if was_closed(0) {
        bail!("standard input is closed; expected something to read there (</dev/null is nothing)");
    }
    if fcntl_getfl(stdin()).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::WRONLY) {
        bail!("standard input is open for writing only; expected something to read there");
    }
    Ok(())
}

/// Makes sure that standard output can be written: before a command begins whose result goes there.
///
/// # Errors
/// It is closed, or open for reading only.
pub fn check_output() -> Result<()> {
    if was_closed(1) {
        bail!("standard output is closed; expected somewhere to write to (>/dev/null is nowhere)");
    }
    if fcntl_getfl(stdout()).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY) {
        bail!("standard output is open for reading only; expected somewhere to write to");
    }
    Ok(())
}

/// Prints `text`, all of it.
///
/// # Errors
/// Nobody reads any more (quietly, with the code of SIGPIPE), or it cannot be written.
pub fn print(text: &str) -> Result<()> {
    check_output()?;
    let mut out = io::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What a write to standard output came to.
///
/// # Errors
/// As those of [`print()`].
pub fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Exit::unread()),
        result => result.context("cannot write to standard output"),
    }
}

/// The first failure of [`note`].
static MISSED: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// Prints a line about work that goes on whether it can be printed or not. That it could not is said in the end, by [`missed`].
pub fn note(line: &str) {
    if let Err(error) = print(&format!("{line}\n"))
        && let Ok(mut missed) = MISSED.lock()
    {
        missed.get_or_insert(error);
    }
}

/// Why something that was to be noted was not.
pub fn missed() -> Option<anyhow::Error> {
    MISSED.lock().ok()?.take()
}

/// Closes for the program that this process becomes what had been closed for this one.
pub fn pass_on() {
    for (number, stream) in (0..).zip([stdin(), stdout(), stderr()]) {
        if was_closed(number) {
            // It is the runtime's /dev/null; it could be left as well.
            let _ = fcntl_setfd(stream, FdFlags::CLOEXEC);
        }
    }
}
