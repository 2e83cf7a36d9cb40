//! Tests of the handshake: both ends against each other, with any split, truncation and corruption of their bytes.

use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::acceptor::{self, Acceptor, Request};
use phoebus_proto::session::auth;
use phoebus_proto::session::initiator::{self, Initiator};
use phoebus_proto::session::message::{
    Attach, Auth, Challenge, Hello, HopReport, Message, Open, Opened, Refused, Requirements,
};
use phoebus_proto::session::{Code, List, MESSAGE_MAX, Mode, PREFACE, PREFIX_LEN, ProtocolError, SessionId, VERSION};
use proptest::prelude::*;

const SESSION: SessionId = SessionId([7; 16]);
const BANNER: &[u8] = b"SSH-2.0-the first bytes of the stream";

type Client = Initiator<Vec<u8>, Vec<u8>>;

fn open<'a>(destination: EndpointRef<'a>, path: &'a [EndpointRef<'a>], mode: Mode) -> Open<'a> {
    Open { path: List::new(path), mode, ..Open::new(SESSION, destination) }
}

fn client(mode: Mode) -> Client {
    let destination = Endpoint::parse("dst.example:22", None).unwrap();
    let pg2 = Endpoint::parse("[2001:db8::2]/5006", None).unwrap();
    let auth = Auth { mechanism: auth::anonymous::NAME, data: b"someone@example.org" };
    let path = [pg2.as_ref()];
    let open = open(destination.as_ref(), &path, mode);
    Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(""), Some(&auth), &open).unwrap()
}

/// Feeds `bytes` in pieces of the given sizes, repeated. `take` consumes a part of each piece and returns its length.
fn feed(
    bytes: &[u8],
    pieces: &[usize],
    mut take: impl FnMut(&[u8]) -> Result<usize, ProtocolError>,
) -> Result<usize, ProtocolError> {
    let mut at = 0;
    for piece in pieces.iter().cycle() {
        let end = (at + piece).min(bytes.len());
        let taken = take(&bytes[at..end])?;
        at += taken;
        if taken == 0 || at == bytes.len() {
            break;
        }
    }
    Ok(at)
}

fn to_acceptor(acceptor: &mut Acceptor, bytes: &[u8], pieces: &[usize]) -> Result<usize, ProtocolError> {
    feed(bytes, pieces, |piece| {
        let space = acceptor.space()?;
        let n = space.len().min(piece.len());
        space[..n].copy_from_slice(&piece[..n]);
        acceptor.received(n)?;
        Ok(n)
    })
}

fn to_initiator(client: &mut Client, bytes: &[u8], pieces: &[usize]) -> Result<usize, ProtocolError> {
    feed(bytes, pieces, |piece| {
        let space = client.space()?;
        let n = space.len().min(piece.len());
        space[..n].copy_from_slice(&piece[..n]);
        client.received(n)?;
        Ok(n)
    })
}

/// The initiator's outgoing bytes.
fn flight(client: &mut Client) -> Vec<u8> {
    let bytes = client.outgoing().to_vec();
    client.sent(bytes.len());
    bytes
}

/// An acceptor that has received AUTH and OPEN in `bytes`, and the number of bytes that it has read.
fn acceptor_with_request(bytes: &[u8], pieces: &[usize]) -> (Acceptor, usize) {
    let mut acceptor = Acceptor::new("pg1");
    let mut at = to_acceptor(&mut acceptor, bytes, pieces).unwrap();
    assert!(matches!(acceptor.request(), Some(Request::Auth(auth)) if auth.data == b"someone@example.org"));
    acceptor.accept_auth(None).unwrap();
    at += to_acceptor(&mut acceptor, &bytes[at..], pieces).unwrap();
    (acceptor, at)
}

fn hop() -> HopReport<'static> {
    HopReport {
        from: "pg1",
        to: "pg2",
        transport: "tcp",
        congestion_control: "bbr",
        rtt_us: 50_000,
        rate: 500_000_000,
        ..Default::default()
    }
}

/// Accepts the session, and returns the acceptor's answer.
fn answer(acceptor: &mut Acceptor, mode: Mode) -> Vec<u8> {
    let hops = [hop(), HopReport { from: "pg2", to: "dst", rtt_us: 8_000, ..hop() }];
    acceptor.opened(&Opened::new(SESSION, mode, List::new(&hops))).unwrap();
    let bytes = acceptor.outgoing().to_vec();
    acceptor.sent(bytes.len());
    bytes
}

