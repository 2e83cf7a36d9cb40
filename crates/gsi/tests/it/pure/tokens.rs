//! Contexts between two ends: identities, delegation, and streams split anywhere.

use std::sync::Arc;

use phoebus_gsi::channel::{Channel, Protection};
use phoebus_gsi::context::{Context, Delegation, Endpoint, Expect, HandshakeError, Step};
use phoebus_gsi::control::{ClientLogin, ControlError, Level, Next, Protected, ServerLogin};
use phoebus_gsi::credential::provider;
use phoebus_gsi::proxy::Rights;
use phoebus_gsi::proxy::issue::{ProxyProfile, create};
use phoebus_gsi::proxy::verify::verify;
use proptest::prelude::*;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::kx_group::SECP384R1;

use crate::pure::world::{HOST, NOW, USER, WORLD, independent_proxy};

fn user() -> Endpoint {
    WORLD.endpoint(&create(&WORLD.user, &ProxyProfile::delegation(false), &provider(), NOW).unwrap())
}

fn host() -> Endpoint {
    WORLD.endpoint(&WORLD.host)
}

fn establish(delegation: Delegation) -> (Context, Context) {
    establish_with(&host(), delegation)
}

/// Exchanges tokens between two contexts until both are open.
fn establish_with(host: &Endpoint, delegation: Delegation) -> (Context, Context) {
    let (mut client, mut token) = Context::initiate(&user(), Expect::Host(HOST.into()), delegation, NOW).unwrap();
    let mut server = Context::accept(host, Expect::Anyone, NOW).unwrap();
    loop {
        match server.step(&token).unwrap() {
            Step::Done(last) => {
                assert!(last.is_empty());
                return (client, server);
            }
            Step::Continue(answer) => match client.step(&answer).unwrap() {
                Step::Continue(next) | Step::Done(next) => token = next,
            },
        }
    }
}

#[test]
fn context_authenticates_both_ends() {
    for delegation in [Delegation::None, Delegation::Limited, Delegation::Full] {
        let (client, server) = establish(delegation);
        assert!(client.is_open() && server.is_open());
        assert_eq!(server.peer().unwrap().identity(), USER);
        assert_eq!(client.peer().unwrap().identity(), format!("/O=Grid/OU=Test/CN=host/{HOST}"));
        assert!(client.delegated().is_none());
        let Some(lent) = server.delegated() else {
            assert_eq!(delegation, Delegation::None);
            continue;
        };
        let rights = &lent.certificate().kind().proxy().unwrap().rights;
        assert_eq!(*rights == Rights::Limited, delegation == Delegation::Limited);
        let verified = verify(lent.chain().to_vec(), &WORLD.trust, &provider(), NOW).unwrap();
        assert_eq!((verified.identity(), verified.proxies()), (USER, 2));
    }
}

#[test]
fn client_refuses_server_with_a_proxy() {
    let refused = |server: &Endpoint, expect: Expect| {
        let (mut client, token) = Context::initiate(&user(), expect, Delegation::Full, NOW).unwrap();
        let mut server = Context::accept(server, Expect::Anyone, NOW).unwrap();
        let Step::Continue(answer) = server.step(&token).unwrap() else { panic!("the server has to answer") };
        client.step(&answer).err()
    };
    let mallory = WORLD.endpoint(&independent_proxy("mallory", HOST));
    let service = WORLD.endpoint(&create(&WORLD.host, &ProxyProfile::delegation(false), &provider(), NOW).unwrap());
    for server in [&mallory, &service] {
        let error = refused(server, Expect::Host(HOST.into())).unwrap();
        assert!(matches!(error, HandshakeError::ProxyAsHost { .. }), "{error}");
    }
}

#[test]
fn server_may_request_a_second_hello() {
    let mut narrow = host();
    let provider = CryptoProvider { kx_groups: vec![SECP384R1], ..CryptoProvider::clone(&narrow.provider) };
    narrow.provider = Arc::new(provider);
    // The client's first key share uses another group, so the server requests a second ClientHello; both
    // contain a hidden server name.
    let (_, server) = establish_with(&narrow, Delegation::Full);
    assert_eq!(server.peer().unwrap().identity(), USER);
    assert!(server.delegated().is_some());
}

