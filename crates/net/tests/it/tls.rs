//! TLS over real sockets: streams and their ends, authentication, truncation, and the raw socket after
//! `auth`.

use crate::certificates;
use certificates::Place;
use phoebus_net::tls::{Offer, Tls, listener as listener_over};
use phoebus_net::transport::{Security, Target, Transport};
use phoebus_net::udt::Udt;
use phoebus_net::{Error, Profile, Stream, tcp};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Guards against hanging.
const LIMIT: Duration = Duration::from_secs(60);
const ENCRYPT: Offer = Offer { encrypt: true, auth: false, none: false, others: false };
const AUTH: Offer = Offer { encrypt: false, auth: true, none: false, others: false };
const ANY: Offer = Offer { encrypt: true, auth: true, none: true, others: false };

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("nothing may hang")
}

async fn read(stream: &Stream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        bounded(stream.readable()).await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

async fn read_to_end(stream: &Stream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 50_000]);
    loop {
        match read(stream, &mut buffer).await? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}

async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => bounded(stream.writable()).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn target(addr: SocketAddr, name: &str) -> Target {
    Target { addr, name: name.into(), early: false }
}

/// Connects `pg1` to a listener of `pg2`.
async fn meet(place: &Place, transport: Tls, name: &str, offer: Offer) -> (Result<Stream, Error>, io::Result<Stream>) {
    let profile = Profile::default();
    let under = tcp::listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let listener = listener_over(Box::new(under), &place.credentials("pg2"), offer);
    let to = target(listener.local_addr().unwrap(), name);
    let accept = async {
        let (pending, _) = listener.accept().await.unwrap();
        pending.handshake().await
    };
    bounded(async { tokio::join!(transport.connect(&to, &profile, LIMIT), accept) }).await
}

async fn pair(place: &Place, transport: Tls, offer: Offer) -> (Stream, Stream) {
    let (client, server) = meet(place, transport, "pg2", offer).await;
    (client.unwrap(), server.unwrap())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[tokio::test]
async fn streams_arrive_complete_and_end_independently() {
    let place = Place::new();
    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    assert_eq!((a.security(), b.security()), (Security::Encrypt, Security::Encrypt));
    assert_eq!(a.identity().unwrap().names, ["pg2"]);
    assert_eq!(b.identity().unwrap().names, ["pg1"]);
    let all = bytes(8_000_003);
    async fn send(stream: &Stream, all: &[u8]) {
        write_all(stream, all).await.unwrap();
        stream.shutdown_write().unwrap();
    }
    let ((), (), up, down) = tokio::join!(send(&a, &all), send(&b, &all), read_to_end(&b), read_to_end(&a));
    assert!(up.unwrap() == all && down.unwrap() == all);
    a.delivered(LIMIT).await.unwrap();
    assert!(a.stats().unwrap().bytes_sent > all.len() as u64, "of what is on the wire");
    assert_eq!(write_all(&a, b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    a.close();
    b.close();
}

#[tokio::test]
async fn half_close_leaves_the_other_direction_open() {
    let place = Place::new();
    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    a.shutdown_write().unwrap();
    assert_eq!(read_to_end(&b).await.unwrap(), b"");
    write_all(&b, b"an answer").await.unwrap();
    b.shutdown_write().unwrap();
    assert_eq!(read_to_end(&a).await.unwrap(), b"an answer");
}

#[tokio::test]
async fn backlog_is_sent_without_further_writes() {
    let place = Place::new();
    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    let mut written = 0;
    let piece = bytes(100_000);
    let full = loop {
        match a.try_write(&piece, false) {
            Ok(n) => written += n,
            Err(error) => break error,
        }
        assert!(written < 256 << 20, "a reader that does not read holds up the writer");
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    assert!(a.unacknowledged().unwrap() > 0);
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    while got < written {
        got += read(&b, &mut buffer).await.unwrap();
    }
    assert_eq!(got, written);
    bounded(a.writable()).await.unwrap();
    assert!(b.is_quiet().unwrap());
}

#[tokio::test]
async fn dropped_connection_is_reset_and_closed_one_delivers() {
    let place = Place::new();
    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    drop(a);
    let error = read_to_end(&b).await.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::CONNRESET.raw_os_error()));
    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    drop(a);
    assert_eq!(bounded(b.failed()).await.kind(), io::ErrorKind::ConnectionReset);

    let (a, b) = pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT).await;
    let (all, reading) = (bytes(3_000_000), tokio::spawn(async move { read_to_end(&b).await }));
    write_all(&a, &all).await.unwrap();
    a.shutdown_write().unwrap();
    a.close();
    assert!(bounded(reading).await.unwrap().unwrap() == all);
}

/// A connection through a relay that forwards `passed` bytes of the client and then closes, as anyone on the
/// path could.
async fn cut_after(
    place: &Place,
    transport: Tls,
    offer: Offer,
    passed: usize,
    then: &[u8],
) -> (Stream, Stream, TcpStream, TcpStream) {
    let profile = Profile::default();
    let under = tcp::listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let listener = listener_over(Box::new(under), &place.credentials("pg2"), offer);
    let middle = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = target(middle.local_addr().unwrap(), "pg2");
    let settled = tokio::sync::Notify::new();
    let relay = async {
        let (mut near, _) = middle.accept().await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut up, mut down) = ([0; 16_384], [0; 16_384]);
        loop {
            tokio::select! {
                n = near.read(&mut up) => far.write_all(&up[..n.unwrap()]).await.unwrap(),
                n = far.read(&mut down) => near.write_all(&down[..n.unwrap()]).await.unwrap(),
                () = settled.notified() => break,
            }
        }
        (near, far)
    };
    let accept = async {
        let (pending, _) = listener.accept().await.unwrap();
        pending.handshake().await.unwrap()
    };
    let connect = async { transport.connect(&to, &profile, LIMIT).await.unwrap() };
    let ends = async {
        let ends = tokio::join!(connect, accept);
        settled.notify_one();
        ends
    };
    let ((client, server), (mut near, mut far)) = bounded(async { tokio::join!(ends, relay) }).await;
    write_all(&client, b"a message").await.unwrap();
    client.shutdown_write().unwrap();
    // Two records: the message, and close_notify.
    let mut sent = Vec::new();
    for _ in 0..2 {
        let start = sent.len();
        sent.resize(start + 5, 0);
        bounded(near.read_exact(&mut sent[start..])).await.unwrap();
        let len = usize::from(u16::from_be_bytes([sent[start + 3], sent[start + 4]]));
        sent.resize(start + 5 + len, 0);
        bounded(near.read_exact(&mut sent[start + 5..])).await.unwrap();
    }
    far.write_all(&sent[..passed.min(sent.len())]).await.unwrap();
    far.write_all(then).await.unwrap();
    far.shutdown().await.unwrap();
    (client, server, near, far)
}

