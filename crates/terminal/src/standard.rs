//! Checks of standard input and output, and printing of results.
//!
//! Rust's runtime opens `/dev/null` in place of a closed standard stream, and its standard library ignores a write to
//! a stream that is not open for writing: the output would be lost, and the command would exit with 0. Therefore
//! `look` records the closed streams before the runtime starts, and a command checks a stream here before it uses
//! it.

use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::stdio::{stderr, stdin, stdout};
use std::io::{self, ErrorKind, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Which of the descriptors 0, 1 and 2 were closed at process start: one bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Makes the dynamic loader, or the C library of a static program, call [`look`] before `main` and thus before Rust's
/// runtime.
#[allow(unsafe_code, reason = "the section of functions that run before main has no other name")]
// SAFETY: the section holds only pointers to functions with the C calling convention, and this is one. It makes
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

/// Checks that standard input is readable.
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

/// Checks that standard output is writable. Commands whose result goes there call this first.
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

/// Prints all of `text`.
///
/// # Errors
/// The reader has closed the stream (an empty message, with the code of SIGPIPE), or the write failed.
pub fn print(text: &str) -> Result<()> {
    check_output()?;
    let mut out = io::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Converts the result of a write to standard output.
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

/// Prints a progress line. A failure does not stop the work; [`missed`] returns it at the end.
pub fn note(line: &str) {
    if let Err(error) = print(&format!("{line}\n"))
        && let Ok(mut missed) = MISSED.lock()
    {
        missed.get_or_insert(error);
    }
}

/// The first failure of [`note`], if one failed.
pub fn missed() -> Option<anyhow::Error> {
    MISSED.lock().ok()?.take()
}

/// Closes, for the program that replaces this process, the streams that were closed at process start.
pub fn pass_on() {
    for (number, stream) in (0..).zip([stdin(), stdout(), stderr()]) {
        if was_closed(number) {
            // The descriptor is the runtime's /dev/null; if this fails, the program keeps it, which is harmless.
            let _ = fcntl_setfd(stream, FdFlags::CLOEXEC);
        }
    }
}