#[test]
fn messages_must_arrive_in_order() {
    let (mut client, mut server) = establish(Delegation::None);
    for length in [1, 100, 16_384, 16_385, 100_000] {
        let message = vec![7; length];
        let token = client.wrap(&message).unwrap();
        assert_eq!(server.unwrap(&token).unwrap(), message);
        let token = server.wrap(&message).unwrap();
        assert_eq!(client.unwrap(&token).unwrap(), message);
    }
    let first = client.wrap(b"first").unwrap();
    let second = client.wrap(b"second").unwrap();
    assert!(server.unwrap(&second).is_err(), "a message that came before its turn was taken");
    assert!(server.unwrap(&first).is_err());
}

#[test]
fn altered_and_repeated_messages_are_refused() {
    let length = establish(Delegation::None).0.wrap(b"DELE file").unwrap().len();
    for at in 0..length {
        let (mut client, mut server) = establish(Delegation::None);
        let mut token = client.wrap(b"DELE file").unwrap();
        token[at] ^= 1;
        // TLS 1.3 ignores the first three bytes: the message is either decrypted correctly or refused.
        let opened = server.unwrap(&token);
        assert!(opened.is_err() || (at < 3 && opened.as_deref() == Ok(b"DELE file")), "byte {at}: {opened:?}");
    }
    let (mut client, mut server) = establish(Delegation::None);
    let token = client.wrap(b"DELE file").unwrap();
    server.unwrap(&token).unwrap();
    assert!(server.unwrap(&token).is_err());
}

#[test]
fn unexpected_peer_fails_both_ends() {
    for (expect, says) in [
        (Expect::Host("other.example.org".into()), "not a certificate of host other.example.org"),
        (Expect::Subject("/O=Grid/CN=Other".into()), "/O=Grid/CN=Other was expected"),
    ] {
        let (mut client, token) = Context::initiate(&user(), expect, Delegation::Full, NOW).unwrap();
        let mut server = Context::accept(&host(), Expect::Anyone, NOW).unwrap();
        let Step::Continue(answer) = server.step(&token).unwrap() else { panic!() };
        let error = client.step(&answer).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        let alert = client.alert();
        assert!(!alert.is_empty(), "the server is left waiting");
        assert!(matches!(server.step(&alert), Err(HandshakeError::Tls(_))));
        assert!(matches!(client.step(&answer), Err(HandshakeError::Over)));
        assert!(client.peer().is_none() && client.wrap(b"x").is_err());
    }
}

#[test]
fn error_names_the_expired_proxy() {
    let terms = ProxyProfile { not_after: NOW + 60, ..ProxyProfile::delegation(false) };
    let short = WORLD.endpoint(&create(&WORLD.user, &terms, &provider(), NOW).unwrap());
    let later = NOW + 100;
    let (mut client, token) = Context::initiate(&short, Expect::Anyone, Delegation::None, later).unwrap();
    let mut server = Context::accept(&host(), Expect::Anyone, later).unwrap();
    let Step::Continue(answer) = server.step(&token).unwrap() else { panic!() };
    let Step::Continue(flight) = client.step(&answer).unwrap() else { panic!() };
    let error = server.step(&flight).unwrap_err().to_string();
    assert!(error.contains(USER) && error.contains("expired at"), "{error}");
}

/// Performs a login over the control channel, and returns both ends.
fn login(delegation: Delegation) -> (Protected, Protected) {
    let (mut client, mut line) = ClientLogin::begin(&user(), Expect::Host(HOST.into()), delegation, NOW).unwrap();
    let mut server = ServerLogin::new(&host());
    loop {
        let (verb, argument) = line.split_once(' ').unwrap();
        let answer = server.command(verb, argument, NOW);
        assert_eq!(answer.error, None);
        let (code, text) = answer.line.split_once(' ').unwrap();
        match client.reply(code.parse().unwrap(), text).unwrap() {
            Next::Send(next) => line = next,
            Next::Done => return (client.finish().unwrap(), server.finish().unwrap()),
        }
    }
}

#[test]
fn commands_and_replies_are_protected() {
    let (mut client, mut server) = login(Delegation::Full);
    let line = client.command("RETR a file").unwrap();
    let (verb, argument) = line.split_once(' ').unwrap();
    assert_eq!(server.open_command(verb, argument).unwrap(), Some(("RETR a file".to_owned(), Level::Privacy)));
    assert_eq!(server.open_command("RETR", "a file").unwrap(), None);
    for (level, code) in [(Level::Privacy, "632 "), (Level::Integrity, "631 "), (Level::Confidentiality, "633 ")] {
        let line = server.reply(level, "211-Features\r\n A\r\n211 End").unwrap();
        assert!(line.starts_with(code));
        assert_eq!(client.open_reply(&line).unwrap(), b"211-Features\r\n A\r\n211 End\r\n");
    }
    assert_eq!(client.open_reply("226 Done"), Err(ControlError::Unprotected));
    assert_eq!(client.open_reply("632 ???"), Err(ControlError::Base64));
    assert_eq!(client.open_reply("6"), Err(ControlError::Unprotected));
}

