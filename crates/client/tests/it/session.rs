//! Sessions over loopback against a scripted peer: opened, refused, with demands, broken or lost.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use phoebus_client::{Error, Options, Session, connect};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::acceptor::{Acceptor, Request, State};
use phoebus_proto::session::message::{Challenge, HopReport, Open, Opened, Refused, Requirements};
use phoebus_proto::session::{Code, List};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A first hop that handles one connection with `serve`, after the peer has requested a session.
fn gateway<T: Send + 'static>(
    serve: impl FnOnce(TcpStream, Acceptor) -> T + Send + 'static,
) -> (Options, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { path: vec![listener.local_addr().unwrap().into()], ..Options::default() };
    (options, gateway_on(listener, serve))
}

fn gateway_on<T: Send + 'static>(
    listener: TcpListener,
    serve: impl FnOnce(TcpStream, Acceptor) -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut acceptor = Acceptor::new("pg1");
        while acceptor.state() != State::Asked {
            let n = stream.read(acceptor.space().unwrap()).unwrap();
            acceptor.received(n).unwrap();
            send(&mut stream, &mut acceptor);
            if matches!(acceptor.request(), Some(Request::Auth(_))) {
                acceptor.accept_auth(None).unwrap();
            }
        }
        serve(stream, acceptor)
    })
}

fn send(stream: &mut TcpStream, acceptor: &mut Acceptor) {
    stream.write_all(acceptor.outgoing()).unwrap();
    acceptor.sent(acceptor.outgoing().len());
}

fn asked(acceptor: &Acceptor) -> Open<'_> {
    match acceptor.request() {
        Some(Request::Open(open)) => open,
        other => panic!("{other:?}"),
    }
}

fn open(stream: &mut TcpStream, acceptor: &mut Acceptor, rtt_us: u64) {
    let hops = [HopReport { from: "pg1", to: "10.0.0.4:7", transport: "tcp", rtt_us, ..HopReport::default() }];
    let (session, mode) = (asked(acceptor).session, asked(acceptor).mode);
    acceptor.opened(&Opened::new(session, mode, List::new(&hops))).unwrap();
    send(stream, acceptor);
}

fn destination() -> Endpoint {
    "dst.example:7".parse().unwrap()
}

async fn fails(options: &Options) -> Error {
    connect(options, &destination()).await.unwrap_err()
}

#[tokio::test]
async fn session_carries_both_directions_to_their_ends() {
    let (mut options, gateway) = gateway(|mut stream, mut acceptor| {
        let open_message = asked(&acceptor);
        assert_eq!(open_message.destination.to_string(), "dst.example:7");
        assert_eq!(open_message.path.iter().map(|e| e.to_string()).collect::<Vec<_>>(), ["pg2:5006"]);
        open(&mut stream, &mut acceptor, 5000);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        stream.write_all(&got).unwrap();
        got.len()
    });
    options.path.push("pg2/5006".parse().unwrap());
    options.user = Some("ada@example.org".into());
    let session = connect(&options, &destination()).await.unwrap();
    let report = session.report();
    assert_eq!((report.hops.len(), report.hops[0].to.as_str(), report.hops[1].to.as_str()), (2, "pg1", "10.0.0.4:7"));
    assert_eq!(report.rtt_us, report.hops[0].rtt_us + 5000);
    assert_eq!(report.session.len(), 32);
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut got = Vec::new();
    let (mut to, mut from) = (&session, &session);
    let up = async {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    tokio::join!(up, async { from.read_to_end(&mut got).await.unwrap() });
    assert!(got == sent, "{} bytes came back", got.len());
    session.finish().await.unwrap();
    assert_eq!(gateway.join().unwrap(), sent.len());
}

#[tokio::test]
async fn refusal_names_the_hop_and_the_reason() {
    let (options, gateway) = gateway(|mut stream, mut acceptor| {
        let better: Endpoint = "pg9/5006".parse().unwrap();
        let refused = Refused {
            code: Code::Refused,
            reason: "cannot connect to 10.0.0.4:7: connection refused",
            hop: "pg2",
            limits: Requirements::default(),
            redirect: Some(better.as_ref()),
        };
        acceptor.refuse(&refused).unwrap();
        send(&mut stream, &mut acceptor);
    });
    // Without redirects, the error names the better gateway.
    let error = fails(&Options { redirects: 0, ..options }).await;
    assert_eq!(
        error.to_string(),
        "pg2: cannot connect to 10.0.0.4:7: connection refused (it names a better gateway: pg9:5006)"
    );
    assert_eq!((error.code(), error.errno(), error.hop().as_deref()), (Code::Refused, 111, Some("pg2")));
    gateway.join().unwrap();
}

/// A gateway that refuses and names `better`; its join handle returns the path of the request.
fn redirects_to(better: Endpoint) -> (Endpoint, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap().into(), refuses_on(listener, better))
}

