//! One short transfer, and one echo, with their times.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes per write of a sender.
const SEND_BUFFER: usize = 256 << 10;

/// The times of one transfer, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    /// Until connect returned.
    pub(crate) connect: f64,
    /// From before connect until the receiver's confirmation of the last byte.
    pub(crate) total: f64,
}

/// The times of one connection to an echo, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Echo {
    /// Until connect returned.
    pub(crate) connect: f64,
    /// Round trip of the first byte.
    pub(crate) first: f64,
    /// Round trip of the second byte, when nothing has to be set up any more.
    pub(crate) next: f64,
}

/// Sends `bytes` bytes to the sink at `to`.
pub(super) fn send(to: SocketAddr, bytes: u64, cc: Option<&str>) -> anyhow::Result<Transfer> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(cc) = cc {
        socket.set_tcp_congestion(cc.as_bytes()).with_context(|| format!("cannot use congestion control {cc}"))?;
    }
    let started = Instant::now();
    socket.connect(&to.into()).with_context(|| format!("cannot connect to {to}"))?;
    let connect = started.elapsed().as_secs_f64();
    let mut stream = TcpStream::from(socket);
    push(&mut stream, bytes)?;
    Ok(Transfer { connect, total: started.elapsed().as_secs_f64() })
}

/// Sends `bytes` bytes over a connection to a sink, shuts it down, and waits for the sink's confirmation.
pub(super) fn push(stream: &mut TcpStream, bytes: u64) -> anyhow::Result<()> {
    let buffer = vec![0x5a; SEND_BUFFER];
    let mut left = bytes;
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        stream.write_all(&buffer[..n]).context("cannot send")?;
        left -= n as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut confirmed = [0; 8];
    stream.read_exact(&mut confirmed).context("no confirmation came")?;
    match u64::from_be_bytes(confirmed) {
        arrived if arrived == bytes => Ok(()),
        arrived => bail!("{bytes} bytes were sent and {arrived} arrived"),
    }
}

/// Pause between connections, so that the close of one does not affect the next.
const PING_PAUSE: Duration = Duration::from_millis(10);

/// Connects to the echo at `to` and echoes two bytes, `count` times.
pub(super) fn ping(to: SocketAddr, count: u32) -> anyhow::Result<Vec<Echo>> {
    let once = || {
        thread::sleep(PING_PAUSE);
        let started = Instant::now();
        let mut stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
        let connect = started.elapsed().as_secs_f64();
        stream.set_nodelay(true)?;
        Ok(Echo { connect, first: echo(&mut stream, 1)?, next: echo(&mut stream, 2)? })
    };
    (0..count).map(|_| once()).collect()
}

/// Sends one byte, waits for its echo, and returns the time, in seconds.
pub(super) fn echo(stream: &mut TcpStream, byte: u8) -> anyhow::Result<f64> {
    let started = Instant::now();
    stream.write_all(&[byte]).context("cannot send")?;
    let mut back = [0];
    stream.read_exact(&mut back).context("no echo came")?;
    if back != [byte] {
        bail!("byte {byte} came back as {}", back[0]);
    }
    Ok(started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn serve(answer: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || answer(listener.accept().unwrap().0));
        address
    }

    #[test]
    fn transfer_ends_with_the_receivers_confirmation() {
        let sink = serve(|mut stream| {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&(all.len() as u64).to_be_bytes()).unwrap();
        });
        let times = send(sink, 700_001, Some("reno")).unwrap();
        assert!(times.connect > 0.0 && times.total > times.connect);
    }

    #[test]
    fn incomplete_transfer_fails() {
        let sink = serve(|mut stream| {
            stream.read_to_end(&mut Vec::new()).unwrap();
            stream.write_all(&41u64.to_be_bytes()).unwrap();
        });
        assert_eq!(send(sink, 42, None).unwrap_err().to_string(), "42 bytes were sent and 41 arrived");
    }

    #[test]
    fn echo_must_equal_what_was_sent() {
        let wrong = serve(|mut stream| {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&[9]).unwrap();
        });
        assert_eq!(ping(wrong, 1).unwrap_err().to_string(), "byte 1 came back as 9");
    }
}
