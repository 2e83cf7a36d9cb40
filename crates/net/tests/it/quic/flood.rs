//! A flood of handshakes from spoofed addresses. Each datagram is a genuine Initial (RFC 9001, section 5.2)
//! made by quinn, so that only address validation (RFC 9000, section 8.1.2) keeps it out.

use super::place::{Pair, Place, read_exactly, write_all};
use phoebus_net::credentials::Credentials;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of datagrams, and of the addresses that they come from.
const FLOOD: usize = 3000;
const SOURCES: usize = 50;

/// The first datagrams of `count` connections to `server`.
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

/// Whether a datagram is a Retry, by its first byte (RFC 9000, section 17.2).
fn is_retry(datagram: &[u8]) -> bool {
    datagram[0] & 0xf0 == 0xf0
}

/// Sockets that stand for spoofed sources: the flood ignores what they receive.
fn sources() -> Vec<UdpSocket> {
    let bind = |n| UdpSocket::bind((Ipv4Addr::new(127, 0, 77, n as u8 + 1), 0)).unwrap();
    let sockets: Vec<UdpSocket> = (0..SOURCES).map(bind).collect();
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    sockets
}

/// The answers that came back: the number of Retries, of other datagrams, and of bytes.
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
async fn flood_of_initials_leaves_no_state_and_is_not_amplified() {
    let pair = Pair::new();
    let (near, far) = pair.streams().await;
    let place = Place::new();
    let server = pair.target().addr;
    let flood = initials(&place.credentials("pg1.test"), server, FLOOD);
    assert!(flood.iter().all(|initial| initial.len() >= 1200 && !is_retry(initial)));
    let sources = sources();
    let (mut sent, mut retries, mut others, mut back) = (0, 0, 0, 0);
    // Each is sent twice: a server that had kept state for the first would take the second as part of its
    // handshake.
    for (n, initial) in flood.iter().chain(&flood).enumerate() {
        sources[n % SOURCES].send_to(initial, server).unwrap();
        sent += initial.len();
        if n % 100 == 0 {
            // Paced, so that the server's socket buffer is not what limits the flood.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (more, odd, bytes) = answers(&sources);
            (retries, others, back) = (retries + more, others + odd, back + bytes);
        }
        if n == FLOOD {
            // During the flood, existing connections work, and clients that validate their address get in.
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
    // Existing connections have lost nothing.
    let (again, reader) = pair.streams().await;
    write_all(&again, b"and so is this").await.unwrap();
    assert_eq!(read_exactly(&reader, 14).await.unwrap(), b"and so is this");
}
