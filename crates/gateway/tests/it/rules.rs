//! The ordered rules (P8–P10, P25): which one decides, what they cover, and how clients try to get around them.

use super::passwords::{AUTH, keys, users};
use super::support::{Ask, Certificates, No, Pg, address, destination, peer};
use phoebus_gateway::config::Config;
use phoebus_gateway::{Explanation, explain};
use phoebus_proto::session::{Code, Principal};
use std::net::SocketAddr;
use std::path::Path;

const LEAST: &str = "name = \"pg1\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n";

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("pg.toml")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What `config` would decide.
fn ask(config: &Config, question: &str) -> Result<Explanation, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(explain(config, question));
    runtime.shutdown_background();
    answer
}

/// The decision, and the rule that made it: `deny rule 2`, `allow allow 1`, `deny`.
fn decide(config: &Config, question: &str) -> String {
    let Explanation { decision, rule, .. } =
        ask(config, question).unwrap_or_else(|error| panic!("{question}: {error}"));
    rule.map_or(decision.clone(), |rule| format!("{decision} {} {}", rule.table.name(), rule.number))
}

fn rule(action: &str, more: &str) -> String {
    format!("[[rule]]\naction = \"{action}\"\n{more}\n")
}

#[track_caller]
fn refused(pg: &Pg, ask: &Ask) -> No {
    refused_at(pg.addr, ask)
}

#[track_caller]
fn refused_at(addr: SocketAddr, ask: &Ask) -> No {
    let no = ask.ask(addr).map(drop).expect_err("it must be refused");
    assert_eq!((no.code, no.hop.as_str()), (Code::NotAllowed, "pg1"), "{no:?}");
    no
}

#[test]
fn first_rule_that_fits_decides_and_allows_come_last() {
    let text = [
        "[[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"10.0.0.0/8\"]\n",
        &rule("allow", "from = \"192.0.2.7\"\nto = \"10.1.2.3\"\nports = [22]"),
        &rule("deny", "to = [\"10.1.0.0/16\", \"bad.example\"]"),
        &rule("allow", "from = [\"192.0.2.0/24\"]\nto = [\"*\"]\nports = [\"80-90\"]"),
    ];
    let config = parse(&format!("{LEAST}{}", text.concat()));
    for (question, expected) in [
        ("from=192.0.2.7 to=10.1.2.3:22", "allow rule 1"),
        ("from=192.0.2.8 to=10.1.2.3:22", "deny rule 2"),
        ("from=192.0.2.7 to=10.1.2.3:23", "deny rule 2"),
        ("from=192.0.2.7 to=10.2.0.1:23", "allow allow 1"),
        ("from=192.0.2.7 to=198.51.100.1:85", "allow rule 3"),
        ("from=198.51.100.7 to=198.51.100.1:85", "deny"),
        ("from=192.0.2.7 to=198.51.100.1:91", "deny"),
        ("from=192.0.2.7 to=bad.example:85", "deny rule 2"),
    ] {
        assert_eq!(decide(&config, question), expected, "{question}");
    }
    let explanation = ask(&config, "from=192.0.2.8 to=10.1.2.3:22").unwrap();
    assert_eq!(explanation.rule.unwrap().line, 12);
    assert!(explanation.reason.contains("10.1.2.3:22 is denied to 192.0.2.8"), "{}", explanation.reason);
    assert!(explanation.limits[0].contains("limits.sessions"), "{:?}", explanation.limits);
}

#[test]
fn star_allows_public_addresses_and_denies_all() {
    let config = parse(&format!("{LEAST}{}", rule("allow", "to = \"*\"")));
    let own = ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254", "[64:ff9b::127.0.0.1]"];
    let private = ["10.0.0.1", "192.168.7.7", "100.64.0.1", "[fd00::1]", "[::ffff:10.0.0.1]", "[64:ff9b::10.0.0.1]"];
    for addr in own.into_iter().chain(private) {
        let explanation = ask(&config, &format!("from=192.0.2.7 to={addr}:22")).unwrap();
        assert_eq!((&*explanation.decision, &explanation.rule), ("deny", &None), "{addr}");
        let hint = explanation.reason.contains("only a rule that names it by address");
        assert!(hint, "{addr}: {}", explanation.reason);
    }
    assert_eq!(decide(&config, "from=192.0.2.7 to=198.51.100.1:22"), "allow rule 1");
    // [[allow]] has another meaning of it, which stays.
    let allow = "[[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"*\"]\n";
    assert_eq!(decide(&parse(&format!("{LEAST}{allow}")), "from=192.0.2.7 to=10.0.0.1:22"), "allow allow 1");
    // A rule that denies everything leaves nothing to those behind it.
    for deny in ["to = \"*\"", ""] {
        let all = "[[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"*\", \"127.0.0.0/8\"]\n";
        let config = parse(&format!("{LEAST}{}{all}", rule("deny", deny)));
        for to in ["127.0.0.1:22", "10.0.0.1:22", "198.51.100.1:22", "host.example:22"] {
            assert_eq!(decide(&config, &format!("from=192.0.2.7 to={to}")), "deny rule 1", "{deny} {to}");
        }
    }
}