proptest! {
    #[test]
    fn handshake_succeeds_with_any_split_and_never_reads_into_the_stream(pieces in prop::collection::vec(1usize..40, 1..20), framed: bool) {
        let mode = if framed { Mode::Framed } else { Mode::Raw };
        let mut client = client(mode);
        let mut sent = flight(&mut client);
        let handshake = sent.len();
        sent.extend_from_slice(BANNER);
        let (mut acceptor, taken) = acceptor_with_request(&sent, &pieces);
        prop_assert_eq!(taken, handshake, "the acceptor read into the stream");
        let Some(Request::Open(open)) = acceptor.request() else { panic!("no OPEN") };
        prop_assert_eq!(open.destination.to_string(), "dst.example:22");
        prop_assert_eq!(open.path.iter().map(|e| e.to_string()).collect::<Vec<_>>(), ["[2001:db8::2]:5006"]);
        prop_assert_eq!(open.mode, mode);

        let mut answer = answer(&mut acceptor, mode);
        let handshake = answer.len();
        answer.extend_from_slice(BANNER);
        let taken = to_initiator(&mut client, &answer, &pieces).unwrap();
        prop_assert_eq!(taken, handshake, "the initiator read into the stream");
        prop_assert_eq!(client.state(), initiator::State::Opened);
        prop_assert_eq!(client.opened().unwrap().rtt_us(), 58_000);
        prop_assert_eq!(acceptor.state(), acceptor::State::Opened(mode));
    }

    #[test]
    fn truncated_flights_leave_both_ends_waiting(cut in 0.0..1.0f64) {
        let mut client = client(Mode::Raw);
        let sent = flight(&mut client);
        let end = (sent.len() as f64 * cut) as usize;
        let mut acceptor = Acceptor::new("pg1");
        to_acceptor(&mut acceptor, &sent[..end], &[4096]).unwrap();
        let _ = acceptor.accept_auth(None);
        prop_assert!(!matches!(acceptor.request(), Some(Request::Open(_))));

        let (mut acceptor, _) = acceptor_with_request(&sent, &[4096]);
        let answer = answer(&mut acceptor, Mode::Raw);
        let end = (answer.len() as f64 * cut) as usize;
        to_initiator(&mut client, &answer[..end], &[4096]).unwrap();
        prop_assert_eq!(client.state(), initiator::State::Opening);
        prop_assert!(client.want() > 0);
    }

    #[test]
    fn corrupted_bytes_never_cause_a_panic(at in 0usize..400, flip in 1u8..) {
        let mut client = client(Mode::Raw);
        let mut sent = flight(&mut client);
        let index = at % sent.len();
        sent[index] ^= flip;
        let mut acceptor = Acceptor::new("pg1");
        let mut result = to_acceptor(&mut acceptor, &sent, &[4096]);
        if let Ok(n) = result {
            let _ = acceptor.accept_auth(None);
            result = to_acceptor(&mut acceptor, &sent[n..], &[4096]);
        }
        if result.is_err() && index >= PREFACE.len() {
            // The acceptor answers with REFUSED, which contains its name.
            prop_assert!(acceptor.outgoing().windows(3).any(|w| w == b"pg1"));
        }
        if index < PREFACE.len() {
            prop_assert!(matches!(result, Err(ProtocolError::Preface(_))));
        }

        let mut client = self::client(Mode::Raw);
        let sent = flight(&mut client);
        let (mut acceptor, _) = acceptor_with_request(&sent, &[4096]);
        let mut answer = answer(&mut acceptor, Mode::Raw);
        let index = at % answer.len();
        answer[index] ^= flip;
        let _ = to_initiator(&mut client, &answer, &[4096]);
        let _ = (client.opened(), client.refused(), client.challenge());
    }

    #[test]
    fn decoded_messages_survive_reencoding(body in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..9) {
        // Most random bytes are not a map. A valid beginning makes the decoder reach the fields.
        let shaped = [&[0xa8, 0x00, kind, 0x01], &body[..]].concat();
        for body in [&body, &shaped] {
            if let Ok(message) = Message::decode(body) {
                let mut out = vec![0; 4 + MESSAGE_MAX];
                let n = message.encode(&mut out).unwrap();
                prop_assert_eq!(Message::decode(&out[4..n]).unwrap(), message);
            }
        }
    }
}

