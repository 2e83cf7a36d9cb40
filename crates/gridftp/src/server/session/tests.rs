use super::task::{FileTask, Operation};
use super::*;
use crate::server::Gateways;
use phoebus_net::Profile;
use phoebus_net::transport::Transport;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::pin::Pin;

fn drivers() -> Drivers {
    #[derive(Debug)]
    struct Nowhere;
    impl Gateways for Nowhere {
        fn through(&self, _: &[Endpoint], _: &Profile) -> Arc<dyn Transport> {
            Arc::new(phoebus_net::tcp::Tcp)
        }
    }
    let text = "drivers = [\"tcp\", \"udt\", \"phoebus\", \"rate\"]\nbuffer = \"1MiB\"\n\
                sessions = { path = [\"pg1.example/5006\"], gateways = [\"pg2.example\"] }\n";
    Drivers::new(&toml::from_str(text).unwrap(), Some(Arc::new(Nowhere))).unwrap()
}

fn session() -> Session {
    session_at(Key::ROOT)
}

/// One whose users begin in `home`.
fn session_at(home: Key) -> Session {
    let rules = Rules {
        greeting: "ready".to_owned(),
        attempts: 2,
        streams: 8,
        drivers: Arc::new(drivers()),
        stripes: 0,
        node: None,
        buffer: 1 << 20,
        gsi: None,
        #[cfg(feature = "kerberos")]
        kerberos: None,
        tls: None,
        clear_passwords: true,
        reach: "to = [\"public\", \"10.3.0.0/16\"]".parse::<toml::Table>().unwrap()["to"].clone().try_into().unwrap(),
        home,
    };
    let (session, greeting) =
        Session::new(Arc::new(rules), "192.0.2.1:5".parse().unwrap(), "192.0.2.9:21".parse().unwrap());
    assert_eq!(greeting.code, 220);
    session
}

fn logged_in(read_only: bool) -> Session {
    log_in(session(), read_only)
}

fn log_in(mut session: Session, read_only: bool) -> Session {
    assert_eq!(code(session.line(b"USER jane", 0)), 331);
    assert!(matches!(session.line(b"PASS x", 0), Step::Do(_)));
    let account = Account { name: "jane".to_owned(), read_only, third_party: false, keyed_third_party: false };
    assert_eq!(code(session.done(Outcome::Login(Some(account)))), 230);
    session
}

fn code(step: Step) -> u16 {
    match step {
        Step::Say(reply) | Step::Close(reply) | Step::Secure(reply, _) => reply.code,
        Step::Do(_) => 0,
    }
}

fn transfer(step: Step) -> task::Transfer {
    let Step::Do(task) = step else { panic!("{step:?}") };
    let Task::Transfer(transfer) = *task else { panic!("{task:?}") };
    *transfer
}