fn refuses_on(listener: TcpListener, better: Endpoint) -> JoinHandle<String> {
    gateway_on(listener, move |mut stream, mut acceptor| {
        let path: Vec<_> = asked(&acceptor).path.iter().map(|hop| hop.to_string()).collect();
        let (code, limits) = (Code::Limit, Requirements::default());
        let redirect = Some(better.as_ref());
        acceptor.refuse(&Refused { code, reason: "it is full", hop: "pg", limits, redirect }).unwrap();
        send(&mut stream, &mut acceptor);
        path.join(" ")
    })
}

#[tokio::test]
async fn client_follows_a_redirect_to_a_better_gateway() {
    let (options, third) = gateway(|mut stream, mut acceptor| {
        let path: Vec<_> = asked(&acceptor).path.iter().map(|hop| hop.to_string()).collect();
        open(&mut stream, &mut acceptor, 1);
        path.join(" ")
    });
    let third_at = options.path[0].clone();
    let (second_at, second) = redirects_to(third_at.clone());
    let (first_at, first) = redirects_to(second_at);
    let later: Endpoint = "pg2/5006".parse().unwrap();
    // The better gateway was later on the path anyway, so it is removed there.
    let options = Options { path: vec![first_at.clone(), third_at.clone(), later], ..options };
    let session = connect(&options, &destination()).await.unwrap();
    assert_eq!(session.report().note, format!("redirected from {first_at} to {third_at}"));
    assert_eq!(first.join().unwrap(), format!("{third_at} pg2:5006"));
    assert_eq!(second.join().unwrap(), format!("{third_at} pg2:5006"));
    assert_eq!(third.join().unwrap(), "pg2:5006");
}

#[tokio::test]
async fn client_limits_redirects() {
    let closed: Endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().into();
    let (at, gateway) = redirects_to(closed.clone());
    // Even with a fallback, a client does not bypass a gateway that answers.
    let options = Options { path: vec![at.clone()], fallback: true, ..Options::default() };
    let error = fails(&options).await;
    assert!(error.to_string().starts_with(&format!("gateway {closed}: cannot connect to {closed}")), "{error}");
    assert!(error.to_string().ends_with(&format!("; redirected: {at} → {closed}")), "{error}");
    assert_eq!((error.code(), error.hop()), (Code::Refused, Some(closed.to_string())));
    gateway.join().unwrap();

    // A redirect to itself.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own: Endpoint = listener.local_addr().unwrap().into();
    let thread = refuses_on(listener, own.clone());
    let error = fails(&Options { path: vec![own.clone()], ..Options::default() }).await;
    let circle = format!(
        "pg: it is full (it names a better gateway: {own}); gave up, for the redirects lead in a circle: {own} → {own}"
    );
    assert_eq!((error.to_string(), error.code()), (circle, Code::Limit));
    thread.join().unwrap();

    let (third_at, _never_asked) = redirects_to(closed);
    let (second_at, second) = redirects_to(third_at.clone());
    let (first_at, first) = redirects_to(second_at.clone());
    let options = Options { path: vec![first_at.clone()], redirects: 1, ..Options::default() };
    let error = fails(&options).await;
    let way = format!("; gave up, for the limit of redirects, 1, is reached: {first_at} → {second_at} → {third_at}");
    assert!(error.to_string().ends_with(&way), "{error}");
    first.join().unwrap();
    second.join().unwrap();
}

