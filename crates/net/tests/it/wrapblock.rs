//! How `wrapblock` handles a library that cannot interrupt its calls and has no authenticated close. The
//! library is written in Rust here, so that the test decides when each call returns.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::transport::Transport;
use phoebus_net::wrapblock::{Abilities, Connection, Driver, Fault, Limits, Listener, Setting, WrapBlock};
use phoebus_net::{Error, Profile, Stats};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{PATIENCE, loopback, target};

/// Controls one connection: a call waits for its channel, and fails once the test drops the sender.
#[derive(Debug)]
struct Library {
    connects: Mutex<Option<Receiver<()>>>,
    reads: Mutex<Option<Receiver<Vec<u8>>>>,
    events: Sender<&'static str>,
}

#[derive(Debug)]
struct Call {
    connect: Mutex<Receiver<()>>,
    read: Mutex<Receiver<Vec<u8>>>,
    events: Sender<&'static str>,
}

fn gone() -> Fault {
    Fault::new(libc::ECONNRESET, "")
}

impl Driver for Library {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn has_option(&self, _name: &str, _live: bool) -> bool {
        false
    }

    fn open(&self, _settings: &[Setting]) -> Result<Arc<dyn Connection>, Fault> {
        let connect = Mutex::new(self.connects.lock().unwrap().take().unwrap());
        let read = Mutex::new(self.reads.lock().unwrap().take().unwrap());
        Ok(Arc::new(Call { connect, read, events: self.events.clone() }))
    }

    fn listen(&self, _addr: SocketAddr, _settings: &[Setting]) -> Result<Arc<dyn Listener>, Fault> {
        Err(Fault::new(libc::EOPNOTSUPP, ""))
    }
}

impl Connection for Call {
    fn connect(&self, _to: SocketAddr, _limit: Duration) -> Result<(), Fault> {
        self.connect.lock().unwrap().recv().map_err(|_| gone())
    }

    fn read(&self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let bytes = self.read.lock().unwrap().recv().map_err(|_| gone())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Fault> {
        Ok(bytes.len())
    }

    fn shutdown_write(&self) -> Result<(), Fault> {
        unreachable!("there is no half-close here")
    }

    fn finish(&self, _limit: Duration) -> Result<(), Fault> {
        self.events.send("finished").map_err(|_| gone())
    }

    fn interrupt(&self) {}

    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn pending(&self) -> Result<u64, Fault> {
        Ok(0)
    }

    fn set(&self, _setting: &Setting) -> Result<(), Fault> {
        Err(gone())
    }

    fn stats(&self) -> Result<Stats, Fault> {
        Ok(Stats::default())
    }

    fn local_addr(&self) -> Result<SocketAddr, Fault> {
        Ok(loopback())
    }

    fn peer_addr(&self) -> Result<SocketAddr, Fault> {
        Ok(loopback())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = self.events.send("closed");
    }
}

/// The transport, the senders that let its connect and its reads return, and the events of the connection.
fn stubborn() -> (WrapBlock, Sender<()>, Sender<Vec<u8>>, Receiver<&'static str>) {
    let ((connect, connects), (read, reads), (events, happened)) = (channel(), channel(), channel());
    let library = Library { connects: Mutex::new(Some(connects)), reads: Mutex::new(Some(reads)), events };
    (WrapBlock::new(Arc::new(library), Vec::new(), Limits::default()), connect, read, happened)
}

#[tokio::test]
async fn uninterruptible_connect_keeps_its_place_and_is_then_aborted() {
    let (transport, connect, read, happened) = stubborn();
    let limit = Duration::from_millis(50);
    let error = transport.connect(&target(loopback()), &Profile::default(), limit).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(transport.connections(), 1);
    // The late connect succeeds, but nobody owns the connection.
    connect.send(()).unwrap();
    drop(read);
    assert_eq!(happened.recv_timeout(PATIENCE), Ok("closed"), "without a finish, so that the peer sees a failure");
}

#[tokio::test]
async fn unauthenticated_end_is_an_error_after_the_bytes() {
    let (transport, connect, read, _happened) = stubborn();
    connect.send(()).unwrap();
    let stream = transport.connect(&target(loopback()), &Profile::default(), PATIENCE).await.unwrap();
    assert!(!stream.has_authenticated_close());
    let error = stream.shutdown_write().unwrap_err();
    assert_eq!(error.to_string(), "stubborn cannot end one side of a connection alone");
    read.send(b"last words".to_vec()).unwrap();
    read.send(Vec::new()).unwrap();
    let failure = tokio::time::timeout(PATIENCE, stream.failed()).await.unwrap();
    assert_eq!(failure.to_string(), "the connection ended, and nothing shows that the peer had sent everything");
    let mut buffer = [0; 64];
    assert_eq!(stream.try_read(&mut buffer).unwrap(), 10);
    assert_eq!(&buffer[..10], b"last words");
    assert_eq!(stream.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn only_a_disarmed_connection_is_finished() {
    for disarm in [true, false] {
        let (transport, connect, read, happened) = stubborn();
        connect.send(()).unwrap();
        let stream = transport.connect(&target(loopback()), &Profile::default(), PATIENCE).await.unwrap();
        if disarm {
            stream.disarm();
        }
        drop(stream);
        // The reading thread cannot be interrupted; it ends when its call returns.
        drop(read);
        let expected = if disarm { &["finished", "closed"][..] } else { &["closed"] };
        let events: Vec<_> = expected.iter().map(|_| happened.recv_timeout(PATIENCE).unwrap()).collect();
        assert_eq!(events, expected);
    }
}
