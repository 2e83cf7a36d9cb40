//! Limits by user, group, source and peer (P25, P28): what is counted for whom, what a refusal says, and who cannot use up what
//! belongs to others.

use super::passwords::{AUTH, keys, users};
use super::support::{Ask, Certificates, No, PATIENCE, Pg, address, destination, reset};
use phoebus_gateway::config::Config;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::Requirements;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

const ALLOW: &str = "[[rule]]\naction = \"allow\"\nto = \"127.0.0.0/8\"\n";

fn limit(text: &str) -> String {
    format!("[[limit]]\n{text}\n")
}

struct Site {
    pg: Pg,
    to: SocketAddr,
    _listener: TcpListener,
    _dir: TempDir,
}

impl Site {
    /// A gateway with ada, bob and eve; ada and bob are physicists.
    fn new(limits: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let own = users(dir.path(), &[("ada", 1, "physics"), ("bob", 2, "physics,ops"), ("eve", 3, "")]);
        let (listener, to) = destination();
        let pg = Pg::start("pg1", &format!("{AUTH}{own}{ALLOW}{limits}"));
        Self { pg, to, _listener: listener, _dir: dir }
    }

    fn open(&self, user: &str) -> Result<TcpStream, No> {
        let password = [("ada", 1), ("bob", 2), ("eve", 3)].iter().find(|(name, _)| *name == user).unwrap().1;
        let ask = Ask { login: Some((user.to_owned(), keys(password))), ..Ask::to(self.to) };
        ask.ask(self.pg.addr).map(|(stream, _)| stream)
    }

    #[track_caller]
    fn refuses(&self, user: &str) -> String {
        let no = self.open(user).map(drop).expect_err("a limit was reached");
        assert_eq!((no.code, &*no.hop), (Code::Limit, "pg1"), "{no:?}");
        no.reason
    }
}

#[test]
fn each_user_and_each_group_has_its_own() {
    // The first limit for users that fits ada is an exception from that for each.
    let text = limit("user = \"ada\"\nsessions = 3")
        + &limit("each = \"user\"\nsessions = 1")
        + &limit("group = \"physics\"\nsessions = 3");
    let site = Site::new(&text);
    let ada = [(); 2].map(|()| site.open("ada").unwrap());
    let bob = site.open("bob").unwrap();
    let full =
        "group physics has its 3 sessions in use; a further one may come when one of them has ended ([[limit]] 3)";
    assert_eq!(site.refuses("ada"), full);
    let eve = site.open("eve").unwrap();
    assert!(site.refuses("eve").starts_with("user eve has its 1 sessions in use"));
    let used: Vec<_> = site.pg.status().accounts.iter().map(|own| (own.account.clone(), own.sessions)).collect();
    let expected = [("group physics", 3), ("user ada", 2), ("user bob", 1), ("user eve", 1)];
    assert_eq!(used, expected.map(|(name, n)| (name.to_owned(), n)));
    // A place is free as soon as its session is over.
    reset(bob);
    let start = Instant::now();
    let third = loop {
        match site.open("ada") {
            Ok(stream) => break stream,
            Err(no) => assert!(no.code == Code::Limit && start.elapsed() < PATIENCE, "{no:?}"),
        }
    };
    assert!(site.refuses("bob").contains("group physics"));
    ada.into_iter().chain([eve, third]).for_each(reset);
    site.pg.until(|status| status.accounts.is_empty(), "nothing is in use");
}

#[test]
fn refused_sessions_take_nothing() {
    let site = Site::new(&limit("each = \"user\"\nsessions = 1"));
    for _ in 0..5 {
        let denied = Ask { login: Some(("ada".to_owned(), keys(1))), ..Ask::to("192.0.2.7:1") };
        assert_eq!(denied.ask(site.pg.addr).unwrap_err().code, Code::NotAllowed);
    }
    drop(site.open("ada").unwrap());
}