#[tokio::test]
async fn client_reports_a_gateway_that_requires_an_email_address() {
    let (options, gateway) = gateway(|mut stream, mut acceptor| {
        acceptor.challenge(&Challenge { mechanisms: List::new(&["anonymous"]), data: b"x" }).unwrap();
        send(&mut stream, &mut acceptor);
    });
    let error = fails(&options).await;
    assert!(error.to_string().ends_with("asks for authentication (anonymous); set PHOEBUS_USER to an e-mail address"));
    assert_eq!((error.code(), error.errno()), (Code::AuthRequired, 13));
    gateway.join().unwrap();
}

#[tokio::test]
async fn client_reports_a_peer_that_is_no_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { path: vec![listener.local_addr().unwrap().into()], ..Options::default() };
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = fails(&options).await.to_string();
    assert!(error.contains("does not speak the Phoebus session protocol (it began with \"SSH-2.0-\")"), "{error}");
    assert!(error.ends_with("; is this the gateway's port? 5006 is the default"), "{error}");
    peer.join().unwrap();
}

#[tokio::test]
async fn lost_connection_is_an_error_at_any_time() {
    let (options, gateway) = gateway(|stream, _| drop(stream));
    let error = fails(&options).await;
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    gateway.join().unwrap();

    let (options, gateway) = self::gateway(|mut stream, mut acceptor| {
        open(&mut stream, &mut acceptor, 1);
        stream.write_all(b"some").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let mut session = connect(&options, &destination()).await.unwrap();
    let mut got = [0; 4];
    session.read_exact(&mut got).await.unwrap();
    session.write_all(b"x").await.unwrap();
    assert_eq!(session.failed().await.kind(), ErrorKind::ConnectionReset);
    gateway.join().unwrap();
}

#[tokio::test]
async fn client_gives_up_a_silent_path() {
    let (mut options, gateway) = gateway(|mut stream, _| stream.read_to_end(&mut Vec::new()).is_ok());
    options.open_limit = Duration::from_millis(100);
    let error = fails(&options).await;
    assert!(error.to_string().ends_with("did not say within 100ms whether dst.example:7 has connected"), "{error}");
    gateway.join().unwrap();
}

#[tokio::test]
async fn finish_needs_the_end_of_both_directions() {
    let (options, gateway) = gateway(|mut stream, mut acceptor| {
        open(&mut stream, &mut acceptor, 1);
        stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind())
    });
    let session = connect(&options, &destination()).await.unwrap();
    assert_eq!(session.finish().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(gateway.join().unwrap(), Err(ErrorKind::ConnectionReset));
}

/// A destination that sends a greeting and closes.
fn server() -> (Endpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().into();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"direct").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    (addr, thread)
}

async fn is_direct(mut session: Session, note: &str) {
    assert!(session.report().note.starts_with(note), "{:?}", session.report().note);
    assert_eq!((session.report().hops.len(), session.report().session.as_str()), (1, ""));
    let mut got = Vec::new();
    session.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"direct");
    session.finish().await.unwrap();
}

#[tokio::test]
async fn client_falls_back_to_a_direct_connection_only_if_allowed() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut options = Options { path: vec![closed.into()], ..Options::default() };
    let error = fails(&options).await;
    assert!(matches!(error, Error::Gateway { .. }), "{error}");
    assert_eq!((error.code(), error.hop()), (Code::Refused, Some(closed.to_string())));

    options.fallback = true;
    let (addr, server) = server();
    is_direct(connect(&options, &addr).await.unwrap(), "direct: gateway 127.0.0.1:").await;
    server.join().unwrap();
}

#[tokio::test]
async fn client_bypasses_a_short_path_next_time() {
    let home = tempfile::tempdir().unwrap();
    let (mut options, gateway) = gateway(|mut stream, mut acceptor| open(&mut stream, &mut acceptor, 1));
    (options.bypass_rtt, options.cache) = (Duration::from_secs(5), Some(home.path().join("bypass")));
    let (addr, server) = server();
    drop(connect(&options, &addr).await.unwrap());
    gateway.join().unwrap();
    is_direct(connect(&options, &addr).await.unwrap(), "direct: the path measured ").await;
    server.join().unwrap();
}