#[tokio::test]
async fn end_without_close_notify_is_an_error() {
    let place = Place::new();
    // Truncated to nothing, to half a record, and to everything but close_notify.
    for passed in [0, 20, 31] {
        let transport = Tls::encrypt(place.credentials("pg1"));
        let (_client, server, _near, _far) = cut_after(&place, transport, ENCRYPT, passed, b"").await;
        let error = read_to_end(&server).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{passed}: {error}");
        assert_eq!(error.to_string(), "the connection was cut: it ended without TLS close_notify");
        assert_eq!(read_to_end(&server).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "and stays one");
    }
    let transport = Tls::encrypt(place.credentials("pg1"));
    let (_client, server, _near, _far) = cut_after(&place, transport, ENCRYPT, usize::MAX, b"").await;
    assert_eq!(read_to_end(&server).await.unwrap(), b"a message");
    // Bytes injected into the stream.
    let transport = Tls::encrypt(place.credentials("pg1"));
    let forged = [
        0x17, 3, 3, 0, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
        26, 27, 28, 29, 30,
    ];
    let (_client, server, _near, _far) = cut_after(&place, transport, ENCRYPT, 31, &forged).await;
    let error = read_to_end(&server).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (io::ErrorKind::InvalidData, "what it sent was altered on the way")
    );
    assert_eq!(bounded(server.failed()).await.kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn untrusted_peer_is_refused_with_reason() {
    let place = Place::new();
    let (client, _) = meet(&place, Tls::encrypt(place.credentials("pg1")), "pg3", ENCRYPT).await;
    let error = client.unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("cannot trust pg3 at 127.0.0.1:")
            && text.ends_with("it showed a certificate for pg2; expected one for pg3"),
        "{text}"
    );

    let elsewhere = Place::new();
    let (client, server) = meet(&place, Tls::encrypt(elsewhere.credentials("pg1")), "pg2", ENCRYPT).await;
    let text = client.unwrap_err().to_string();
    assert!(text.ends_with("its certificate is not signed by an authority that is trusted here"), "{text}");
    let error = server.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("it does not accept this end's certificate"), "{error}");

    // The client trusts the server, but not vice versa: the client learns of the refusal when it reads.
    let stranger = elsewhere.credentials_that_trust("pg1", &place);
    let (client, server) = meet(&place, Tls::encrypt(stranger), "pg2", ENCRYPT).await;
    assert_eq!(server.unwrap_err().to_string(), "its certificate is not signed by an authority that is trusted here");
    let error = read(&client.unwrap(), &mut [0; 64]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("it does not accept this end's certificate"), "{error}");

    let nameless = target("127.0.0.1:9".parse().unwrap(), "pg2:5006");
    let connect = Tls::encrypt(place.credentials("pg1")).connect(&nameless, &Profile::default(), LIMIT).await;
    let text = connect.unwrap_err().to_string();
    assert!(text.ends_with("\"pg2:5006\" is not a name or address that a certificate can carry"), "{text}");
}