#[test]
fn other_protocols_are_refused_at_their_first_bytes() {
    for greeting in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", b"SSH-2.0-x", b"\0"] {
        let mut acceptor = Acceptor::new("pg1");
        let error = to_acceptor(&mut acceptor, greeting, &[64]).unwrap_err();
        assert!(matches!(error, ProtocolError::Preface(_)), "{error}");
        assert!(error.to_string().starts_with("the peer does not speak the Phoebus session protocol"), "{error}");
    }
}

#[test]
fn announced_length_is_bounded_and_not_allocated_in_advance() {
    let mut client = client(Mode::Raw);
    let mut sent = flight(&mut client);
    sent[8..12].copy_from_slice(&10_000_000u32.to_be_bytes());
    let error = to_acceptor(&mut Acceptor::new("pg1"), &sent, &[4096]).unwrap_err();
    assert_eq!(error, ProtocolError::TooLong(10_000_000));

    // 64 KiB may be announced, but are not allocated before they arrive.
    sent[8..12].copy_from_slice(&(MESSAGE_MAX as u32).to_be_bytes());
    let mut acceptor = Acceptor::new("pg1");
    to_acceptor(&mut acceptor, &sent[..12], &[4096]).unwrap();
    assert!(acceptor.space().unwrap().len() <= 2048);
}

#[test]
fn fixed_buffer_that_is_too_small_is_an_error() {
    let sent = flight(&mut client(Mode::Raw));
    let (mut acceptor, _) = acceptor_with_request(&sent, &[4096]);
    let answer = answer(&mut acceptor, Mode::Raw);
    let mut small = [0; 16];
    let mut inbox = phoebus_proto::session::Inbox::new(&mut small[..]);
    assert!(matches!(inbox.feed(&answer), Err(ProtocolError::NoRoom(_))));
}

#[test]
fn refusal_has_code_reason_and_hop_and_leaves_the_connection_usable() {
    let mut client = client(Mode::Raw);
    let sent = flight(&mut client);
    let (mut acceptor, _) = acceptor_with_request(&sent, &[4096]);
    let refused = Refused {
        code: Code::Refused,
        reason: "dst.example:22 refused the connection",
        hop: "pg2",
        limits: Requirements { buffer: Some(1 << 20), ..Requirements::default() },
        redirect: None,
    };
    acceptor.refuse(&refused).unwrap();
    let answer = acceptor.outgoing().to_vec();
    acceptor.sent(answer.len());
    to_initiator(&mut client, &answer, &[4096]).unwrap();
    assert_eq!(client.state(), initiator::State::Refused);
    assert_eq!(client.refused(), Some(refused));
    assert_eq!(client.refused().unwrap().code.errno(), 111);

    let again = Endpoint::parse("other.example:22", None).unwrap();
    client.open(&open(again.as_ref(), &[], Mode::Raw)).unwrap();
    let sent = flight(&mut client);
    to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
    assert!(matches!(acceptor.request(), Some(Request::Open(open)) if open.destination == again.as_ref()));
}

#[test]
fn one_connection_carries_several_framed_sessions_in_turn() {
    let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of("pg1"), None).unwrap();
    let mut acceptor = Acceptor::new("pg2");
    let sent = flight(&mut client);
    to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
    assert_eq!(acceptor.peer_name(), "pg1");
    let greeting = acceptor.outgoing().to_vec();
    acceptor.sent(greeting.len());
    to_initiator(&mut client, &greeting, &[4096]).unwrap();
    assert_eq!(client.hello().unwrap().name, "pg2");

    let destination = Endpoint::parse("10.0.0.1:80", None).unwrap();
    for _ in 0..3 {
        assert_eq!(client.state(), initiator::State::Ready);
        client.open(&open(destination.as_ref(), &[], Mode::Framed)).unwrap();
        let sent = flight(&mut client);
        to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
        let answer = answer(&mut acceptor, Mode::Framed);
        to_initiator(&mut client, &answer, &[4096]).unwrap();
        assert_eq!((client.want(), acceptor.want()), (0, 0), "the handshake does not read the stream");
        client.next_session().unwrap();
        acceptor.next_session().unwrap();
    }
}

