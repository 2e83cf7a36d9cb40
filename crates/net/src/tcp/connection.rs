//! Operations on an open TCP connection.

use super::info;
use super::socket::{self, Note};
use super::unsent::{self, UnsentBound};
use crate::duplex::OtherEnd;
use crate::stats::Stats;
use crate::sys;
use crate::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry};
use crate::waiting::other_end;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A TCP connection with the linger discipline in force.
#[derive(Debug)]
pub(crate) struct Connection {
    io: TcpStream,
    note: Note,
    unsent: UnsentBound,
    /// Whether a read threshold is set, whose owner lowers it when bytes have waited for long.
    coalesces: AtomicBool,
}

impl Connection {
    pub(crate) fn new(io: TcpStream, note: Note) -> Self {
        Self { io, note, unsent: UnsentBound::new(), coalesces: AtomicBool::new(false) }
    }
}

impl DuplexIo for Connection {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.coalesces.load(Ordering::Relaxed) {
            return self.io.try_read(buffer);
        }
        let mut short = None;
        let read = self.io.try_io(Interest::READABLE, || {
            let (n, _) = rustix::net::recv(&self.io, &mut *buffer, RecvFlags::empty())?;
            if n == 0 || n == buffer.len() {
                return Ok(n);
            }
            // Nothing is left, save behind an urgent byte: the runtime need not learn that from another call, and keeps
            // a readiness that was reported after this call began. What is left behind an urgent byte has to wait until
            // the owner lowers the threshold.
            short = Some(n);
            Err(io::ErrorKind::WouldBlock.into())
        });
        short.map_or(read, Ok)
    }

    fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let room = self.room(bytes.len())?;
        // MSG_MORE would make the kernel hold back the last segment of a write that was cut short.
        let (bytes, more) = (&bytes[..room], more && room == bytes.len());
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        self.io.try_io(Interest::WRITABLE, || Ok(rustix::net::send(&self.io, bytes, flags)?))
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.io.poll_write_ready(cx))?;
        self.unsent.poll_room(&self.io, cx)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        match rustix::net::recv(&self.io, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.io).shutdown(Shutdown::Write)
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        match self.io.take_error()? {
            Some(error) => Err(error),
            None => sys::unacknowledged(self.io.as_fd()),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.io)
    }

    fn room(&self, wanted: usize) -> io::Result<usize> {
        self.unsent.room(&self.io, wanted)
    }
}

impl DuplexControl for Connection {
    fn other_end(&self) -> Option<OtherEnd> {
        other_end(&self.io)
    }

    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(async {
            loop {
                if let Err(error) = self.io.ready(Interest::ERROR).await {
                    return error;
                }
                match self.io.take_error() {
                    Ok(Some(error)) | Err(error) => return error,
                    // SO_ERROR is reported once, and a read or write has already returned it. The connection
                    // is closed all the same.
                    Ok(None) if self.stats().is_ok_and(|stats| stats.closed) => {
                        return io::Error::from_raw_os_error(libc::ECONNRESET);
                    }
                    Ok(None) => {}
                }
                // The wake-up was no error of the connection: clear the readiness, and wait for the next one.
                let _ = self.io.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
        })
    }

    fn disarm(&self) {
        // If disarming fails, a drop resets the connection, which is the safe outcome.
        let _ = socket2::SockRef::from(&self.io).set_linger(None);
    }

    /// The kernel accepts each change at any time. A buffer with a fixed size no longer grows by itself
    /// (U16).
    fn set(&self, change: Change) -> io::Result<()> {
        let socket = socket2::SockRef::from(&self.io);
        match change {
            Change::Rate(rate) => {
                let is_ipv6 = self.io.local_addr()?.is_ipv6();
                let bytes = rate.map_or(u64::MAX, |rate| socket::payload_rate(&socket, rate, is_ipv6));
                // The lower limit comes first: what is written between the two meets it.
                let before = self.unsent.limit();
                self.unsent.set(before.min(bytes));
                let paced = sys::set_pacing(self.io.as_fd(), bytes.max(unsent::KERNEL_LEAST));
                self.unsent.set(if paced.is_ok() { bytes } else { before });
                paced
            }
            Change::SendBuffer(size) => socket.set_send_buffer_size(socket::size(size)?),
            // 0 selects the host's default limit.
            Change::Unsent(most) => {
                let most = most.map_or(0, |most| i32::try_from(most.max(1)).unwrap_or(i32::MAX));
                sys::set_tcp_option(self.io.as_fd(), libc::TCP_NOTSENT_LOWAT, most)
            }
            Change::ReceiveBuffer(size) => socket.set_recv_buffer_size(socket::size(size)?),
            // The kernel reports what already waits. A threshold that is near the window would close it: the size of the
            // buffer is twice what it holds.
            Change::ReadThreshold(threshold) => {
                let most = socket.recv_buffer_size()? as u64 / 4;
                let least = i32::try_from(threshold.bytes.min(most).max(1)).unwrap_or(i32::MAX);
                self.coalesces.store(least > 1, Ordering::Relaxed);
                sys::set_read_threshold(self.io.as_fd(), least)
            }
            Change::CongestionControl(asked) => match asked.kernel_name() {
                Some(name) => socket.set_tcp_congestion(name.as_bytes()),
                None => Err(io::ErrorKind::Unsupported.into()),
            },
        }
    }

    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        let Self { io, note, unsent, coalesces } = *self;
        Ok(Box::new(Self { io: TcpStream::from_std(io.into_std()?)?, note, unsent: unsent.moved(), coalesces }))
    }
}

impl DuplexTelemetry for Connection {
    fn stats(&self) -> io::Result<Stats> {
        let mut stats = info::stats(&self.io)?;
        stats.held_back = self.unsent.held_back();
        Ok(stats)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.peer_addr()
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}