#[tokio::test]
async fn security_mode_cannot_be_downgraded() {
    let place = Place::new();
    for (transport, offer) in
        [(Tls::encrypt(place.credentials("pg1")), AUTH), (Tls::auth(place.credentials("pg1")), ENCRYPT)]
    {
        let (client, server) = meet(&place, transport, "pg2", offer).await;
        let text = client.unwrap_err().to_string();
        assert!(text.contains("it does not offer the kind of security that this hop is configured for"), "{text}");
        let text = server.unwrap_err().to_string();
        assert_eq!(text, "it asks for a kind of security that is not offered here");
    }
}

#[tokio::test]
async fn listener_serves_every_offered_mode() {
    let place = Place::new();
    let profile = Profile::default();
    let under = tcp::listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let listener = listener_over(Box::new(under), &place.credentials("pg2"), ANY);
    let to = target(listener.local_addr().unwrap(), "pg2");
    let plain: Arc<dyn Transport> = Arc::new(tcp::Tcp);
    let kinds: [(Arc<dyn Transport>, Security); 3] = [
        (plain.clone(), Security::None),
        (Arc::new(Tls::auth(place.credentials("pg1"))), Security::Auth),
        (Arc::new(Tls::encrypt(place.credentials("pg1"))), Security::Encrypt),
    ];
    for (transport, security) in kinds {
        let connect = async {
            let client = transport.connect(&to, &profile, LIMIT).await.unwrap();
            write_all(&client, b"hello").await.unwrap();
            client
        };
        let accept = async { listener.accept().await.unwrap().0.handshake().await.unwrap() };
        let (_client, server) = bounded(async { tokio::join!(connect, accept) }).await;
        assert_eq!(server.security(), security);
        assert_eq!(server.identity().is_some(), security != Security::None);
        let mut buffer = [0; 16];
        let n = read(&server, &mut buffer).await.unwrap();
        assert_eq!(&buffer[..n], b"hello");
    }
    // Without `none` in its offer, the listener admits no client without TLS.
    let under = tcp::listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let strict = listener_over(Box::new(under), &place.credentials("pg2"), ENCRYPT);
    let to = target(strict.local_addr().unwrap(), "pg2");
    let connect = async {
        let client = plain.connect(&to, &profile, LIMIT).await.unwrap();
        write_all(&client, b"hello").await.unwrap();
        client
    };
    let accept = async { strict.accept().await.unwrap().0.handshake().await };
    let (_client, server) = bounded(async { tokio::join!(connect, accept) }).await;
    assert_eq!(server.unwrap_err().to_string(), "it does not speak TLS, which this hop is configured for");
}