#[test]
fn hello_carries_beacon_flag_and_instance() {
    for (beacon, instance) in [(false, 0), (true, 0), (false, 1), (true, u64::MAX)] {
        let hello = Hello { beacon, instance, ..Hello::of("agent") };
        let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &hello, None).unwrap();
        let mut acceptor = Acceptor::new("pg1");
        to_acceptor(&mut acceptor, &flight(&mut client), &[4096]).unwrap();
        assert_eq!((acceptor.peer_is_beacon(), acceptor.peer_instance()), (beacon, instance));
    }
}

#[test]
fn answer_to_hello_carries_the_instance() {
    for (mut acceptor, instance) in [(Acceptor::new("pg1"), 0), (Acceptor::new("pg1").with_instance(7), 7)] {
        let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of("pg2"), None).unwrap();
        to_acceptor(&mut acceptor, &flight(&mut client), &[4096]).unwrap();
        let answer = acceptor.outgoing().to_vec();
        to_initiator(&mut client, &answer, &[4096]).unwrap();
        assert_eq!(client.hello().unwrap().instance, instance);
    }
}

#[test]
fn challenge_delays_the_session_until_authentication_succeeds() {
    let mut client = client(Mode::Raw);
    let sent = flight(&mut client);
    let mut acceptor = Acceptor::new("pg1");
    let at = to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
    acceptor.challenge(&Challenge { mechanisms: List::new(&["password"]), data: &[9; 32] }).unwrap();
    // The OPEN that was sent along with the first AUTH is skipped.
    to_acceptor(&mut acceptor, &sent[at..], &[4096]).unwrap();
    assert_eq!(acceptor.state(), acceptor::State::Challenged);
    let answer = acceptor.outgoing().to_vec();
    acceptor.sent(answer.len());
    to_initiator(&mut client, &answer, &[4096]).unwrap();
    assert_eq!(client.challenge().unwrap().data, [9; 32]);

    let destination = Endpoint::parse("10.0.0.1:80", None).unwrap();
    let auth = Auth { mechanism: "password", data: b"hash" };
    client.authenticate(&auth, Some(&open(destination.as_ref(), &[], Mode::Raw))).unwrap();
    let sent = flight(&mut client);
    let at = to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
    assert_eq!(acceptor.request(), Some(Request::Auth(auth)));
    acceptor.accept_auth(None).unwrap();
    to_acceptor(&mut acceptor, &sent[at..], &[4096]).unwrap();
    assert!(matches!(acceptor.request(), Some(Request::Open(_))));
    assert!(!format!("{auth:?}").contains("104"), "credentials are never printed");
}

#[test]
fn incompatible_versions_and_features_are_refused_with_their_code() {
    let hello = Hello { version_min: VERSION + 1, version_max: VERSION + 2, ..Hello::of("new") };
    let cases = [(hello, Code::Version), (Hello { required: 1 << 40, ..Hello::of("new") }, Code::Feature)];
    for (hello, code) in cases {
        let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &hello, None).unwrap();
        let sent = flight(&mut client);
        let mut acceptor = Acceptor::new("pg1");
        to_acceptor(&mut acceptor, &sent, &[4096]).unwrap_err();
        let answer = acceptor.outgoing().to_vec();
        to_initiator(&mut client, &answer, &[4096]).unwrap();
        assert_eq!(client.refused().unwrap().code, code);
    }

    let mut client = client(Mode::Raw);
    flight(&mut client);
    let mut greeting = PREFACE.to_vec();
    let mut out = [0; 256];
    let n = Message::Hello(hello).encode(&mut out).unwrap();
    greeting.extend_from_slice(&out[..n]);
    let error = to_initiator(&mut client, &greeting, &[4096]).unwrap_err();
    assert_eq!(error, ProtocolError::Version { min: VERSION + 1, max: VERSION + 2 });
}