#[test]
fn out_of_order_login_gets_the_right_code() {
    let mut server = ServerLogin::new(&host());
    for (verb, argument, code) in [
        ("ADAT", "AAAA", "503"),
        ("USER", "jane", "530"),
        ("AUTH", "TLS", "504"),
        ("AUTH", "gssapi", "334"),
        ("ADAT", "???", "501"),
        ("ADAT", "AAAA", "503"),
        ("auth", "GSSAPI", "334"),
        ("ADAT", "AAAA", "535"),
    ] {
        let answer = server.command(verb, argument, NOW);
        assert!(answer.line.starts_with(code) && !answer.done, "{verb} {argument}: {}", answer.line);
    }
    assert!(server.finish().is_err());
    let begin = || ClientLogin::begin(&user(), Expect::Anyone, Delegation::None, NOW).unwrap().0;
    assert!(matches!(begin().reply(504, "no"), Err(ControlError::Refused { code: 504, .. })));
    assert!(matches!(begin().reply(235, "already"), Err(ControlError::Unexpected { .. })));
    let mut client = begin();
    assert!(matches!(client.reply(334, "go on"), Ok(Next::Send(_))));
    assert!(matches!(client.reply(235, "that was easy"), Err(ControlError::Unexpected { .. })));
    assert!(client.finish().is_err());
}

/// One direction of a stream that arrives in pieces.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
}

impl Wire {
    /// Moves up to `count` bytes to a reader's buffer.
    fn deliver(&mut self, count: usize, to: &mut Vec<u8>) {
        let count = count.min(self.bytes.len());
        to.extend(self.bytes.drain(..count));
    }
}

/// Exchanges data over a data channel whose stream is split at `cuts`, repeatedly; both directions must
/// deliver everything.
fn carry(protection: Protection, cuts: &[usize], data: &[u8]) {
    let own = Expect::Subject(USER.into());
    let (mut there, mut back) = (Wire::default(), Wire::default());
    let mut client = Channel::connect(&user(), own.clone(), protection, NOW, &mut there.bytes).unwrap();
    let mut server = Channel::accept(&user(), own, protection, NOW).unwrap();
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    let (mut client_open, mut server_open) = (false, false);
    let mut cuts = cuts.iter().copied().cycle();
    while !(client_open && server_open) {
        assert!(!(there.bytes.is_empty() && back.bytes.is_empty()), "both wait");
        there.deliver(cuts.next().unwrap(), &mut at_server);
        back.deliver(cuts.next().unwrap(), &mut at_client);
        if !client_open {
            let progress = client.handshake(&at_client, &mut there.bytes).unwrap();
            at_client.drain(..progress.used);
            client_open = progress.open;
            if client_open {
                // Data follows the handshake directly, in the same reads.
                client.seal(data, &mut there.bytes).unwrap();
            }
        }
        if !server_open {
            let progress = server.handshake(&at_server, &mut back.bytes).unwrap();
            at_server.drain(..progress.used);
            server_open = progress.open;
            if server_open {
                server.seal(data, &mut back.bytes).unwrap();
            }
        }
    }
    for (channel, wire, come) in [(&mut server, there, at_server), (&mut client, back, at_client)] {
        let (mut wire, mut come, mut plain) = (wire, come, Vec::new());
        loop {
            let used = channel.open(&come, &mut plain).unwrap();
            come.drain(..used);
            if wire.bytes.is_empty() {
                break;
            }
            wire.deliver(cuts.next().unwrap(), &mut come);
        }
        assert!(plain == data && come.is_empty(), "{protection:?}");
    }
}

#[test]
fn channel_works_byte_by_byte() {
    for protection in [Protection::Clear, Protection::Safe, Protection::Private] {
        carry(protection, &[1], b"some data");
        carry(protection, &[usize::MAX], b"some data");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn channel_works_with_any_split(
        cuts in prop::collection::vec(1_usize..3000, 1..40),
        length in 0_usize..40_000,
        level in prop::sample::select(vec![Protection::Clear, Protection::Safe, Protection::Private]),
    ) {
        let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        carry(level, &cuts, &data);
    }
}