#[test]
fn exactly_the_commands_of_the_table_are_implemented() {
    for entry in commands::COMMANDS {
        // With a parameter that each of them takes, or none.
        let line = match entry.verb {
            "SITE" => "SITE HELP".to_owned(),
            "TYPE" => "TYPE I".to_owned(),
            "MODE" => "MODE S".to_owned(),
            "STRU" => "STRU F".to_owned(),
            "OPTS" => "OPTS UTF8 ON".to_owned(),
            "PORT" => "PORT 192,0,2,1,4,1".to_owned(),
            "SPOR" => "SPOR 192,0,2,1,4,1".to_owned(),
            "EPRT" => "EPRT |1|192.0.2.1|1025|".to_owned(),
            "MFMT" => "MFMT 20261121200000 a".to_owned(),
            "CKSM" => "CKSM MD5 0 -1 a".to_owned(),
            "ERET" => "ERET P 0 5 a".to_owned(),
            "ESTO" => "ESTO A 0 a".to_owned(),
            "SBUF" | "ALLO" | "REST" => format!("{} 4096", entry.verb),
            "LANG" => "LANG EN".to_owned(),
            "GET" | "PUT" => format!("{} path=a;pasv;", entry.verb),
            "PASV" | "EPSV" | "SPAS" | "QUIT" | "NOOP" | "SYST" | "FEAT" | "HELP" | "STAT" => entry.verb.to_owned(),
            verb => format!("{verb} a"),
        };
        let mut session = logged_in(false);
        if entry.usage.contains("path") {
            assert_eq!(code(session.line(b"PORT 192,0,2,1,4,1", 0)), 200);
        }
        if entry.verb == "RNTO" {
            session.done(Outcome::Exists(Key::parse("a").unwrap()));
        }
        let step = session.line(line.as_bytes(), 0);
        let refused = matches!(&step, Step::Say(reply) if matches!(reply.code, 500 | 501 | 502 | 504));
        assert!(!refused, "{line}: {step:?}");
        if entry.needs != Needs::Nothing {
            assert_eq!(code(super::tests::session().line(line.as_bytes(), 0)), 530, "{line}");
        }
        if entry.needs == Needs::Writing {
            assert_eq!(code(logged_in(true).line(line.as_bytes(), 0)), 550, "{line}");
        }
    }
    for line in ["AUTH TLS", "DCSC P x", "ADAT x", "MODE", "SITE RDEL a"] {
        let found = code(logged_in(false).line(line.as_bytes(), 0));
        assert!(matches!(found, 501 | 502), "{line}: {found}");
    }
    assert_eq!(code(logged_in(false).line(b"XYZZY a", 0)), 500);
}

#[test]
fn data_goes_to_the_peer_unless_the_account_allows_others() {
    for line in
        ["PORT 192,0,2,2,4,1", "EPRT |1|192.0.2.2|1025|", "SPOR 192,0,2,1,4,1 192,0,2,2,4,1", "PORT 192,0,2,1,0,25"]
    {
        let mut session = logged_in(false);
        assert_eq!(code(session.line(line.as_bytes(), 0)), 504, "{line}");
        assert_eq!(code(session.line(b"RETR a", 0)), 425, "{line} was refused and is heeded");
    }
    let mut session = logged_in(false);
    if let Login::In(account) = &mut session.login {
        account.third_party = true;
    }
    for line in ["PORT 8,8,8,8,4,1", "PORT 192,0,2,1,4,1", "PORT 10,3,0,1,4,1", "EPRT |2|::ffff:10.3.0.1|1025|"] {
        assert_eq!(code(session.line(line.as_bytes(), 0)), 200, "{line}");
    }
    assert_eq!(code(session.line(b"PORT 8,8,8,8,0,25", 0)), 504);
    assert_eq!(code(session.line(b"PORT 224,0,0,1,4,1", 0)), 501);
}

#[test]
fn third_parties_are_at_public_or_configured_addresses() {
    for line in [
        "PORT 127,0,0,1,4,1",
        "PORT 10,4,0,1,4,1",
        "PORT 169,254,169,254,4,1",
        "PORT 255,255,255,255,4,1",
        "EPRT |1|192.168.0.1|1025|",
        "EPRT |2|::1|1025|",
        "EPRT |2|::ffff:127.0.0.1|1025|",
        "EPRT |2|64:ff9b::127.0.0.1|1025|",
        "EPRT |2|fe80::1|1025|",
        "EPRT |2|fd09::1|1025|",
        "SPOR 8,8,8,8,4,1 127,0,0,1,4,1",
        "GET path=a;port=127,0,0,1,4,1;",
    ] {
        let mut session = logged_in(false);
        if let Login::In(account) = &mut session.login {
            account.third_party = true;
        }
        let refusal = match session.line(line.as_bytes(), 0) {
            Step::Say(reply) => reply,
            other => panic!("{line}: {other:?}"),
        };
        assert!(refusal.code == 504 && refusal.text().contains("third_party_to"), "{line}: {refusal}");
        assert_eq!(code(session.line(b"RETR a", 0)), 425, "{line} was refused and is heeded");
    }
    // An unspecified address means the peer, however it is written, and never this host.
    let mut session = logged_in(false);
    if let Login::In(account) = &mut session.login {
        account.third_party = true;
    }
    for line in ["PORT 0,0,0,0,4,1", "EPRT |2|::|1025|", "EPRT |2|::ffff:0.0.0.0|1025|"] {
        assert_eq!(code(session.line(line.as_bytes(), 0)), 200, "{line}");
        assert_eq!(session.aim, DataEndpoint::Connect(vec!["192.0.2.1:1025".parse().unwrap()]), "{line}");
    }
}