#[tokio::test]
async fn socket_is_raw_after_auth() {
    let place = Place::new();
    let (a, b) = pair(&place, Tls::auth(place.credentials("pg1")), AUTH).await;
    assert_eq!(b.identity().unwrap().names, ["pg1"]);
    write_all(&a, b"OPEN").await.unwrap();
    let mut buffer = [0; 64];
    assert_eq!(read(&b, &mut buffer).await.unwrap(), 4);
    // The answer, close_notify and the first raw bytes arrive together.
    write_all(&b, b"OPENED").await.unwrap();
    b.unprotect().unwrap();
    write_all(&b, b"220 ready\r\n").await.unwrap();
    assert_eq!(read(&a, &mut buffer).await.unwrap(), 6);
    assert_eq!(&buffer[..6], b"OPENED");
    a.unprotect().unwrap();
    assert_eq!(read(&a, &mut buffer).await.unwrap(), 11);
    assert_eq!(&buffer[..11], b"220 ready\r\n");
    write_all(&a, b"raw").await.unwrap();
    assert_eq!(read(&b, &mut buffer).await.unwrap(), 3);
    assert_eq!((a.security(), b.security()), (Security::Auth, Security::Auth));

    // A carrier joins two such connections, and may splice.
    let pipes = phoebus_net::PipePool::new(4, 1 << 20);
    let (c, d) = pair(&place, Tls::auth(place.credentials("pg1")), AUTH).await;
    c.unprotect().unwrap();
    d.unprotect().unwrap();
    write_all(&c, b"0123456789").await.unwrap();
    assert_eq!(read(&d, &mut buffer[..4]).await.unwrap(), 4);
    let mut carrier = pipes.carrier(&d, &b);
    assert_eq!(pipes.usage().0, 1, "it splices");
    bounded(d.readable()).await.unwrap();
    assert_eq!(carrier.fill(&d, 100).unwrap(), 6);
    assert_eq!(carrier.drain(&b).unwrap(), 6);
    assert_eq!(read(&a, &mut buffer).await.unwrap(), 6);
    assert_eq!(&buffer[..6], b"456789");
    a.shutdown_write().unwrap();
    assert_eq!(read_to_end(&b).await.unwrap(), b"", "as TCP ends");
}

#[tokio::test]
async fn truncation_before_close_notify_is_an_error_under_auth() {
    let place = Place::new();
    for passed in [0, 31] {
        let transport = Tls::auth(place.credentials("pg1"));
        let (_client, server, _near, _far) = cut_after(&place, transport, AUTH, passed, b"").await;
        assert_eq!(read_to_end(&server).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[tokio::test]
async fn encrypted_udt_has_half_close() {
    let place = Place::new();
    let (profile, under) = (Profile::default(), Arc::new(Udt::default()));
    let listener = under.listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let listener = listener_over(listener, &place.credentials("pg2"), ENCRYPT);
    let transport = Tls::encrypt(place.credentials("pg1")).over(under, "udt-tls");
    assert_eq!(transport.name(), "udt-tls");
    let to = target(listener.local_addr().unwrap(), "pg2");
    let accept = async { listener.accept().await.unwrap().0.handshake().await };
    let (a, b) = bounded(async { tokio::join!(transport.connect(&to, &profile, LIMIT), accept) }).await;
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.security(), b.identity().unwrap().names.as_slice()), (Security::Encrypt, &["pg1".to_owned()][..]));
    let all = bytes(4_000_000);
    let send = async {
        write_all(&a, &all).await?;
        a.shutdown_write()
    };
    let (sent, got) = tokio::join!(send, read_to_end(&b));
    sent.unwrap();
    assert!(got.unwrap() == all);
    write_all(&b, b"an answer").await.unwrap();
    b.shutdown_write().unwrap();
    assert_eq!(read_to_end(&a).await.unwrap(), b"an answer");
}

#[test]
fn connection_moves_to_another_runtime() {
    let place = Place::new();
    let first = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = first.block_on(pair(&place, Tls::encrypt(place.credentials("pg1")), ENCRYPT));
    second.block_on(async {
        let (a, b) = (a.move_to_runtime().unwrap(), b.move_to_runtime().unwrap());
        first.shutdown_background();
        let all = bytes(2_000_000);
        let (sent, got) = tokio::join!(
            async {
                write_all(&a, &all).await?;
                a.shutdown_write()
            },
            read_to_end(&b)
        );
        sent.unwrap();
        assert!(got.unwrap() == all);
    });
}

#[tokio::test]
async fn error_for_udt_listener_without_tls_names_the_missing_key() {
    let place = Place::new();
    let (udt, profile) = (Arc::new(Udt::default()), Profile::default());
    let listener = udt.listen("127.0.0.1:0".parse().unwrap(), &profile).unwrap();
    let to = target(listener.local_addr().unwrap(), "pg2");
    let transport = Tls::encrypt(place.credentials("pg1")).over(udt, "udt-tls");
    let accept = async {
        let server = listener.accept().await.unwrap().0.handshake().await.unwrap();
        write_all(&server, b"not a word of TLS").await.unwrap();
        server
    };
    let (client, _server) = bounded(async { tokio::join!(transport.connect(&to, &profile, LIMIT), accept) }).await;
    let error = client.unwrap_err().to_string();
    assert!(error.ends_with("configured for: its [[listen]] for udt needs security = \"encrypt\""), "{error}");
}
