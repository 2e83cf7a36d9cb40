//! Gateways that a user with a password must not trust (P27): none of them gets a session, or learns the password's keys.

use phoebus_client::{Error, Options, connect};
use phoebus_config::logins::{Login, Logins};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::acceptor::{Acceptor, Request, State};
use phoebus_proto::session::auth::scram::{self, KEY_LEN, Keys, Salting, Verifier, Verifiers};
use phoebus_proto::session::auth::{AuthError, Check, Verdict, anonymous};
use phoebus_proto::session::message::{Challenge, Opened};
use phoebus_proto::session::{Code, List, Mode};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

fn keys() -> Keys {
    Keys::of(Salting::new(b"salt", 4096).unwrap(), &[7; KEY_LEN])
}

/// What a gateway does in place of SCRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rogue {
    /// All as it should.
    None,
    /// Takes any proof, and proves nothing.
    Silent,
    /// Proves itself with other keys.
    WrongProof,
    /// Opens the session at once.
    Eager,
    /// Offers something weaker instead.
    Weaker,
    /// Names few rounds, or many.
    Rounds(&'static str),
    /// Sends another end's nonce back.
    Nonce,
}

struct Only;

impl Verifiers for Only {
    fn verifier(&self, _: &str) -> Verifier {
        keys().verifier()
    }
}

fn serve(mut stream: TcpStream, rogue: Rogue) {
    let mut acceptor = Acceptor::new("pg1");
    let mut check = scram::Acceptor::new(Only, None, [3; _]);
    loop {
        while acceptor.state() != State::Asked {
            let Ok(n @ 1..) = stream.read(acceptor.space().unwrap()) else { return };
            acceptor.received(n).unwrap();
        }
        match acceptor.request() {
            Some(Request::Auth(_)) if rogue == Rogue::Eager => acceptor.accept_auth(None).unwrap(),
            Some(Request::Auth(_)) if rogue == Rogue::Weaker => {
                acceptor.challenge(&Challenge { mechanisms: List::new(&[anonymous::NAME]), data: &[] }).unwrap();
            }
            Some(Request::Auth(auth)) => match check.receive(auth.data) {
                Verdict::Continue(data) => {
                    let mut text = String::from_utf8(data).unwrap();
                    match rogue {
                        Rogue::Rounds(rounds) => text = text.replace("i=4096", rounds),
                        Rogue::Nonce => text = text.replacen("r=", "r=x", 1),
                        _ => {}
                    }
                    let mechanisms = [scram::PLAIN];
                    let mechanisms = List::new(&mechanisms);
                    acceptor.challenge(&Challenge { mechanisms, data: text.as_bytes() }).unwrap();
                }
                Verdict::Proven(_) if rogue == Rogue::Silent => acceptor.accept_auth(None).unwrap(),
                Verdict::Proven(proven) => {
                    let mut last = proven.last.unwrap();
                    if rogue == Rogue::WrongProof {
                        last[5] ^= 1;
                    }
                    acceptor.accept_auth(Some(&last)).unwrap();
                }
                verdict => panic!("{rogue:?}: {verdict:?}"),
            },
            Some(Request::Open(open)) => {
                let opened = Opened::new(open.session, Mode::Raw, List::default());
                acceptor.opened(&opened).unwrap();
            }
            other => panic!("{other:?}"),
        }
        if stream.write_all(acceptor.outgoing()).is_err() || matches!(acceptor.state(), State::Opened(_)) {
            return;
        }
        acceptor.sent(acceptor.outgoing().len());
    }
}

async fn ask(rogue: Rogue) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway: Endpoint = listener.local_addr().unwrap().into();
    thread::spawn(move || serve(listener.accept().unwrap().0, rogue));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logins");
    let login = Login { gateway: gateway.clone(), user: "ada".to_owned(), is_raw: true, keys: keys() };
    Logins::keep(&file, login).unwrap();
    let user = Some("ada@example.org".to_owned());
    let options = Options { path: vec![gateway], logins: Some(file), user, ..Options::default() };
    connect(&options, &"dst.example:7".parse().unwrap()).await.map(drop)
}

#[tokio::test]
async fn sessions_open_only_with_gateways_that_know_the_password() {
    ask(Rogue::None).await.unwrap();
    for (rogue, expected) in [
        (Rogue::Silent, AuthError::Unproved),
        (Rogue::WrongProof, AuthError::Unproved),
        (Rogue::Eager, AuthError::Unproved),
        (Rogue::Rounds("i=1"), AuthError::OtherSalt),
        (Rogue::Rounds("i=1000000000"), AuthError::OtherSalt),
        (Rogue::Nonce, AuthError::Nonce),
    ] {
        let error = ask(rogue).await.unwrap_err();
        assert!(matches!(&error, Error::Login { source, .. } if *source == expected), "{rogue:?}: {error}");
        assert_eq!(error.code(), Code::AuthFailed);
    }
    // Nothing weaker than the password is shown instead, not even an address.
    let error = ask(Rogue::Weaker).await.unwrap_err();
    assert!(matches!(&error, Error::Authentication { mechanisms, .. } if mechanisms == "anonymous"), "{error}");
    assert!(error.to_string().contains("a password is kept for it"), "{error}");
}