#[test]
fn inetd_user_may_name_third_parties_only_with_keys() {
    let mut session = logged_in(false);
    if let Login::In(account) = &mut session.login {
        account.keyed_third_party = true;
    }
    let keyed = format!("SITE SETNETSTACK tcp,tls:key={}", Pin([1; 32]));
    assert_eq!(code(session.line(b"PORT 192,0,2,2,4,1", 0)), 504);
    assert_eq!(code(session.line(keyed.as_bytes(), 0)), 250);
    assert_eq!(code(session.line(b"PORT 192,0,2,2,4,1", 0)), 200);
    // What was said between keys does not hold in clear.
    assert_eq!(code(session.line(b"SITE SETNETSTACK default", 0)), 250);
    assert_eq!(code(session.line(b"RETR a", 0)), 425);
    assert_eq!(code(session.line(b"PORT 192,0,2,2,4,1", 0)), 504);
}

#[test]
fn transfer_settings_apply_to_one_transfer() {
    let mut session = logged_in(false);
    for line in ["TYPE I", "PORT 192,0,2,1,4,1", "ALLO 100", "REST 50"] {
        assert!(matches!(code(session.line(line.as_bytes(), 0)), 0 | 200 | 350));
    }
    let first = transfer(session.line(b"STOR a", 0));
    assert_eq!((first.restart, first.allocated), (Some(Restart::At(50)), Some(100)));
    assert_eq!(code(session.line(b"STOR a", 0)), 425, "a stream needs another connection");
    session.line(b"PORT 192,0,2,1,4,1", 0);
    let second = transfer(session.line(b"STOR a", 0));
    assert_eq!((second.restart, second.allocated), (None, None));
    assert!(second.generation > first.generation);

    // In extended block mode connections are used again.
    session.line(b"MODE E", 0);
    assert_eq!(code(session.line(b"RETR a", 0)), 425);
    session.line(b"PORT 192,0,2,1,4,1", 0);
    let (third, fourth) = (transfer(session.line(b"RETR a", 0)), transfer(session.line(b"RETR b", 0)));
    assert_eq!(third.generation, fourth.generation);
}

#[test]
fn paths_are_relative_to_the_current_directory() {
    let mut session = logged_in(false);
    session.done(Outcome::Entered(Key::parse("dir/sub").unwrap()));
    let key = |session: &mut Session, path: &str| match session.line(format!("MKD {path}").as_bytes(), 0) {
        Step::Do(task) => match *task {
            Task::File(FileTask::MakeDir(key)) => key.to_string(),
            other => panic!("{other:?}"),
        },
        step => code(step).to_string(),
    };
    for (path, leads) in [
        ("f", "dir/sub/f"),
        ("../f", "dir/f"),
        ("/f", "f"),
        ("/~/f", "f"),
        ("~", ""),
        ("~f", "dir/sub/~f"),
        ("../../../f", "553"),
        ("/../f", "553"),
    ] {
        assert_eq!(key(&mut session, path), leads, "{path}");
    }
    assert!(matches!(session.line(b"CWD ..", 0), Step::Do(_)));
    // What `~` stands for is where the user has begun.
    let mut session = log_in(session_at(Key::parse("home/jane").unwrap()), false);
    for (path, leads) in
        [("f", "home/jane/f"), ("~/f", "home/jane/f"), ("/~/f", "home/jane/f"), ("/~", "home/jane"), ("/f", "f")]
    {
        assert_eq!(key(&mut session, path), leads, "{path}");
    }
}

