//! The servers: a sink and an echo.

use anyhow::Context;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes per read of a sink: enough that system calls cost little compared with the copy.
const SINK_BUFFER: usize = 256 << 10;

/// Reads each connection to its end, on its own thread, and answers with the number of bytes, eight bytes in network
/// order. Runs until it is killed.
pub(super) fn sink(listen: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    loop {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        // The sender reports a connection that fails.
        thread::spawn(move || drain(&mut stream));
    }
}

fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; SINK_BUFFER];
    let mut total = 0u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&total.to_be_bytes()),
            n => total += n as u64,
        }
    }
}

/// Echoes what it reads, on any number of connections. Runs until it is killed.
pub(super) fn echo(listen: SocketAddr) -> anyhow::Result<()> {
    phoebus_net::limits::raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = listener(listen)?;
        loop {
            let (stream, _) = listener.accept().await.context("cannot accept")?;
            tokio::spawn(answer(stream));
        }
    })
}

/// A listener with a backlog for experiments that open thousands of connections at the same time.
fn listener(listen: SocketAddr) -> anyhow::Result<tokio::net::TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    Ok(socket.listen(16_384)?)
}

async fn answer(mut stream: tokio::net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Small, because thousands of connections are held at the same time, and each carries one byte.
    let mut buffer = [0u8; 64];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n]).await?,
        }
    }
}