#[test]
fn unknown_required_feature_refuses_only_the_session() {
    let destination = Endpoint::parse("10.0.0.1:80", None).unwrap();
    let future = Open { required: 1 << 33, ..open(destination.as_ref(), &[], Mode::Raw) };
    let mut client = Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(""), None, &future).unwrap();
    let sent = flight(&mut client);
    let mut acceptor = Acceptor::new("pg1");
    to_acceptor(&mut acceptor, &sent, &[4096]).unwrap();
    assert_eq!(acceptor.request(), Some(Request::Unsupported(1 << 33)));
    assert_eq!(
        acceptor.opened(&Opened::new(SESSION, Mode::Raw, List::default())),
        Err(ProtocolError::Feature(1 << 33))
    );
    let refused =
        Refused { code: Code::Feature, reason: "", hop: "pg1", limits: Requirements::default(), redirect: None };
    acceptor.refuse(&refused).unwrap();
    let answer = acceptor.outgoing().to_vec();
    to_initiator(&mut client, &answer, &[4096]).unwrap();
    assert_eq!(client.refused().unwrap().code, Code::Feature);
}

/// The acceptor reads one request at a time and then waits for the caller's decision. The number of skipped messages is
/// bounded.
#[test]
fn repeated_messages_are_bounded_without_a_decision() {
    let destination = Endpoint::parse("10.0.0.1:80", None).unwrap();
    let mut message = [0; 256];
    let attach = Attach { session: SESSION, token: &[1; 16], index: 1, padding: 0 };
    let open = open(destination.as_ref(), &[], Mode::Raw);
    for request in [
        Message::Open(open),
        Message::Open(Open { required: 1 << 33, ..open }),
        Message::Attach(attach),
        Message::Auth(Auth { mechanism: "password", data: b"guess" }),
        Message::Hello(Hello::of("")),
        Message::Opened(Opened::new(SESSION, Mode::Raw, List::default())),
    ] {
        let n = request.encode(&mut message).unwrap();
        for challenged in [false, true] {
            let mut acceptor = Acceptor::new("pg1");
            let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), None).unwrap();
            to_acceptor(&mut acceptor, &flight(&mut client), &[4096]).unwrap();
            if challenged {
                let mut auth = [0; 256];
                let n = Message::Auth(Auth { mechanism: "password", data: b"wrong" }).encode(&mut auth).unwrap();
                to_acceptor(&mut acceptor, &auth[..n], &[4096]).unwrap();
                acceptor.challenge(&Challenge { mechanisms: List::new(&["password"]), data: &[] }).unwrap();
            }
            let queued = acceptor.outgoing().len();
            let taken = (0..100).take_while(|_| to_acceptor(&mut acceptor, &message[..n], &[4096]) == Ok(n)).count();
            let is_pending = acceptor.state() == acceptor::State::Asked;
            assert!(taken <= if is_pending { 1 } else { 16 }, "{} was read {taken} times", request.name());
            assert!(acceptor.outgoing().len() <= queued + 256, "{} bytes wait", acceptor.outgoing().len());
        }
    }
}

#[test]
fn answer_for_another_session_or_mode_is_an_error() {
    for (session, mode, expected) in [
        (SessionId([8; 16]), Mode::Raw, ProtocolError::WrongSession),
        (SESSION, Mode::Framed, ProtocolError::WrongMode),
    ] {
        let mut client = client(Mode::Raw);
        let sent = flight(&mut client);
        let (mut acceptor, _) = acceptor_with_request(&sent, &[4096]);
        acceptor.opened(&Opened::new(session, mode, List::default())).unwrap();
        let answer = acceptor.outgoing().to_vec();
        assert_eq!(to_initiator(&mut client, &answer, &[4096]).unwrap_err(), expected);
    }
}

#[test]
fn unknown_fields_are_skipped_and_errors_name_the_message_and_field() {
    // HELLO {0: 1, 1: 1, 2: 1, 40: ["later", {}]}
    let later = b"\xa4\x00\x01\x01\x01\x02\x01\x18\x28\x82\x65later\xa0";
    assert!(matches!(Message::decode(later), Ok(Message::Hello(hello)) if hello.version_max == 1));
    let cases: [(&[u8], &str); 6] = [
        (b"\xa3\x00\x01\x02\x01\x01\x01", "malformed HELLO: the keys do not ascend"),
        (b"\xa2\x00\x01\x01\x01", "malformed HELLO: the versions are missing or in the wrong order"),
        (b"\xa1\x00\x04", "malformed OPEN: the session identifier is missing"),
        (b"\xa2\x00\x06\x02\x63a\nb", "malformed REFUSED: a text contains control characters"),
        (b"\x80", "malformed message: a map was expected"),
        (b"\xa1\x00\x18\x63", "malformed message: the type is not known"),
    ];
    for (body, expected) in cases {
        assert_eq!(Message::decode(body).unwrap_err().to_string(), expected);
    }
}

