//! Users who log in with a password (P27): who is let in, what others can do, and what an operator sees.

use super::support::{Ask, Certificates, No, PATIENCE, Pg, address, destination};
use phoebus_proto::session::Code;
use phoebus_proto::session::auth::scram::{self, KEY_LEN, Keys, Salting};
use phoebus_proto::session::auth::{Credential, Exchange};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::{Auth, Hello};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The keys of a password, which is a number here: the derivation from text is slow on purpose.
pub(crate) fn keys(password: u8) -> Keys {
    Keys::of(Salting::new(&[password; 16], 4096).unwrap(), &[password; KEY_LEN])
}

/// Writes a users file, and returns the table that names it.
pub(crate) fn users(dir: &Path, all: &[(&str, u8, &str)]) -> String {
    let mut text = String::new();
    for (name, password, groups) in all {
        writeln!(text, "{name} {} {groups}", keys(*password).verifier()).unwrap();
    }
    let file = dir.join("users");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    format!("[users]\nfile = \"{}\"\n", file.display())
}

struct Site {
    dir: TempDir,
    pg: Pg,
    to: String,
    _listener: std::net::TcpListener,
}

pub(crate) const AUTH: &str = "auth = \"scram\"\nraw_password = true\n";

impl Site {
    /// A gateway that lets in ada, and the group of bob.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path(), &[("ada", 1, ""), ("bob", 2, "physics,ops"), ("eve", 3, "")]);
        let (listener, to) = destination();
        let allow = "[[allow]]\nfrom = [\"user:ada\", \"group:physics\"]\nto = [\"127.0.0.0/8\"]\n";
        let pg = Pg::start("pg1", &format!("{AUTH}{users}{allow}"));
        Self { dir, pg, to: to.to_string(), _listener: listener }
    }

    fn ask(&self, user: &str, password: u8) -> Ask {
        Ask { login: Some((user.to_owned(), keys(password))), ..Ask::to(&self.to) }
    }

    /// The refusal of a user.
    #[track_caller]
    fn refuses(&self, user: &str, password: u8) -> No {
        self.ask(user, password).ask(self.pg.addr).map(|(_, report)| panic!("{report:?}")).unwrap_err()
    }
}

#[test]
fn users_and_groups_are_let_in_by_their_passwords() {
    let site = Site::new();
    let open = [("ada", 1), ("bob", 2)].map(|(user, password)| site.ask(user, password).ask(site.pg.addr).unwrap());
    let status = site.pg.status();
    let mut known: Vec<_> = status.sessions.iter().map(|session| session.principal.clone()).collect();
    known.sort_by(|a, b| a.user.cmp(&b.user));
    assert_eq!(known[0].text, "ada (SCRAM-SHA-256)");
    assert_eq!((&*known[1].user, &known[1].groups[..]), ("bob", &["physics".to_owned(), "ops".to_owned()][..]));
    drop(open);
    // Eve has a password, and no rule.
    assert_eq!(site.refuses("eve", 3).code, Code::NotAllowed);
    // Who shows none is told what there is.
    let no = Ask::to(&site.to).ask(site.pg.addr).unwrap_err();
    assert_eq!((no.code, &*no.reason), (Code::AuthRequired, scram::PLAIN));
    let address = Ask { email: Some("ada@example.org".to_owned()), ..Ask::to(&site.to) };
    assert_eq!(address.ask(site.pg.addr).unwrap_err().reason, scram::PLAIN);
}

#[test]
fn wrong_passwords_and_unknown_users_look_alike() {
    let site = Site::new();
    // The client's keys are for another salt: it cannot even prove anything.
    let error = site.ask("ada", 2).try_ask_on(TcpStream::connect(site.pg.addr).unwrap()).unwrap_err();
    assert!(error.to_string().contains("the password at the gateway was changed"), "{error}");
    let wrong = |user: &str, salting: Salting| {
        let keys = Keys::of(salting, &[99; KEY_LEN]);
        Ask { login: Some((user.to_owned(), keys)), ..Ask::to(&site.to) }.ask(site.pg.addr).unwrap_err()
    };
    let known = wrong("ada", keys(1).salting);
    assert_eq!((known.code, &*known.reason), (Code::AuthFailed, "the user or the password is wrong"));
    let [one, again, other] = ["nobody", "nobody", "noone"].map(|user| salting_of(&site, user));
    assert!(one == again && one != other && one.rounds() == 4096);
    let unknown = wrong("nobody", one);
    assert_eq!((unknown.code, unknown.reason), (known.code, known.reason));
}