#[test]
fn no_form_of_an_address_leads_around_a_denial() {
    let text = [
        rule("deny", "to = [\"127.0.0.0/8\", \"10.9.0.0/16\", \"::1\"]"),
        rule(
            "allow",
            "to = [\"0.0.0.0/1\", \"0.0.0.0/8\", \"127.0.0.0/8\", \"::/128\", \"::1\", \"64:ff9b::/96\", \"2002::/16\", \"10.0.0.0/8\"]",
        ),
    ];
    let config = parse(&format!("{LEAST}{}", text.concat()));
    let forms =
        ["127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "[::1]", "[64:ff9b::10.9.0.1]", "[2002:a09:1::]"];
    for addr in forms {
        assert_eq!(decide(&config, &format!("from=192.0.2.7 to={addr}:22")), "deny rule 1", "{addr}");
    }
    assert_eq!(decide(&config, "from=192.0.2.7 to=[64:ff9b::10.8.0.1]:22"), "allow rule 2");
}

#[test]
fn names_do_not_lead_around_denied_addresses() {
    let (listener, to) = destination();
    let ask = || Ask::to(format!("localhost:{}", to.port()));
    let service = std::net::TcpListener::bind(("127.0.0.1", to.port())).unwrap();
    let allowed = rule("allow", "to = [\"localhost\", \"127.0.0.0/8\", \"::1\"]");
    let open = Pg::start("pg1", &allowed);
    assert!(ask().ask(open.addr).is_ok());
    for deny in ["to = [\"127.0.0.1\", \"::1\"]", "to = [\"localhost\"]", "to = [\".localhost\"]", "to = [\"*\"]"] {
        let no = refused(&Pg::start("pg1", &(rule("deny", deny) + &allowed)), &ask());
        assert!(no.reason.contains("is denied to 127.0.0.1"), "{deny}: {no:?}");
    }
    // Rules in their order: what an earlier one allows by address, a later one does not deny by name.
    let text = rule("allow", "to = [\"127.0.0.1\"]") + &rule("deny", "to = [\"localhost\"]");
    assert!(ask().ask(Pg::start("pg1", &text).addr).is_ok());
    // A denial by name does not deny the address.
    let text = rule("deny", "to = [\"localhost\"]") + &allowed;
    assert!(Ask::to(to).ask(Pg::start("pg1", &text).addr).is_ok());
    drop((listener, service));
}

#[test]
fn redirect_names_the_gateway_and_opens_nothing() {
    let (listener, to) = destination();
    let text = rule("redirect", "to = \"127.0.0.0/8\"\ngateway = \"127.0.0.9\"\nreason = \"ask the other one\"")
        + &rule("allow", "to = \"127.0.0.0/8\"");
    let pg = Pg::start("pg1", &text);
    let no = refused(&pg, &Ask::to(to));
    assert_eq!(
        (no.redirect.map(|better| better.to_string()), &*no.reason),
        (Some("127.0.0.9:5006".to_owned()), "ask the other one")
    );
    let no = refused(&pg, &Ask::to(format!("localhost:{}", to.port())));
    assert!(no.redirect.is_some(), "{no:?}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    // Only the neighbour may follow. Those before it are told by the reason.
    let (first, second) = (address(), address());
    let pg2 = Pg::start_at(second, "pg2", &format!("{}{text}", peer("pg1", first, 0)));
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let pg1 = Pg::start_at(
        first,
        "pg1",
        &format!("{}{route}{}", peer("pg2", second, 0), rule("allow", "to = \"127.0.0.0/8\"")),
    );
    let no = Ask::to(to).ask(pg1.addr).map(drop).unwrap_err();
    assert_eq!((&*no.hop, no.redirect), ("pg2", None));
    assert!(no.reason.contains("127.0.0.9:5006"), "{}", no.reason);
    drop(pg2);
}

#[test]
fn users_are_those_who_have_proved_it() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics"), ("bob", 2, "")]);
    let (_listener, to) = destination();
    let (addr, open) = (address(), address());
    let rules = [
        rule("deny", "user = \"ada\"\nports = [1]"),
        rule(
            "allow",
            "user = [\"ada\"]\nmethod = \"scram\"\nsecurity = \"none\"\ntransport = \"tcp\"\nto = \"127.0.0.0/8\"",
        ),
        rule("allow", &format!("user = \"*\"\nlistener = \"{open}\"\nto = \"127.0.0.0/8\"")),
        rule("allow", "group = \"physics\"\nsecurity = [\"auth\", \"encrypt\"]\nto = \"127.0.0.0/8\""),
    ];
    let listen = format!("[[listen]]\naddress = \"{open}\"\n");
    let pg = Pg::start_at(addr, "pg1", &format!("{AUTH}{listen}{own}{}", rules.concat()));
    let login = |user: &str, password| Ask { login: Some((user.to_owned(), keys(password))), ..Ask::to(to) };
    assert!(login("ada", 1).ask(addr).is_ok());
    assert_eq!(login("bob", 2).ask(addr).unwrap_err().code, Code::NotAllowed);
    let denied = Ask { destination: SocketAddr::new(to.ip(), 1).to_string().parse().unwrap(), ..login("ada", 1) };
    assert!(denied.ask(addr).unwrap_err().reason.contains("is denied to ada"));
    // Where nobody can prove anything, nobody is a user, whatever they say.
    let claims = Principal {
        user: "ada".to_owned(),
        groups: vec!["physics".to_owned()],
        ..Principal::new("SCRAM-SHA-256", "ada")
    };
    let claimed = Ask { claims, ..Ask::to(to) };
    refused_at(open, &claimed);
    drop(pg);
    let config = parse(&format!("{LEAST}{own}{}", rule("allow", "user = \"ada\"\nto = \"127.0.0.0/8\"")));
    let explanation = ask(&config, "user=ada from=192.0.2.7 to=127.0.0.1:22").unwrap();
    assert!(explanation.notes[0].contains("nobody can be ada at 127.0.0.1:5006"), "{:?}", explanation.notes);
}

/// A neighbour that claims to come for others, with a certificate of its own.
#[test]
fn peers_are_not_believed_to_their_advantage() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics")]);
    let certificates = Certificates::new();
    let (addr, addr2) = (address(), address());
    let (_listener, to) = destination();
    let pg2 = |speaks_for: &str, rules: &[String]| {
        let from = format!("[[peer]]\nname = \"pg1\"\naddress = \"{addr}\"\npool = {{ min = 0 }}\n{speaks_for}\n");
        let tls = certificates.issue_for("pg2", &[]);
        Pg::start_at(addr2, "pg2", &format!("{own}{tls}{from}{}", rules.concat()))
    };
    let to_pg2 = format!("[[peer]]\nname = \"pg2\"\naddress = \"{addr2}\"\npool = {{ min = 0 }}\n");
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let tls = certificates.issue_for("pg1", &[]);
    let all = rule("allow", "user = \"*\"\nto = \"127.0.0.0/8\"");
    let pg1 = Pg::start_at(addr, "pg1", &format!("{AUTH}{own}{tls}{to_pg2}{route}{all}"));
    let ada = || Ask { login: Some(("ada".to_owned(), keys(1))), ..Ask::to(to) };
    let allow = |who: &str| rule("allow", &format!("{who}\nto = \"127.0.0.0/8\""));
    let deny = |who: &str| rule("deny", who);
    for (speaks_for, rules, opens) in [
        ("", vec![allow("user = \"ada\"")], false),
        ("", vec![allow("group = \"physics\"")], false),
        ("", vec![allow("method = \"scram\"")], false),
        ("", vec![allow("peer = \"pg1\"")], true),
        ("speaks_for = [\"user:ada\"]", vec![allow("user = \"ada\"\npeer = \"pg1\"")], true),
        ("speaks_for = [\"user:bob\"]", vec![allow("user = \"ada\"")], false),
        // Each entry covers what it names, and nothing else that the peer says.
        ("speaks_for = [\"user:ada\"]", vec![allow("group = \"physics\"")], false),
        ("speaks_for = [\"user:ada\"]", vec![allow("method = \"scram\"")], false),
        ("speaks_for = [\"group:physics\"]", vec![allow("user = \"ada\"")], false),
        ("speaks_for = [\"group:physics\"]", vec![allow("group = \"physics\"")], true),
        (
            "speaks_for = [\"method:scram\"]",
            vec![allow("user = \"ada\"\ngroup = \"physics\"\nmethod = \"scram\"")],
            true,
        ),
        // What harms who says it is believed.
        ("", vec![deny("user = \"ada\""), allow("peer = \"pg1\"")], false),
        ("", vec![deny("group = \"physics\""), allow("peer = \"pg1\"")], false),
        ("", vec![deny("user = \"bob\""), allow("peer = \"pg1\"")], true),
    ] {
        let pg2 = pg2(speaks_for, &rules);
        let opened = ada().ask(pg1.addr).map(drop).map_err(|no| (no.code, no.hop));
        let expected = if opens { Ok(()) } else { Err((Code::NotAllowed, "pg2".to_owned())) };
        assert_eq!(opened, expected, "{speaks_for}: {rules:?}");
        drop(pg2);
    }
}