#[test]
fn padding_only_changes_the_length_of_a_request() {
    let destination = "dst/5201".parse::<Endpoint>().unwrap();
    let plain = open(destination.as_ref(), &[], Mode::Framed);
    let length = |open: Open<'_>| {
        let mut out = vec![0; 65_536];
        let len = Message::Open(open).encode(&mut out).unwrap();
        assert_eq!(Message::decode(&out[PREFIX_LEN..len]), Ok(Message::Open(open)));
        len
    };
    for padding in [1, 1460, Open::PADDING_MAX] {
        let more = length(Open { padding, ..plain }) - length(plain);
        assert!((1..=4).contains(&(more - usize::from(padding))), "{padding} bytes came to {more}");
    }
}

#[test]
fn bundle_is_requested_granted_and_joined() {
    let destination = "dst/5201".parse::<Endpoint>().unwrap();
    let request = Open { streams: 8, ..open(destination.as_ref(), &[], Mode::Framed) };
    let hello = Hello::of("pg1");
    let mut first = Client::connect(vec![0; 4096], Vec::new(), &hello, None, &request).unwrap();
    let mut acceptor = Acceptor::new("pg2");
    to_acceptor(&mut acceptor, &flight(&mut first), &[7]).unwrap();
    assert!(matches!(acceptor.request(), Some(Request::Open(open)) if open.streams == 8));
    let hops = [HopReport { streams: 4, ..hop() }];
    let granted = Opened { streams: 4, token: &[7; 16], ..Opened::new(SESSION, Mode::Framed, List::new(&hops)) };
    acceptor.opened(&granted).unwrap();
    to_initiator(&mut first, acceptor.outgoing(), &[5]).unwrap();
    let opened = first.opened().unwrap();
    assert_eq!((opened.streams, opened.token, opened.hops.iter().next().unwrap().streams), (4, &[7; 16][..], 4));
    assert!(!format!("{opened:?}").contains("7, 7"), "a token is printed");

    // Join with a new connection in one flight, and with one whose HELLO was exchanged before.
    let attach = Attach { session: SESSION, token: &[7; 16], index: 3, padding: 0 };
    let padded = Attach { padding: 1400, ..attach };
    let mut new = Client::join(vec![0; 4096], Vec::new(), &hello, None, &attach).unwrap();
    let mut warm = Client::greet(vec![0; 4096], Vec::new(), &hello, None).unwrap();
    let mut greeted = Acceptor::new("pg2");
    to_acceptor(&mut greeted, &flight(&mut warm), &[4096]).unwrap();
    let answer = greeted.outgoing().to_vec();
    greeted.sent(answer.len());
    to_initiator(&mut warm, &answer, &[4096]).unwrap();
    warm.attach(&padded).unwrap();
    assert_eq!(
        warm.attach(&attach),
        Err(ProtocolError::Unexpected { got: "another request", expected: "an idle connection" })
    );
    for (client, acceptor, sent) in [(&mut new, Acceptor::new("pg2"), attach), (&mut warm, greeted, padded)] {
        let mut acceptor = acceptor;
        to_acceptor(&mut acceptor, &flight(client), &[9]).unwrap();
        assert_eq!(acceptor.request(), Some(Request::Attach(sent)));
        acceptor.opened(&Opened::new(SESSION, Mode::Framed, List::default())).unwrap();
        to_initiator(client, acceptor.outgoing(), &[3]).unwrap();
        assert_eq!(client.state(), initiator::State::Opened);
        assert_eq!((client.opened().unwrap().streams, client.opened().unwrap().hops.len()), (1, 0));
        client.next_session().unwrap();
    }
    let mut none = vec![0; 100];
    let len = Message::Attach(attach).encode(&mut none).unwrap();
    assert_eq!(Message::decode(&none[PREFIX_LEN..len]), Ok(Message::Attach(attach)));
}