/// How the gateway says that a user's password is salted.
fn salting_of(site: &Site, user: &str) -> Salting {
    let mut stream = TcpStream::connect(site.pg.addr).unwrap();
    let data = challenge(&mut stream, user);
    scram::Initiator::salting(&data).unwrap()
}

/// Sends the first message of an exchange, and returns the challenge.
fn challenge(stream: &mut TcpStream, user: &str) -> Vec<u8> {
    let first = format!("n,,n={user},r=nonce");
    let auth = Auth { mechanism: scram::PLAIN, data: first.as_bytes() };
    let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), Some(&auth)).unwrap();
    client.demand_proof();
    converse(stream, &mut client);
    assert_eq!(client.state(), State::Challenged);
    client.challenge().unwrap().data.to_vec()
}

fn converse(stream: &mut TcpStream, client: &mut Initiator<Vec<u8>, Vec<u8>>) {
    let out = client.outgoing().to_vec();
    client.sent(out.len());
    stream.write_all(&out).unwrap();
    while client.want() > 0 {
        let n = stream.read(client.space().unwrap()).unwrap();
        assert!(n > 0, "the connection was closed");
        client.received(n).unwrap();
    }
}

#[test]
fn recorded_proofs_do_not_open_a_second_session() {
    let site = Site::new();
    let keys = keys(1);
    let credential = Credential::Password(scram::Login { user: "ada", keys: &keys, binding: None });
    let mut room = [0; _];
    let mut exchange = Exchange::new(&credential, [5; _]);
    let first = exchange.first(&credential, &mut room).unwrap().data.to_vec();
    let mut client = Initiator::greet(
        vec![0; 4096],
        Vec::new(),
        &Hello::of(""),
        Some(&Auth { mechanism: scram::PLAIN, data: &first }),
    )
    .unwrap();
    client.demand_proof();
    let mut stream = TcpStream::connect(site.pg.addr).unwrap();
    converse(&mut stream, &mut client);
    let answer = exchange.answer(&credential, &client.challenge().unwrap(), &mut room).unwrap().data.to_vec();
    let auth = Auth { mechanism: scram::PLAIN, data: &answer };
    client.authenticate(&auth, None).unwrap();
    converse(&mut stream, &mut client);
    exchange.conclude(&client.proved().unwrap()).unwrap();
    // The same bytes again, on another connection: the gateway has another nonce.
    let mut stream = TcpStream::connect(site.pg.addr).unwrap();
    let auth_first = Auth { mechanism: scram::PLAIN, data: &first };
    let mut again = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), Some(&auth_first)).unwrap();
    again.demand_proof();
    converse(&mut stream, &mut again);
    again.authenticate(&auth, None).unwrap();
    converse(&mut stream, &mut again);
    assert_eq!(again.refused().unwrap().code, Code::AuthFailed);
}

#[test]
fn messages_out_of_turn_are_refused_and_end() {
    let site = Site::new();
    let wrong: [&[u8]; 6] =
        [b"", b"n,,n=ada", b"p=tls-exporter,,n=ada,r=x", b"n,a=bob,n=ada,r=x", &[0xff; 9], b"c=biws,r=x,p=AAAA"];
    for data in wrong {
        let mut stream = TcpStream::connect(site.pg.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let auth = Auth { mechanism: scram::PLAIN, data };
        let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), Some(&auth)).unwrap();
        client.demand_proof();
        converse(&mut stream, &mut client);
        assert_eq!(client.refused().unwrap().code, Code::AuthFailed, "{data:?}");
    }
    // -PLUS is not offered without TLS, and begins nothing.
    let auth = Auth { mechanism: scram::PLUS, data: b"p=tls-exporter,,n=ada,r=x" };
    let mut stream = TcpStream::connect(site.pg.addr).unwrap();
    let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), Some(&auth)).unwrap();
    client.demand_proof();
    converse(&mut stream, &mut client);
    assert!(client.challenge().unwrap().data.is_empty());
    // Exchanges that begin again and again come to an end.
    let mut stream = TcpStream::connect(site.pg.addr).unwrap();
    let mut client = Initiator::greet(vec![0; 4096], Vec::new(), &Hello::of(""), None).unwrap();
    converse(&mut stream, &mut client);
    let message =
        phoebus_proto::session::message::Message::Auth(Auth { mechanism: scram::PLAIN, data: b"n,,n=ada,r=x" });
    let mut bytes = [0; 256];
    let len = message.encode(&mut bytes).unwrap();
    let written = (0..200).take_while(|_| stream.write_all(&bytes[..len]).is_ok()).count();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(written < 200 || rest.len() < 32 * 1024, "{written} exchanges, {} bytes of answers", rest.len());
}