#[test]
fn explanation_knows_what_a_peer_shows_and_names() {
    let certificates = Certificates::new();
    let tls = certificates.issue_for("pg1", &[]);
    let peer = "[[peer]]\nname = \"pg2\"\naddress = \"pg2.example\"\n";
    let limit = "[[limit]]\neach = \"source\"\nsessions = 7\n";
    let rule = rule("allow", "certificate = \"pg2\"\nto = \"*\"");
    let config = parse(&format!("{LEAST}{tls}{peer}{rule}{limit}"));
    let question = "peer=pg2 from=192.0.2.7 origin=192.0.2.9 to=198.51.100.1:22";
    assert_eq!(decide(&config, question), "allow rule 1");
    assert_eq!(decide(&config, &format!("{question} security=none")), "deny");
    let explanation = ask(&config, question).unwrap();
    assert!(explanation.asks.contains("from 192.0.2.7, a connection of pg2 for 192.0.2.9 at"), "{}", explanation.asks);
    assert!(explanation.limits[2].starts_with("source 192.0.2.9 of peer pg2: 7 sessions"), "{:?}", explanation.limits);
    assert_eq!(explanation.notes.len(), 1, "{:?}", explanation.notes);
    let error = ask(&config, &question.replace("peer=pg2 ", "")).unwrap_err();
    assert!(error.starts_with("origin= is the client that a peer names; expected peer="), "{error}");
}