#[test]
fn repeated_failed_logins_end_the_session() {
    let mut session = session();
    assert_eq!(code(session.line(b"PASS x", 0)), 503);
    for close in [false, true] {
        session.line(b"USER jane", 0);
        let step = session.line(b"PASS hunter2", 0);
        assert!(!format!("{step:?}").contains("hunter2"));
        let step = session.done(Outcome::Login(None));
        assert_eq!(matches!(step, Step::Close(_)), close);
        assert_eq!(code(step), 530);
    }
    assert_eq!(code(session.line(b"CWD a", 0)), 530);
}

#[test]
fn feat_and_opts_agree() {
    let mut session = logged_in(false);
    let lines = |step: Step| match step {
        Step::Say(reply) => reply.text(),
        step => panic!("{step:?}"),
    };
    let features = lines(session.line(b"FEAT", 0));
    assert!(features.contains("\n MLST Type*;Size*;Modify*;Perm*;UNIX.mode*;X.drafts*;X.link*;\n"), "{features}");
    assert!(features.contains("\n CKSM CRC32C:10;ADLER32:11;MD5:12;") && features.contains("\n REST STREAM\n"));
    assert!(!features.contains("DCAU") && !features.contains("AUTH"), "{features}");
    assert_eq!(lines(session.line(b"OPTS MLST size;Type;none", 0)), "MLST OPTS Type;Size;");
    assert!(lines(session.line(b"FEAT", 0)).contains("\n MLST Type*;Size*;Modify;Perm;UNIX.mode;X.drafts;X.link;\n"));
    assert_eq!(code(session.line(b"OPTS RETR Parallelism=9,9,9;", 0)), 501);
    assert_eq!(code(session.line(b"OPTS RETR Parallelism=8,8,8;", 0)), 200);
    session.line(b"TYPE I", 0);
    session.line(b"MODE E", 0);
    session.line(b"PORT 192,0,2,1,4,1", 0);
    let transfer = transfer(session.line(b"RETR a", 0));
    assert_eq!((transfer.settings.streams, transfer.settings.mode), (8, Mode::Extended));
    assert!(matches!(transfer.what, Operation::Send { part: None, .. }));
    session.line(b"SPOR 192,0,2,1,4,1 192,0,2,1,4,2", 0);
    assert_eq!(code(session.line(b"RETR a", 0)), 504, "sixteen connections");
    let help = lines(session.line(b"SITE HELP", 0));
    assert!(help.contains("ERET") && help.contains("SITE CHMOD"), "{help}");
    assert_eq!(lines(session.line(b"HELP retr", 0)), "RETR path");
    assert_eq!(code(session.line(b"HELP DCSC", 0)), 502);
}

