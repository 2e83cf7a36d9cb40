//! UDT over sockets in a hostile network: floods of requests, replayed packets, changing addresses, blocked
//! paths. Undelivered data is an error.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_net::udt::{Listener, Port};
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::Span;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Guards against hanging only.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(50);
/// Idle time-out in these tests.
const SILENCE: Duration = Duration::from_secs(8);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn profile() -> Profile {
    Profile { idle_timeout: Span(SILENCE), ..Profile::default() }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

async fn write(stream: &Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        in_time(stream.writable()).await.unwrap();
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// Reads until `len` bytes have arrived or the stream has failed.
async fn read(stream: &Stream, len: usize) -> (Vec<u8>, Option<ErrorKind>) {
    let (mut bytes, mut at) = (vec![0; len], 0);
    while at < len {
        in_time(stream.readable()).await.unwrap();
        match stream.try_read(&mut bytes[at..]) {
            Ok(n) => at += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                bytes.truncate(at);
                return (bytes, Some(error.kind()));
            }
        }
    }
    (bytes, None)
}

/// An address translator in front of a server: it forwards datagrams from a port of its own, and answers
/// back.
struct Translator {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    front: UdpSocket,
    back: Mutex<UdpSocket>,
    server: SocketAddr,
    client: Mutex<Option<SocketAddr>>,
    is_blocked: AtomicBool,
    /// All datagrams from the client.
    seen: Mutex<Vec<Vec<u8>>>,
    stop: AtomicBool,
}

impl Translator {
    fn before(server: SocketAddr) -> Self {
        let front = UdpSocket::bind(loopback()).unwrap();
        let addr = front.local_addr().unwrap();
        front.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let shared = Arc::new(Shared {
            front,
            back: Mutex::new(Self::socket()),
            server,
            client: Mutex::default(),
            is_blocked: AtomicBool::new(false),
            seen: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        for work in [Shared::forward, Shared::backward] {
            let shared = shared.clone();
            std::thread::spawn(move || work(&shared));
        }
        Self { addr, shared }
    }

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind(loopback()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        socket
    }

    /// Simulates a lost table entry: the client gets another outer port.
    fn rebind(&self) {
        *self.shared.back.lock().unwrap() = Self::socket();
    }

    fn block(&self) {
        self.shared.is_blocked.store(true, Ordering::Relaxed);
    }

    /// Sends all earlier datagrams of the client to the server again.
    fn replay(&self) {
        let (seen, back) = (self.shared.seen.lock().unwrap(), self.shared.back.lock().unwrap());
        for bytes in seen.iter() {
            let _ = back.send_to(bytes, self.shared.server);
        }
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn passes(&self) -> bool {
        !self.is_blocked.load(Ordering::Relaxed)
    }

    fn forward(&self) {
        let mut buffer = vec![0; 65_536];
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((len, from)) = self.front.recv_from(&mut buffer) else { continue };
            *self.client.lock().unwrap() = Some(from);
            if self.passes() {
                let mut seen = self.seen.lock().unwrap();
                if seen.len() < 1000 {
                    seen.push(buffer[..len].to_vec());
                }
                let _ = self.back.lock().unwrap().send_to(&buffer[..len], self.server);
            }
        }
    }

    fn backward(&self) {
        let mut buffer = vec![0; 65_536];
        while !self.stop.load(Ordering::Relaxed) {
            let back = self.back.lock().unwrap().try_clone().unwrap();
            let Ok((len, _)) = back.recv_from(&mut buffer) else { continue };
            if let Some(client) = self.client.lock().unwrap().filter(|_| self.passes()) {
                let _ = self.front.send_to(&buffer[..len], client);
            }
        }
    }
}

/// Both ends of a connection through a translator.
async fn translated() -> (Stream, Stream, Translator, Listener) {
    let listener = Port::bind(loopback()).unwrap().listen(&profile()).unwrap();
    let translator = Translator::before(listener.port().local_addr());
    let client = Port::bind(loopback()).unwrap();
    let profile = profile();
    let connect = client.connect(translator.addr, &profile, LIMIT);
    let (connected, accepted) = in_time(async { tokio::join!(connect, listener.accept()) }).await;
    let (client, server) = (connected.unwrap(), accepted.unwrap().0.into_stream());
    write(&client, b"hello").await;
    assert_eq!(read(&server, 5).await.0, b"hello");
    (client, server, translator, listener)
}

#[tokio::test]
async fn changed_address_is_an_error_at_both_ends() {
    let (client, server, translator, _listener) = translated().await;
    translator.rebind();
    // UDT cannot recognise a peer that comes from a new address.
    write(&client, b"from elsewhere").await;
    assert_eq!(in_time(client.failed()).await.kind(), ErrorKind::TimedOut);
    assert_eq!(read(&server, 14).await, (vec![], Some(ErrorKind::TimedOut)));
    assert!(client.delivered(LIMIT).await.is_err());
}

#[tokio::test]
async fn blocked_path_is_an_error_within_the_idle_timeout() {
    let (client, server, translator, _listener) = translated().await;
    translator.block();
    write(&client, &[7; 100_000]).await;
    assert_eq!(in_time(client.failed()).await.kind(), ErrorKind::TimedOut);
    let (bytes, error) = read(&server, 100_000).await;
    assert!(bytes.is_empty());
    assert_eq!(error, Some(ErrorKind::TimedOut));
}

#[tokio::test]
async fn replay_is_neither_read_twice_nor_a_second_connection() {
    let (client, server, translator, listener) = translated().await;
    let sent: Vec<u8> = (0..200_000).map(|n| (n % 251) as u8).collect();
    for part in sent.chunks(50_000) {
        write(&client, part).await;
        translator.replay();
    }
    assert_eq!(read(&server, sent.len()).await.0, sent);
    write(&client, b"and no more").await;
    assert_eq!(read(&server, 11).await.0, b"and no more");
    assert_eq!(listener.port().connections(), 1);
}

#[tokio::test]
async fn replay_of_an_ended_connection_is_not_a_new_one() {
    let (client, server, translator, listener) = translated().await;
    drop(client);
    assert_eq!(in_time(server.failed()).await.kind(), ErrorKind::ConnectionReset);
    drop(server);
    in_time(async {
        while listener.port().connections() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // The cookie is still valid.
    translator.replay();
    // The server has processed the replay before it accepts this connection.
    let port = Port::bind(loopback()).unwrap();
    let profile = profile();
    let connect = port.connect(listener.port().local_addr(), &profile, LIMIT);
    let (connected, accepted) = in_time(async { tokio::join!(connect, listener.accept()) }).await;
    let (client, server) = (connected.unwrap(), accepted.unwrap().0.into_stream());
    write(&client, b"the only one").await;
    assert_eq!(read(&server, 12).await.0, b"the only one");
    assert_eq!(listener.port().connections(), 1);
}

/// A handshake request with a guessed cookie, or without one.
fn request(n: u32) -> [u8; 64] {
    let mut request = [0; 64];
    let words = [0x8000_0000, 0, 0, 0, 4, 1, n, 1500, 8192, if n.is_multiple_of(2) { 1 } else { u32::MAX }, n | 1, n];
    for (word, at) in words.iter().zip((0..).step_by(4)) {
        request[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    request
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn flood_of_requests_costs_no_memory_and_is_not_amplified() {
    let (mut client, mut server, _translator, listener) = translated().await;
    let to = listener.port().local_addr();
    let (flood, mut sources) = (200_000u32, vec![]);
    for n in 0..200u8 {
        // All addresses of 127.0.0.0/8 belong to this host.
        let source = UdpSocket::bind((Ipv4Addr::new(127, 9, n, 1), 0)).unwrap();
        source.set_nonblocking(true).unwrap();
        sources.push(source);
    }
    let (before, mut bytes_in, mut bytes_out) = (resident(), 0, 0);
    let mut answer = [0; 2048];
    for n in 0..flood {
        let source = &sources[n as usize % sources.len()];
        bytes_in += source.send_to(&request(n), to).unwrap_or(0);
        while let Ok(len) = source.recv(&mut answer) {
            assert!(len <= 64, "an answer of {len} bytes to a request of 64");
            bytes_out += len;
        }
    }
    // During the flood everything keeps working.
    write(&client, b"still here").await;
    assert_eq!(read(&server, 10).await.0, b"still here");
    (client, server) = {
        let port = Port::bind(loopback()).unwrap();
        let profile = profile();
        let connect = port.connect(to, &profile, LIMIT);
        let (connected, accepted) = in_time(async { tokio::join!(connect, listener.accept()) }).await;
        assert_eq!(listener.port().connections(), 2, "nobody else is remembered");
        (connected.unwrap(), accepted.unwrap().0.into_stream())
    };
    write(&client, b"welcome").await;
    assert_eq!(read(&server, 7).await.0, b"welcome");
    for source in &sources {
        while let Ok(len) = source.recv(&mut answer) {
            bytes_out += len;
        }
    }
    assert!(bytes_out > 0, "requests without a cookie are answered with one");
    assert!(bytes_out < bytes_in, "{bytes_out} bytes out for {bytes_in} in");
    // One kilobyte of state for each request would be two hundred megabytes.
    let grown = resident().saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} bytes more than before");
}
