//! Users who log in at gateways, from the command line.

mod grid;
mod passwords;
mod tokens;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::thread;

/// Runs a command with this input.
pub(crate) fn given(command: &mut Command, input: &[u8]) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // A command that fails early does not read it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// A server that returns what it is sent.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).and_then(|_| stream.write_all(&all))
            });
        }
    });
    addr
}

/// Checks how a command has ended, and what it said: nothing secret.
#[track_caller]
pub(crate) fn says(output: &Output, code: i32, words: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.code() == Some(code) && said.contains(words), "{:?}: {said}", output.status);
    assert!(!said.contains("secret"), "{said}");
}