#[test]
fn errors_say_where_and_what_was_expected() {
    let error = |text: &str| Config::parse(text, Path::new("pg.toml")).map(drop).unwrap_err().to_string();
    for (more, expected) in [
        ("user = \"ada\"", "pg.toml:4:1: missing field `action`"),
        ("action = \"permit\"", "pg.toml:5:10: there is no action \"permit\"; expected one of: allow, deny, redirect"),
        (
            "action = \"deny\"\nusers = 1",
            "pg.toml:6:1: unknown field `users`, expected one of `action`, `user`, `group`",
        ),
        ("action = \"allow\"", "pg.toml:5:10: this rule does not say what it allows; expected to = "),
        ("action = \"redirect\"", "pg.toml:5:10: this rule does not say where to; expected gateway = \"HOST:PORT\""),
        (
            "action = \"deny\"\ngateway = \"pg2\"",
            "pg.toml:6:11: only a rule with action = \"redirect\" names a gateway",
        ),
        ("action = \"redirect\"\ngateway = \"p g\"", "pg.toml:6:11: \"p g\" is not a host name or address with a port"),
        ("action = \"redirect\"\ngateway = \"PG1\"", "pg.toml:6:11: pg1:5006 is this gateway itself; expected another"),
        ("action = \"redirect\"\ngateway = \"127.0.0.1:5006\"", "pg.toml:6:11: 127.0.0.1:5006 is this gateway itself"),
        (
            "action = \"allow\"\nto = \"*\"\nreason = \"no\"",
            "pg.toml:7:10: reason is what those are told who are refused",
        ),
        ("action = \"deny\"\nto = [\"*\", \"10.0.0.0/99\"]", "pg.toml:6:12: \"10.0.0.0/99\" is not a destination"),
        ("action = \"deny\"\nto = []", "pg.toml:6:6: an empty list fits no destination; expected entries"),
        ("action = \"deny\"\nto = 7", "pg.toml:6:6: a text or a list of texts was expected"),
        ("action = \"deny\"\nports = [\"9-1\"]", "pg.toml:6:10: \"9-1\" is not a port or a range"),
        ("action = \"deny\"\nports = []", "pg.toml:6:9: ports = [] fits no port"),
        ("action = \"deny\"\nuser = \"ada\"", "pg.toml:6:8: there are no users; expected [users] with file = "),
        ("action = \"deny\"\nfrom = [\"host\"]", "pg.toml:6:9: \"host\" is not an address or a range"),
        ("action = \"deny\"\npeer = \"pg9\"", "pg.toml:6:8: there is no peer \"pg9\"; expected one of: "),
        (
            "action = \"deny\"\nlistener = \"127.0.0.1:1\"",
            "pg.toml:6:12: there is no [[listen]] with address \"127.0.0.1:1\"; expected one of: 127.0.0.1:5006",
        ),
        (
            "action = \"deny\"\ntransport = \"sctp\"",
            "pg.toml:6:13: there is no transport \"sctp\"; expected one of: tcp",
        ),
        (
            "action = \"deny\"\nsecurity = \"tls\"",
            "pg.toml:6:12: there is no security \"tls\"; expected one of: encrypt",
        ),
        ("action = \"deny\"\ncertificate = \"*\"", "pg.toml:6:15: this needs certificates; expected [tls]"),
        (
            "action = \"deny\"\nmethod = \"scrum\"",
            "pg.toml:6:10: there is no method \"scrum\"; expected one of: scram, SCRAM-SHA-256",
        ),
    ] {
        let said = error(&format!("{LEAST}[[rule]]\n{more}\n"));
        assert!(said.starts_with(expected), "{more}\n  said: {said}\n  not:  {expected}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert!(error(&format!("{LEAST}[rule]\naction = \"deny\"\n")).contains("[[rule]]"));
    let wide = LEAST.replace("127.0.0.1", "0.0.0.0");
    let text = format!("{wide}{}", rule("redirect", "gateway = \"127.0.0.1\""));
    assert!(error(&text).contains("is this gateway itself"), "{}", error(&text));
    // Nobody is in a group, and a rule that allows nothing lets nobody in.
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics")]);
    let warnings = parse(&format!("{LEAST}{AUTH}{own}{}", rule("deny", "group = [\"physics\", \"staff\"]"))).warnings();
    assert!(warnings.iter().any(|warning| warning.contains("group \"staff\", in which the users file has nobody")));
    assert!(warnings.iter().any(|warning| warning.contains("no [[rule]] that allows: every session will be refused")));
}