#[test]
fn sessions_per_second_and_memory_are_limited() {
    let site = Site::new(&limit("each = \"user\"\nrate_of_sessions = 0.001"));
    drop(site.open("ada").unwrap());
    let reason = site.refuses("ada");
    assert!(reason.starts_with("user ada opens at most 0.001 sessions a second; the next one may come in"), "{reason}");
    drop(site.open("bob").unwrap());
    // What fails behind the checks takes nothing.
    let closed = || Ask { login: Some(("eve".to_owned(), keys(3))), ..Ask::to(SocketAddr::new(site.to.ip(), 1)) };
    for _ in 0..2 {
        assert_eq!(closed().ask(site.pg.addr).unwrap_err().code, Code::Refused);
    }
    drop(site.open("eve").unwrap());

    let bounded = "[limits]\nbuffer = \"1MiB\"\n";
    let site = Site::new(&format!("{bounded}{}", limit("group = \"physics\"\nmemory = \"5MiB\"")));
    let _open = [site.open("ada").unwrap(), site.open("bob").unwrap()];
    let reason = site.refuses("bob");
    assert_eq!(reason, "group physics has 1MiB of its 5MiB of memory left, and a session takes 2MiB ([[limit]] 1)");
    assert_eq!(site.pg.status().accounts[0].memory, 4 << 20);
    drop(site.open("eve").unwrap());

    // All together, and whoever comes late is sent elsewhere.
    let site = Site::new(
        "[limits]\nbuffer = \"1MiB\"\nmemory = \"4MiB\"\n[[limit]]\nuser = \"eve\"\nsessions = 1\ngateway = \"192.0.2.9\"\n",
    );
    let _open = ["ada", "eve"].map(|user| site.open(user).unwrap());
    let reason = "the gateway has 0 of its 4MiB of memory left, and a session takes 2MiB (limits.memory)";
    assert_eq!(site.refuses("bob"), reason);
    let no = site.open("eve").map(drop).unwrap_err();
    assert_eq!(
        (no.code, no.redirect.map(|better| better.to_string())),
        (Code::Limit, Some("192.0.2.9:5006".to_owned()))
    );
}

#[test]
fn bandwidth_is_shared_and_promised_once() {
    let profile = "[profile.default]\nrate = \"1gbit\"\n";
    let site = Site::new(&format!("{profile}{}", limit("each = \"user\"\nbandwidth = \"20mbit\"")));
    let ask = |rate| {
        let requirements = Requirements { rate, ..Requirements::default() };
        let ask = Ask { login: Some(("ada".to_owned(), keys(1))), requirements, ..Ask::to(site.to) };
        ask.ask(site.pg.addr)
    };
    let (open, report) = ask(None).unwrap();
    assert_eq!(report.rates, [20_000_000]);
    let (booked, report) = ask(Some(15_000_000)).unwrap();
    assert_eq!(report.rates, [15_000_000]);
    let no = ask(Some(6_000_000)).map(drop).unwrap_err();
    assert_eq!((no.code, no.limits.rate), (Code::Requirement, Some(5_000_000)));
    assert_eq!(no.reason, "6mbit was requested, but only 5mbit of user ada is not reserved yet");
    drop((open, booked));
}

#[test]
fn sources_are_counted_by_range_or_each() {
    let (_listener, to) = destination();
    let text = limit("source = \"127.9.0.0/16\"\nsessions = 2") + &limit("each = \"source\"\nsessions = 1");
    let pg = Pg::start("pg1", &format!("{ALLOW}{text}"));
    let open = |from: [u8; 4]| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&pg.addr.into()).unwrap();
        Ask::to(to).ask_on(socket.into()).map(|(stream, _)| stream)
    };
    let _open = [[127, 9, 0, 1], [127, 9, 0, 2], [127, 8, 0, 1], [127, 8, 0, 2]].map(|from| open(from).unwrap());
    for (from, account) in [([127, 9, 0, 3], "source 127.9.0.0/16"), ([127, 8, 0, 1], "source 127.8.0.1")] {
        let no = open(from).map(drop).unwrap_err();
        assert!(no.code == Code::Limit && no.reason.starts_with(account), "{no:?}");
    }
}