#[test]
fn clients_choose_among_listed_drivers() {
    let mut session = logged_in(false);
    let said = |step: Step| match step {
        Step::Say(reply) => (reply.code, reply.text()),
        step => panic!("{step:?}"),
    };
    assert_eq!(code(session.line(b"PORT 192,0,2,1,4,1", 0)), 200);
    assert_eq!(said(session.line(b"SITE SETNETSTACK udt", 0)).0, 250);
    assert_eq!(code(session.line(b"RETR a", 0)), 425, "the address was of another transport");
    session.line(b"PORT 192,0,2,1,4,1", 0);
    let stack = |session: &Session| session.settings.stack.as_ref().map(|stack| stack.text.clone());
    assert_eq!(transfer(session.line(b"RETR a", 0)).settings.stack.unwrap().text, "udt");
    for (stack, says) in [
        ("quic", "quic driver not whitelisted"),
        ("tcp:port=1", "driver tcp has no option port here; it has sndbuf, rcvbuf and cc"),
        ("tcp:sndbuf=2MiB", "a size from 4096 to 1048576 bytes"),
        ("tcp:sndbuf=8192;sndbuf=8192", "sndbuf is given twice"),
        ("tcp:sndbuf", "\"sndbuf\" has no value"),
        ("udt:mss=20", "driver udt: mss is \"20\""),
        ("tcp:cc=%0a", "is no text"),
        ("tcp,udt", "driver udt has to be the lowest"),
        ("tcp,gsi", "driver gsi needs"),
        ("tcp,tls", "driver tls needs"),
        ("rate", "driver rate: rate=500mbit"),
        ("tcp,rate:rate=1gbit,rate:rate=1gbit", "driver rate is there twice"),
        ("udt,phoebus", "driver phoebus is above udt"),
        ("tcp,phoebus:gw=192.0.2.7/22", "gateway 192.0.2.7:22 not whitelisted"),
        ("tcp,phoebus:gw=pg1.example|pg3.example", "gateway pg3.example:5006 not whitelisted"),
        ("tcp,phoebus:credential=x", "driver phoebus has no option credential here"),
        ("tcp,,rate", "the name of a driver was expected"),
        (&["tcp"; 9].join(","), "at most 8 drivers"),
        ("", "drivers was expected"),
        ("object:control=fixed;rate=1gbit", "object driver not whitelisted"),
    ] {
        let (code, text) = said(session.line(format!("SITE SETNETSTACK {stack}").as_bytes(), 0));
        assert!(matches!(code, 500 | 501) && text.contains(says), "{stack}: {code} {text}");
    }
    assert_eq!(stack(&session).as_deref(), Some("udt"), "a refusal changes nothing");
    for taken in [
        "tcp:sndbuf=65536;rcvbuf=64KiB;cc=cubic",
        "udt:mss=1400,rate:rate=100mbit",
        "phoebus",
        "tcp,phoebus:gw=pg1.example%2F5006,rate:rate=1gbit",
        "phoebus:path=pg1.example|pg2.example/5006",
        "rate:rate=8kbit",
    ] {
        assert_eq!(said(session.line(format!("SITE SETDCSTACK {taken}").as_bytes(), 0)).0, 250, "{taken}");
        assert_eq!(stack(&session).as_deref(), Some(taken));
    }
    assert_eq!(said(session.line(b"SITE SETDCSTACK default", 0)).0, 250);
    assert_eq!(stack(&session), None);
}

#[test]
fn connections_share_the_rate_of_their_stack() {
    let drivers = drivers();
    let text = "tcp:rcvbuf=1MiB,rate:rate=100mbit";
    let stack = drivers.stack(text, &crate::data::stack::parse(text).unwrap(), None).unwrap();
    let profile = stack.profile(Profile::default(), 4);
    assert_eq!(profile.rate.map(|rate| rate.0), Some(25_000_000));
    assert_eq!((profile.receive_buffer.bytes(), profile.send_buffer.bytes()), (Some(1 << 20), None));
    assert_eq!(drivers.usual().profile(Profile::default(), 4), Profile::default());
}

#[test]
fn unknown_listed_drivers_are_named() {
    let error = |text: &str| Drivers::new(&toml::from_str(text).unwrap(), None).unwrap_err().to_string();
    for (text, says) in [
        ("drivers = []", "data.drivers: some of tcp, udt, quic, object, phoebus, rate were expected"),
        ("drivers = [\"tcp\", \"sctp\"]", "data.drivers: some of"),
        ("drivers = [\"rate\", \"tcp\"]", "a transport first"),
        ("drivers = [\"tcp\", \"phoebus\"]", "opens no sessions"),
        ("drivers = [\"quic\", \"tcp\"]", "quic cannot be the first"),
        ("drivers = [\"object\", \"tcp\"]", "object cannot be the first"),
        ("drivers = [\"tcp\", \"quic\"]\nstack = \"quic\"", "data.stack: driver quic is for clients to ask for"),
        ("drivers = [\"tcp\"]\nstack = \"udt\"", "data.stack: udt driver not whitelisted"),
        ("sessions = { path = [\"a b\"] }", "data.sessions.path"),
        ("driver = [{ name = \"tcp\", library = \"/x\" }]", "[[data.driver]]: \"tcp\""),
        ("driver = [{ name = \"x\", library = \"/gone.so\" }]", "[[data.driver]] x: cannot use /gone.so"),
    ] {
        assert!(error(text).contains(says), "{text}: {}", error(text));
    }
}