#[test]
fn questions_are_checked() {
    let config = parse(LEAST);
    for (question, expected) in [
        ("", "to= is missing; expected, for example, user=ada from="),
        ("to=a:1", "from= is missing"),
        ("from=192.0.2.7 to=a", "to= is no host and port"),
        ("from=host to=a:1", "from=host is no address; expected one such as 192.0.2.7"),
        (
            "from=192.0.2.7 to=a:1 uesr=ada",
            "there is no key \"uesr\"; expected some of: user, group, method, certificate, from",
        ),
        ("from=192.0.2.7 to=a:1 user", "\"user\" is no KEY=VALUE"),
        ("from=192.0.2.7 to=a:1 user=", "user= has no value"),
        ("from=192.0.2.7 to=a:1 to=b:1", "to= stands there twice"),
        ("from=192.0.2.7 to=a:1 peer=pg9", "there is no peer \"pg9\""),
        ("from=192.0.2.7 to=a:1 listener=127.0.0.1:1", "no [[listen]] fits that; there are: 127.0.0.1:5006 by tcp"),
        ("from=192.0.2.7 to=a:1 security=tls", "there is no security \"tls\"; expected one of: none, auth, encrypt"),
    ] {
        let said = ask(&config, question).unwrap_err();
        assert!(said.starts_with(expected), "{question}: {said}");
    }
    let text = rule("allow", "to = \"*\"");
    let answer = ask(&parse(&format!("{LEAST}{text}")), "from=192.0.2.7 to=no.such.name.invalid:22").unwrap();
    assert_eq!(answer.decision, "undecided");
    assert!(answer.reason.contains("no.such.name.invalid"), "{}", answer.reason);
}
