//! SCRAM with GNU SASL at the other end: as the client and as the server, with and without channel binding.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use phoebus_accounts::password::{new_verifier, scram_keys};
use phoebus_proto::session::auth::scram::{self, Acceptor, Binding, Initiator, Login, Verifier, Verifiers};
use phoebus_proto::session::auth::{AuthError, Check, Verdict};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

/// A name and a password that need escapes and preparation: its no-break space is a space to SASLprep.
const USER: &str = "ada,=é";
const PASSWORD: &str = "p\u{a0}äß w";
const BINDING: Binding = [0x5a; 32];

/// The C program, compiled once.
static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("scram");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/scram.c");
    let made =
        Command::new("cc").args(["-Wall", "-Werror", "-o"]).arg(&program).args([source, "-lgsasl"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (dir, program)
});

struct Gsasl {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Gsasl {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(&PROGRAM.1);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn send(&mut self, message: &[u8]) {
        // A program that has ended shows its reason.
        let _ = writeln!(self.to.as_mut().unwrap(), "{}", STANDARD.encode(message));
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        STANDARD.decode(line.trim()).unwrap()
    }

    fn succeeds(mut self) -> bool {
        drop(self.to.take());
        self.child.wait().unwrap().success()
    }
}

struct Only(Verifier);

impl Verifiers for Only {
    fn verifier(&self, user: &str) -> Verifier {
        assert_eq!(user, USER);
        self.0
    }
}

fn mechanism(binding: Option<&Binding>) -> &'static str {
    if binding.is_some() { scram::PLUS } else { scram::PLAIN }
}

fn exported(binding: Option<&Binding>) -> String {
    binding.map_or_else(|| "-".to_owned(), |bytes| STANDARD.encode(bytes))
}

/// Our acceptor, with GNU SASL as the client.
fn accept(password: &str, [ours, theirs]: [Option<&Binding>; 2]) -> Result<bool, AuthError> {
    let mut client = Gsasl::start(&["client", mechanism(theirs), USER, password, &exported(theirs)]);
    let verifier = new_verifier(PASSWORD.as_bytes()).unwrap();
    let mut acceptor = Acceptor::new(Only(verifier), ours.copied(), [1; _]);
    match acceptor.receive(&client.receive()) {
        Verdict::Continue(challenge) => client.send(&challenge),
        Verdict::Refused(error) => return Err(error),
        other => panic!("after one message: {other:?}"),
    }
    match acceptor.receive(&client.receive()) {
        Verdict::Proven(proven) => {
            assert_eq!(proven.subject, USER);
            client.send(&proven.last.unwrap());
        }
        Verdict::Refused(error) => return Err(error),
        other => panic!("after two messages: {other:?}"),
    }
    Ok(client.succeeds())
}

#[test]
fn gnu_sasl_logs_in_with_us() {
    for binding in [None, Some(&BINDING)] {
        assert_eq!(accept(PASSWORD, [binding; 2]), Ok(true));
        assert_eq!(accept("wrong", [binding; 2]), Err(AuthError::Wrong));
    }
    assert_eq!(accept(PASSWORD, [Some(&BINDING), Some(&[1; 32])]), Err(AuthError::Unbound));
    assert_eq!(accept(PASSWORD, [Some(&BINDING), None]), Err(AuthError::Unbound));
}

/// Our initiator, with GNU SASL as the server.
fn log_in(password: &str, [ours, theirs]: [Option<&Binding>; 2]) -> Result<bool, AuthError> {
    let verifier = new_verifier(PASSWORD.as_bytes()).unwrap();
    let text = verifier.to_string();
    let fields: Vec<&str> = text.split(['$', ':']).collect();
    let [_, rounds, salt, stored, server] = fields[..] else { panic!("{text}") };
    let mut gnu = Gsasl::start(&["server", mechanism(theirs), rounds, salt, stored, server, &exported(theirs)]);
    let keys = scram_keys(password.as_bytes(), verifier.salting);
    let login = Login { user: USER, keys: &keys, binding: ours };
    let (mut initiator, mut room) = (Initiator::new([2; _]), [0; 1024]);
    gnu.send(initiator.first(&login, &mut room)?);
    let challenge = gnu.receive();
    if challenge.is_empty() {
        return Ok(gnu.succeeds());
    }
    gnu.send(initiator.answer(&login, &challenge, &mut room)?);
    let last = gnu.receive();
    if last.is_empty() {
        return Ok(gnu.succeeds());
    }
    initiator.conclude(&last)?;
    Ok(gnu.succeeds())
}

#[test]
fn we_log_in_with_gnu_sasl() {
    for binding in [None, Some(&BINDING)] {
        assert_eq!(log_in(PASSWORD, [binding; 2]), Ok(true));
        assert_eq!(log_in("wrong", [binding; 2]), Ok(false));
    }
    assert_eq!(log_in(PASSWORD, [Some(&BINDING), Some(&[1; 32])]), Ok(false));
}