/// What a peer says of others is counted for them only if it may speak for them.
#[test]
fn peers_use_up_nothing_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics")]);
    let certificates = Certificates::new();
    let (addr, addr2) = (address(), address());
    let (_listener, to) = destination();
    let to_pg2 = format!("[[peer]]\nname = \"pg2\"\naddress = \"{addr2}\"\npool = {{ min = 0 }}\n");
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let pg1 =
        Pg::start_at(addr, "pg1", &format!("{AUTH}{own}{}{to_pg2}{route}{ALLOW}", certificates.issue_for("pg1", &[])));
    let ada =
        || Ask { login: Some(("ada".to_owned(), keys(1))), ..Ask::to(to) }.ask(pg1.addr).map(|(stream, _)| stream);
    let limits = limit("each = \"user\"\nsessions = 1") + &limit("peer = \"pg1\"\nsessions = 2");
    for (speaks_for, most, full) in [
        ("", 2, "peer pg1"),
        ("speaks_for = [\"group:physics\"]", 2, "peer pg1"),
        ("speaks_for = [\"user:ada\"]", 1, "user ada"),
    ] {
        let from = format!("[[peer]]\nname = \"pg1\"\naddress = \"{addr}\"\npool = {{ min = 0 }}\n{speaks_for}\n");
        let tls = certificates.issue_for("pg2", &[]);
        let pg2 = Pg::start_at(addr2, "pg2", &format!("{tls}{from}{ALLOW}{limits}"));
        let open: Vec<_> = (0..most).map(|_| ada().unwrap()).collect();
        let no = ada().map(drop).unwrap_err();
        assert!(no.code == Code::Limit && no.hop == "pg2" && no.reason.starts_with(full), "{speaks_for}: {no:?}");
        drop((open, pg2));
    }
}

#[test]
fn errors_say_where_and_what_was_expected() {
    const LEAST: &str = "name = \"pg1\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n";
    let error = |text: &str| Config::parse(text, Path::new("pg.toml")).map(drop).unwrap_err().to_string();
    for (more, expected) in [
        ("sessions = 1", "pg.toml:4:1: a limit is for one of user, group, source, peer and each; expected exactly one"),
        ("each = \"user\"\nsource = \"::/0\"\nsessions = 1", "pg.toml:4:1: a limit is for one of user, group"),
        (
            "each = \"user\"",
            "pg.toml:4:1: this limits nothing; expected sessions, rate_of_sessions, memory or bandwidth",
        ),
        (
            "each = \"person\"\nsessions = 1",
            "pg.toml:5:8: there is no kind of account \"person\"; expected one of: user, group",
        ),
        (
            "each = \"source\"\nsessions = 1\n[[limit]]\nsource = \"10.0.0.0/8\"\nsessions = 2",
            "pg.toml:7:1: [[limit]] 1 comes before, and is for all that this one is for; expected the exception first",
        ),
        ("user = \"ada\"\nsessions = 1", "pg.toml:5:8: there are no users; expected [users]"),
        ("peer = \"pg9\"\nsessions = 1", "pg.toml:5:8: there is no peer \"pg9\"; expected one of"),
        ("source = \"host\"\nsessions = 1", "pg.toml:5:10: \"host\" is not an address or a range"),
        ("each = \"user\"\nsessions = 0", "pg.toml:6:12: invalid value: integer `0`"),
        ("each = \"user\"\nsesions = 1", "pg.toml:6:1: unknown field `sesions`, expected one of `user`, `group`"),
        (
            "each = \"user\"\nrate_of_sessions = 0",
            "pg.toml:6:20: 0 is no number of sessions a second; expected one such as 5",
        ),
        ("each = \"user\"\nrate_of_sessions = nan", "pg.toml:6:20: NaN is no number of sessions a second"),
        ("each = \"user\"\nsessions = 1\ngateway = \"pg1\"", "pg.toml:7:11: pg1:5006 is this gateway itself"),
        (
            "each = \"user\"\nsessions = 1\n[limits]\nmemory = \"1GiB\"",
            "pg.toml:8:10: without limits.buffer, nobody knows",
        ),
        ("each = \"user\"\nbandwidth = \"1kbit\"", "pg.toml:6:13: this bandwidth is too low; expected at least 10kbit"),
        ("each = \"user\"\nmemory = \"1GiB\"", "pg.toml:6:10: without limits.buffer, nobody knows how much memory"),
        (
            "each = \"user\"\nmemory = \"1MiB\"\n[limits]\nbuffer = \"1MiB\"",
            "pg.toml:6:10: 1MiB holds no session, which takes twice",
        ),
    ] {
        let said = error(&format!("{LEAST}[[limit]]\n{more}\n"));
        assert!(said.starts_with(expected), "{more}\n  said: {said}\n  not:  {expected}");
    }
}
