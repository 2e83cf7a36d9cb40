//! Malformed and altered input: it never causes a panic or an open context, and processing always ends.

use std::cell::Cell;

use phoebus_gsi::certificate::Certificate;
use phoebus_gsi::channel::{Channel, Protection};
use phoebus_gsi::context::{Context, Delegation, Expect, HandshakeError, MAX_TOKEN, MAX_TOKENS, Step};
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::gridmap::GridMap;
use phoebus_gsi::proxy::request;
use phoebus_gsi::trust::policy::SigningPolicy;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};
use proptest::prelude::*;

use crate::pure::world::{HOST, NOW, WORLD};

/// Runs a handshake with delegation in which `change` alters token number `which`; returns whether the server
/// accepted it.
fn altered(which: usize, change: impl Fn(&mut Vec<u8>)) -> bool {
    let expect = Expect::Host(HOST.into());
    let (mut client, mut token) =
        Context::initiate(&WORLD.endpoint(&WORLD.user), expect, Delegation::Full, NOW).unwrap();
    let mut server = Context::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, NOW).unwrap();
    for turn in 0.. {
        assert!(turn < 2 * MAX_TOKENS, "no end");
        if turn == which {
            change(&mut token);
        }
        let end = if turn % 2 == 0 { &mut server } else { &mut client };
        match end.step(&token) {
            Ok(Step::Continue(next)) if next.is_empty() => return false,
            Ok(Step::Continue(next)) => token = next,
            Ok(Step::Done(next)) if turn % 2 == 1 => token = next,
            Ok(Step::Done(_)) => return true,
            Err(_) => {
                end.alert();
                assert!(end.peer().is_none() && end.delegated().is_none());
                return false;
            }
        }
    }
    false
}

#[test]
fn altered_tokens_are_refused_and_unaltered_ones_accepted() {
    assert!(altered(usize::MAX, |_| {}));
    for which in 0..7 {
        assert!(!altered(which, |token| *token.last_mut().unwrap() ^= 1), "the end of token {which}");
        assert!(!altered(which, |token| token.truncate(token.len() / 2)), "half of token {which}");
        assert!(!altered(which, |token| token.extend_from_slice(&[0x17, 3, 3, 0, 1, 0])), "more after token {which}");
    }
}

#[test]
fn limits_end_endless_handshakes() {
    let mut server = Context::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, NOW).unwrap();
    assert_eq!(server.step(&vec![0; MAX_TOKEN + 1]), Err(HandshakeError::TokenTooLong(MAX_TOKEN + 1)));
    let mut server = Context::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, NOW).unwrap();
    let steps = (0..=MAX_TOKENS).map(|_| server.step(&[])).take_while(Result::is_ok).count();
    assert_eq!(steps, MAX_TOKENS);
    let mut channel = Channel::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, Protection::Private, NOW).unwrap();
    assert!(matches!(channel.handshake(b"GET / HTTP/1.1\r\n", &mut Vec::new()), Err(HandshakeError::NotTls)));
    let mut channel = Channel::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, Protection::Private, NOW).unwrap();
    assert!(matches!(channel.handshake(&[22, 3, 1, 0xff, 0xff], &mut Vec::new()), Err(HandshakeError::NotTls)));
}

/// Whether the byte at `at` is the type or the version in the header of one of these records.
fn is_ignored(mut records: &[u8], mut at: usize) -> bool {
    loop {
        let length = 5 + usize::from(u16::from_be_bytes([records[3], records[4]]));
        if at < length {
            return at < 3;
        }
        (records, at) = (&records[length..], at - length);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flipped_bit_is_detected(which in 0_usize..7, at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        // Every byte except those of a record's header that TLS 1.3 requires receivers to ignore: the
        // version, and the outer type of an encrypted record (RFC 8446, §5.1 and §5.2).
        let ignored = Cell::new(false);
        let believed = altered(which, |token| {
            let at = at.index(token.len());
            ignored.set(is_ignored(token, at));
            token[at] ^= 1 << bit;
        });
        prop_assert!(!believed || ignored.get());
    }

    #[test]
    fn arbitrary_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Certificate::parse(&bytes);
        let _ = request::read(&bytes, &provider());
        let _ = TrustStore::new(MissingPolicy::Allow).add_list(&bytes);
        let _ = Credential::from_pem(&bytes, "bytes", &provider());
        let mut server = Context::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, NOW).unwrap();
        let _ = server.step(&bytes);
        prop_assert!(!server.is_open());
    }

    #[test]
    fn arbitrary_text_is_parsed_without_panic(text in "[a-zA-Z0-9_'\"/=*#\\\\ \n]{0,300}") {
        let _ = GridMap::parse(&text, "text");
        let _ = SigningPolicy::parse(&text, "text");
        let likely = format!("access_id_CA X509 '/CN=a'\npos_rights globus CA:sign\ncond_subjects globus '{text}'");
        if let Ok(policy) = SigningPolicy::parse(&likely, "text") {
            let _ = policy.allows("/CN=a", &text);
        }
    }
}
