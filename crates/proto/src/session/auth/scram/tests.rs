use super::*;
use crate::session::auth::{Check, Proven, Verdict};

/// Users with one verifier, for the tests.
struct Only(&'static str, Verifier);

impl Verifiers for Only {
    fn verifier(&self, user: &str) -> Verifier {
        if user == self.0 { self.1 } else { Verifier::of_nobody(self.1.salting) }
    }
}

fn keys() -> Keys {
    Keys::of(Salting::new(b"salt of a user", 4096).unwrap(), &[42; KEY_LEN])
}

/// Runs an exchange of `user` with these keys and bindings, where `alter` may change each message.
fn run(
    (user, keys): (&str, &Keys),
    [own, theirs]: [Option<&Binding>; 2],
    mut alter: impl FnMut(usize, &mut Vec<u8>),
) -> Result<String, AuthError> {
    let login = Login { user, keys, binding: own };
    let mut initiator = Initiator::new([1; NONCE_LEN]);
    let mut acceptor = Acceptor::new(Only("ada", self::keys().verifier()), theirs.copied(), [2; NONCE_LEN]);
    let mut room = [0; 1024];
    let mut first = initiator.first(&login, &mut room)?.to_vec();
    alter(0, &mut first);
    let mut challenge = match acceptor.receive(&first) {
        Verdict::Continue(challenge) => challenge,
        Verdict::Refused(error) => return Err(error),
        other => panic!("{other:?} after one message"),
    };
    alter(1, &mut challenge);
    let mut answer = initiator.answer(&login, &challenge, &mut room)?.to_vec();
    alter(2, &mut answer);
    let (subject, mut last) = match acceptor.receive(&answer) {
        Verdict::Proven(Proven { subject, vouched: None, last: Some(last) }) => (subject, last),
        Verdict::Refused(error) => return Err(error),
        other => panic!("{other:?}"),
    };
    alter(3, &mut last);
    assert!(!initiator.is_over());
    initiator.conclude(&last)?;
    assert!(initiator.is_over());
    Ok(subject)
}

#[test]
fn users_and_gateways_prove_themselves() {
    let binding = [9; 32];
    for both in [None, Some(&binding)] {
        assert_eq!(run(("ada", &keys()), [both; 2], |_, _| {}), Ok("ada".to_owned()));
        assert_eq!(run(("bob", &keys()), [both; 2], |_, _| {}), Err(AuthError::Wrong));
        let other = Keys::of(keys().salting, &[43; KEY_LEN]);
        assert_eq!(run(("ada", &other), [both; 2], |_, _| {}), Err(AuthError::Wrong));
    }
}

#[test]
fn proofs_hold_on_one_connection_only() {
    let (one, other) = ([1; 32], [2; 32]);
    let login = ("ada", &keys());
    assert_eq!(run(login, [Some(&one), Some(&other)], |_, _| {}), Err(AuthError::Unbound));
    assert_eq!(run(login, [Some(&one), None], |_, _| {}), Err(AuthError::Unbound));
    assert_eq!(run(login, [None, Some(&one)], |_, _| {}), Err(AuthError::Unbound));
}

#[test]
fn every_byte_of_every_message_counts() {
    let binding = [9; 32];
    for at in 0..4 {
        let mut len = 0;
        run(("ada", &keys()), [Some(&binding); 2], |message, bytes| {
            if message == at {
                len = bytes.len();
            }
        })
        .unwrap();
        for byte in 0..len {
            for flipped in [1, 0x20, 0x80] {
                let changed = |message: usize, bytes: &mut Vec<u8>| {
                    if message == at {
                        bytes[byte] ^= flipped;
                    }
                };
                let result = run(("ada", &keys()), [Some(&binding); 2], changed);
                assert!(result.is_err(), "message {at}, byte {byte}, {flipped:#x}: {result:?}");
            }
            let cut = |message: usize, bytes: &mut Vec<u8>| {
                if message == at {
                    bytes.truncate(byte);
                }
            };
            assert!(run(("ada", &keys()), [Some(&binding); 2], cut).is_err(), "message {at}, {byte} bytes");
        }
    }
}

#[test]
fn rounds_and_salts_of_strangers_are_not_computed() {
    for other in ["i=1", "i=1000000000", "i=4097"] {
        let named = |message: usize, bytes: &mut Vec<u8>| {
            if message == 1 {
                *bytes = String::from_utf8(bytes.clone()).unwrap().replace("i=4096", other).into_bytes();
            }
        };
        assert_eq!(run(("ada", &keys()), [None; 2], named), Err(AuthError::OtherSalt), "{other}");
    }
}

#[test]
fn initiator_that_would_bind_is_taken_without_tls_only() {
    let mut plain = Acceptor::new(Only("ada", keys().verifier()), None, [2; NONCE_LEN]);
    assert!(matches!(plain.receive(b"y,,n=ada,r=x"), Verdict::Continue(_)));
    let mut bound = Acceptor::new(Only("ada", keys().verifier()), Some([9; 32]), [2; NONCE_LEN]);
    assert_eq!(bound.receive(b"y,,n=ada,r=x"), Verdict::Refused(AuthError::Unbound));
    for wrong in ["n,a=eve,n=ada,r=x", "n,,m=new,n=ada,r=x", "n,,n=ada", "n,,n=,r=x", "n,,n=ada,r=", "n,,n=a=b,r=x", ""]
    {
        let mut plain = Acceptor::new(Only("ada", keys().verifier()), None, [2; NONCE_LEN]);
        assert!(matches!(plain.receive(wrong.as_bytes()), Verdict::Refused(_)), "{wrong}");
    }
}

/// The example of RFC 7677 §3.
#[test]
fn example_of_the_standard_is_computed() {
    let salted = [
        0xc4, 0xa4, 0x95, 0x10, 0x32, 0x3a, 0xb4, 0xf9, 0x52, 0xca, 0xc1, 0xfa, 0x99, 0x44, 0x19, 0x39, 0xe7, 0x8e,
        0xa7, 0x4d, 0x6b, 0xe8, 0x1d, 0xdf, 0x70, 0x96, 0xe8, 0x75, 0x13, 0xdc, 0x61, 0x5d,
    ];
    let salt = [0x5b, 0x6d, 0x99, 0x68, 0x9d, 0x12, 0x35, 0x8e, 0xec, 0xa0, 0x4b, 0x14, 0x12, 0x36, 0xfa, 0x81];
    let keys = Keys::of(Salting::new(&salt, 4096).unwrap(), &salted);
    let nonces = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let covered = format!("n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonces},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,");
    let mut acceptor = Acceptor::begun(Only("user", keys.verifier()), ("user", nonces), &covered);
    let answer =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let Verdict::Proven(proven) = acceptor.receive(answer.as_bytes()) else { panic!("refused") };
    assert_eq!(proven.last.unwrap(), b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}