#[test]
fn gateways_are_believed_about_those_whom_they_may_speak_for() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics"), ("bob", 2, "")]);
    let certificates = Certificates::new();
    let (addr, addr2) = (address(), address());
    let tls = |name: &str| certificates.issue_for(name, &[]);
    let (_listener, to) = destination();
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let all = "[[allow]]\nfrom = [\"user:*\"]\nto = [\"*\", \"127.0.0.0/8\"]\n";
    let to_pg2 = format!("[[peer]]\nname = \"pg2\"\naddress = \"{addr2}\"\npool = {{ min = 0 }}\n");
    let pg1 = Pg::start_at(addr, "pg1", &format!("{AUTH}{own}{}{to_pg2}{route}{all}", tls("pg1")));
    let ask = |user: &str, password: u8| {
        let ask = Ask { login: Some((user.to_owned(), keys(password))), ..Ask::to(to) };
        ask.ask(pg1.addr).map(drop).map_err(|no| (no.code, no.hop))
    };
    let refused = || Err((Code::NotAllowed, "pg2".to_owned()));
    for (speaks_for, rule, ada, bob) in [
        // By default for nobody (P12).
        ("", "user:ada", false, false),
        ("speaks_for = [\"user:ada\"]", "user:ada", true, false),
        ("speaks_for = [\"user:ada\"]", "user:*", true, false),
        ("speaks_for = [\"group:physics\"]", "group:physics", true, false),
        ("speaks_for = [\"user:ada\"]", "user:bob", false, false),
        ("speaks_for = [\"method:SCRAM-SHA-256\"]", "user:bob", false, true),
        ("speaks_for = [\"method:certificate\"]", "user:bob", false, false),
        ("speaks_for = [\"*\"]", "user:ada", true, false),
    ] {
        let from = format!("[[peer]]\nname = \"pg1\"\naddress = \"{addr}\"\npool = {{ min = 0 }}\n{speaks_for}\n");
        let allow = format!("[[allow]]\nfrom = [\"{rule}\"]\nto = [\"127.0.0.0/8\"]\n");
        let pg2 = Pg::start_at(addr2, "pg2", &format!("{own}{}{from}{allow}", tls("pg2")));
        assert_eq!(ask("ada", 1), if ada { Ok(()) } else { refused() }, "ada: {speaks_for}, {rule}");
        assert_eq!(ask("bob", 2), if bob { Ok(()) } else { refused() }, "bob: {speaks_for}, {rule}");
        drop(pg2);
    }
}

#[test]
fn reload_takes_users_away() {
    let site = Site::new();
    let open = site.ask("ada", 1).ask(site.pg.addr).unwrap();
    let fewer = users(site.dir.path(), &[("bob", 2, "physics")]);
    let allow = "[[allow]]\nfrom = [\"user:ada\", \"group:physics\"]\nto = [\"127.0.0.0/8\"]\n";
    site.pg.reload("pg1", &format!("{AUTH}{fewer}{allow}"));
    assert_eq!(site.ask("bob", 2).ask(site.pg.addr).map(drop).map_err(|no| no.code), Ok(()));
    drop(open);
    let no =
        Ask { login: Some(("ada".to_owned(), Keys::of(salting_of(&site, "ada"), &[1; KEY_LEN]))), ..Ask::to(&site.to) };
    assert_eq!(no.ask(site.pg.addr).unwrap_err().code, Code::AuthFailed);
}

#[test]
fn guessing_has_to_wait() {
    let site = Site::new();
    let wrong = || {
        let keys = Keys::of(keys(1).salting, &[99; KEY_LEN]);
        Ask { login: Some(("ada".to_owned(), keys)), ..Ask::to(&site.to) }.ask(site.pg.addr).unwrap_err()
    };
    for _ in 0..6 {
        assert_eq!(wrong().code, Code::AuthFailed);
    }
    // Not even the right one counts now.
    let no = site.refuses("ada", 1);
    assert!(no.code == Code::Limit && no.reason.contains("too many wrong passwords"), "{no:?}");
    let start = Instant::now();
    while site.ask("ada", 1).ask(site.pg.addr).is_err() {
        assert!(start.elapsed() < PATIENCE, "the wait has no end");
    }
    assert_eq!(wrong().code, Code::AuthFailed);
}
