//! A flood of handshakes that are begun from addresses that are not the sender's own: each is a true Initial (RFC 9001, section
//! 5.2), as quinn makes them, so that nothing but the proof of an address (RFC 9000, section 8.1.2) keeps it out.

use super::place::{Pair, Place, read_exactly, write_all};
use phoebus_net::credentials::Credentials;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Datagrams of the flood, and the addresses that they come from.
const FLOOD: usize = 3000;
const SOURCES: usize = 50;

/// The first datagrams of so many connections to `server`.
fn initials(credentials: &Credentials, server: SocketAddr, count: usize) -> Vec<Vec<u8>> {
    let crypto = QuicClientConfig::try_from(credentials.client_config(&[b"phoebus/1"])).unwrap();
    let config = ClientConfig::new(Arc::new(crypto));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
    let initial = |_| {
        let now = Instant::now();
        let (_, mut connection) = endpoint.connect(now, config.clone(), server, "pg2.test").unwrap();
        let mut bytes = Vec::new();
        let transmit = connection.poll_transmit(now, 1, &mut bytes).unwrap();
        bytes.truncate(transmit.size);
        bytes
    };
    (0..count).map(initial).collect()
}

/// What a datagram is, by its first byte (RFC 9000, section 17.2).
fn is_retry(datagram: &[u8]) -> bool {
    datagram[0] & 0xf0 == 0xf0
}

/// Sockets whose answers somebody else gets, as far as the server can know.
fn sources() -> Vec<UdpSocket> {
    let bind = |n| UdpSocket::bind((Ipv4Addr::new(127, 0, 77, n as u8 + 1), 0)).unwrap();
    let sockets: Vec<UdpSocket> = (0..SOURCES).map(bind).collect();
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    sockets
}

/// Everything that has come back: datagrams that ask for a proof, others, and bytes.
fn answers(sources: &[UdpSocket]) -> (usize, usize, usize) {
    let (mut retries, mut others, mut bytes, mut buffer) = (0, 0, 0, [0; 2048]);
    for source in sources {
        while let Ok((len, _)) = source.recv_from(&mut buffer) {
            bytes += len;
            *(if is_retry(&buffer[..len]) { &mut retries } else { &mut others }) += 1;
        }
    }
    (retries, others, bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_true_initials_leaves_nothing_behind_and_is_not_amplified() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let place = Place::new();
    let server = pair.target().addr;
    let flood = initials(&place.credentials("pg1.test"), server, FLOOD);
    assert!(flood.iter().all(|initial| initial.len() >= 1200 && !is_retry(initial)));
    let sources = sources();
    let (mut sent, mut retries, mut others, mut back) = (0, 0, 0, 0);
    // Each of them twice: a server that had kept anything of the first would take the second for a part of that handshake.
    for (n, initial) in flood.iter().chain(&flood).enumerate() {
        sources[n % SOURCES].send_to(initial, server).unwrap();
        sent += initial.len();
        if n % 100 == 0 {
            // The socket's buffer must not be what protects the listener.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (more, odd, bytes) = answers(&sources);
            (retries, others, back) = (retries + more, others + odd, back + bytes);
        }
        if n == FLOOD {
            // In the middle of it, those who are in go on, and those who prove their address come in.
            write_all(&near, b"still here").await.unwrap();
            assert_eq!(read_exactly(&far, 10).await.unwrap(), b"still here");
            pair.streams().await;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (more, odd, bytes) = answers(&sources);
    (retries, others, back) = (retries + more, others + odd, back + bytes);
    println!("{sent} bytes sent, {back} came back; {retries} of {} were asked for a proof", 2 * FLOOD);
    assert_eq!(others, 0, "a stranger is told nothing but to prove its address");
    assert!(retries > FLOOD, "{retries} of {} were answered", 2 * FLOOD);
    assert!(back < sent / 5, "{back} bytes for {sent}");
    // Those that are there have lost nothing.
    let (again, reader) = pair.streams().await;
    write_all(&again, b"and so is this").await.unwrap();
    assert_eq!(read_exactly(&reader, 14).await.unwrap(), b"and so is this");
}
