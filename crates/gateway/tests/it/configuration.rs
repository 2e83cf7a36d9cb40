//! Configurations: every shipped example, and the errors about invalid ones.

use phoebus_gateway::config::{Config, LogFormat, Mechanism, Net, Pattern, Source};
use phoebus_net::CongestionControl;
use phoebus_net::credentials::Authority;
use phoebus_net::transport::Security;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A minimal configuration.
const LEAST: &str = "name = \"pg1\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n";

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("pg.toml")).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    Config::parse(text, Path::new("pg.toml")).unwrap_err().to_string()
}

/// A directory with the files that the examples name.
fn place_with_certificates() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let (authority, own) = Authority::create("the example's", now).unwrap();
    let issued = authority.issue("pg.example", &[], now, Duration::from_secs(3600)).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(place.path().join(name), text).unwrap();
        std::fs::set_permissions(place.path().join(name), Permissions::from_mode(0o600)).unwrap();
    };
    write("ca.pem", &own.certificate);
    for name in ["pg1.campus.example", "pg2.labs.example"] {
        write(&format!("{name}.pem"), &issued.certificate);
        write(&format!("{name}-key.pem"), &issued.key);
    }
    place
}

#[test]
fn every_shipped_example_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let place = place_with_certificates();
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("gateway-") && name.ends_with(".toml") {
            let own = place.path().join(&name);
            std::fs::copy(&path, &own).unwrap();
            let config = Config::read(&own).unwrap_or_else(|error| panic!("{error}"));
            assert!(!config.rules.is_empty() && config.admin.is_some(), "{name}");
            found += 1;
        }
    }
    assert!(found >= 3, "found {found} examples");
}

#[test]
fn configuration_allows_nothing_by_default() {
    let config = parse(LEAST);
    assert!(config.rules.is_empty() && config.routes.is_empty() && config.peers.is_empty());
    assert_eq!(config.listeners[0].auth, []);
    assert_eq!(config.log.format, LogFormat::Text);
}

#[test]
fn complete_configuration_is_read() {
    let config = parse(
        r#"
        name = "PG1.Example"
        contact = "noc@example"
        [[listen]]
        address = "[::]:5006"
        profile = "lan"
        auth = "anonymous"
        [profile.lan]
        congestion_control = "cubic"
        receive_buffer = "8MiB"
        user_timeout = "2m"
        [[peer]]
        name = "pg2"
        address = "pg2.example"
        security = "none"
        from = ["10.2.0.0/24"]
        pool = { min = 2, max = 4, idle = "1m" }
        [[route]]
        to = ".far.example"
        via = "pg2"
        [[route]]
        to = "10.1.0.0/16"
        via = "direct"
        profile = "lan"
        [[allow]]
        from = ["10.1.0.0/16", "pg2"]
        to = ["*"]
        ports = [22, "5000-5999"]
        [limits]
        sessions = 100
        [log]
        format = "json"
        level = "debug"
        "#,
    );
    assert_eq!((config.name.as_str(), &config.listeners[0].auth[..]), ("pg1.example", &[Mechanism::Anonymous][..]));
    assert_eq!(config.listeners[0].profile.congestion_control, CongestionControl::Cubic);
    let peer = &config.peers["pg2"];
    assert_eq!((peer.address.to_string().as_str(), peer.pool.min, peer.pool.max), ("pg2.example:5006", 2, 4));
    assert_eq!(config.routes[0].via.as_deref(), Some("pg2"));
    assert_eq!((config.routes[1].via.as_deref(), &config.routes[1].profile), (None, &config.listeners[0].profile));
    let rule = &config.rules[0];
    assert_eq!(rule.who, [[Source::Net("10.1.0.0/16".parse::<Net>().unwrap()), Source::Peer("pg2".to_owned())]]);
    assert_eq!((&rule.to[..], &rule.ports[..]), (&[Pattern::Any][..], &[22..=22, 5000..=5999][..]));
}

#[test]
fn pool_minimum_defaults_to_at_most_maximum() {
    for (given, expected) in [("", (2, 8)), ("pool = { max = 1 }", (1, 1)), ("pool = { min = 0 }", (0, 8))] {
        let config =
            parse(&format!("{LEAST}[[peer]]\nname = \"pg2\"\naddress = \"pg2.example\"\nsecurity = \"none\"\n{given}"));
        let pool = config.peers["pg2"].pool;
        assert_eq!((pool.min, pool.max), expected, "{given}");
    }
}

#[test]
fn auto_chooses_from_possible_transports() {
    let peer = |more: &str| {
        format!(
            "{LEAST}[[peer]]\nname = \"pg2\"\naddress = \"pg2.example\"\nsecurity = \"none\"\ntransport = \"auto\"\n{more}"
        )
    };
    let allowed = |text: &str| -> Vec<_> {
        let config = parse(text);
        let allowed = config.peers["pg2"].allowed.iter();
        allowed.map(|allowed| (allowed.transport.clone(), allowed.port)).collect()
    };
    assert_eq!(allowed(&peer("")), [("tcp".to_owned(), None)], "without certificates");
    assert_eq!(allowed(&peer("allowed = [\"tcp/5016\"]")), [("tcp".to_owned(), Some(5016))]);
    for (more, expected) in [
        ("allowed = [\"tcp\", \"quic\"]", "quic cannot be allowed: it needs certificates; expected [tls]"),
        ("allowed = [\"udt/5007\"]", "udt cannot be allowed: it needs certificates"),
        ("allowed = [\"sctp\"]", "auto has no rule for \"sctp\"; expected one of: tcp, quic, udt"),
        ("allowed = [\"tcp/0\"]", "\"0\" is no port; expected a transport and its port, such as udt/5007"),
        ("allowed = [\"tcp\", \"tcp/9\"]", "tcp is allowed twice"),
        ("allowed = []", "nothing is allowed; expected some of: tcp, quic, udt"),
        (
            "allowed = [\"tcp\"]\nprofile = \"wan\"\n[profile.wan]\ncongestion_control = \"native\"",
            "tcp cannot be allowed: it has no congestion control \"native\", which the peer's profile asks for",
        ),
        (
            "profile = \"wan\"\n[profile.wan]\ncongestion_control = \"native\"",
            "auto has nothing to choose from: tcp: it has",
        ),
    ] {
        let message = error(&peer(more));
        assert!(message.starts_with("pg.toml:") && message.contains(expected), "{message}");
    }
    let fixed = peer("allowed = [\"tcp\"]").replace("\"auto\"", "\"tcp\"");
    assert!(error(&fixed).contains("allowed is what transport = \"auto\" chooses from"), "{}", error(&fixed));
    assert!(error(&peer("").replace("\"auto\"", "\"sctp\"")).contains("expected one of: tcp, udt, quic, auto"));
    assert!(error(&format!("{LEAST}[limits]\ntransport_timeout = \"0s\"")).contains("limits.transport_timeout is 0"));
}

#[test]
fn memory_limit_covers_buffers_and_pipe() {
    let config = parse(&format!("{LEAST}[limits]\nbuffer = \"4MiB\"\npipe = \"1MiB\"\n"));
    let profile = &config.direct;
    let asked = profile.send_buffer.bytes().unwrap() + profile.receive_buffer.bytes().unwrap();
    // The kernel doubles the requested size.
    assert_eq!(2 * asked + (1 << 20), 4 << 20);
}

#[test]
fn forgeable_public_listener_needs_unprotected_key() {
    let bare = format!("{LEAST}transport = \"udt\"\n");
    assert!(error(&format!("{bare}public = true\n")).contains("anyone could forge packets of udt"));
    let config = parse(&format!("{bare}public = true\nunprotected = true\n"));
    assert_eq!((config.listeners[0].transport.as_str(), config.listeners[0].security), ("udt", Security::None));
    // A listener that cannot be forged, or is not public, needs neither key.
    for text in [LEAST.to_owned() + "public = true\n", bare] {
        assert_eq!(parse(&text).listeners[0].security, Security::None);
    }
}

#[test]
fn errors_name_file_line_and_column() {
    for (more, expected) in [
        (
            "nmae = 1",
            "pg.toml:4:1: unknown field `nmae`, expected one of `address`, `transport`, `security`, `public`, `unprotected`",
        ),
        ("[limits]\nsesions = 1", "pg.toml:5:1: unknown field `sesions`, expected one of `sessions`"),
        (
            "[limits]\nsessions = 0",
            "pg.toml:5:12: invalid value: integer `0`, expected a whole number from 1 to 4294967295",
        ),
        ("[limits]\nidle_timeout = \"soon\"", "pg.toml:5:16: \"soon\" is not a duration such as"),
        ("[limits]\nconnect_timeout = \"0\"", "pg.toml:5:19: limits.connect_timeout is 0; expected a duration"),
        ("[limits]\nbuffer = \"1kB\"", "pg.toml:5:10: limits.buffer is 1000 bytes; expected at least 65536"),
        (
            "[limits]\nreceive_coalescing = \"21ms\"",
            "pg.toml:5:22: limits.receive_coalescing is 21ms; expected 0, or from 1ms to 20ms",
        ),
        (
            "[limits]\nreceive_coalescing = \"500us\"",
            "pg.toml:5:22: limits.receive_coalescing is 500us; expected 0, or from 1ms to 20ms",
        ),
        ("[limits]\nthreads = 9999", "pg.toml:5:11: limits.threads is 9999; expected at most 1024"),
        ("[limits]\nstreams = 65", "pg.toml:5:11: limits.streams is 65; expected 1 to 64"),
        ("[profile.x]\n\nstreams = 0", "pg.toml:6:11: profile.x.streams is 0; expected 1 to 64"),
        (
            "[profile.x]\nidle_timeout = \"1ms\"",
            "pg.toml:5:16: profile.x.idle_timeout is too short; expected at least 1s",
        ),
        (
            "[profile.x]\nrate = \"0mbit\"",
            "pg.toml:5:8: profile.x.rate is too low; expected at least 10kbit, or no rate for no limit",
        ),
        ("[profile.x]\ncongestion_control = \"vegas\"", "pg.toml:5:22: \"vegas\" is not one of auto, system, bbr"),
        ("[profile.x]\nsend_buffer = \"2\"", "pg.toml:5:15: \"2\" is not \"auto\" or a size from 4KiB to 1GiB"),
        ("profile = \"lan\"", "pg.toml:4:11: there is no profile \"lan\"; expected one of: default"),
        ("[[listen]]\naddress = \"pg1:5006\"", "pg.toml:5:11: \"pg1:5006\" is not an address and port such as"),
        ("[[listen]]\naddress = \"127.0.0.1:5006\"", "pg.toml:5:11: 127.0.0.1:5006 is listened on twice with tcp"),
        (
            "auth = \"scarm\"",
            "pg.toml:4:8: there is no auth \"scarm\" here; expected none, anonymous, certificate, scram, token, grid, or",
        ),
        ("auth = []", "pg.toml:4:8: auth is empty; expected none, anonymous"),
        ("auth = [\"anonymous\", \"anonymous\"]", "pg.toml:4:8: auth has \"anonymous\" twice"),
        (
            "auth = \"scram\"",
            "pg.toml:4:8: auth \"scram\" needs certificates; expected [tls] with certificate, key and",
        ),
        (
            "auth = \"scram\"\nraw_password = true",
            "pg.toml:4:8: auth \"scram\" needs users; expected [users] with file = \"FILE\" (phoebus passwd makes it)",
        ),
        ("raw_password = true", "pg.toml:3:11: raw_password is for auth = \"scram\", which this listener has not"),
        ("[users]\nfile = \"/no/users\"", "pg.toml:5:8: /no/users: cannot be read: no such file"),
        (
            "[[allow]]\nfrom = [\"user:ada\"]\nto = [\"*\"]",
            "pg.toml:5:9: there are no users; expected [users] with file = \"FILE\"",
        ),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"\nsecurity = \"none\"\nspeaks_for = [\"*\"]",
            "pg.toml:8:15: who speaks for others has to prove itself; expected security = \"auth\" or \"encrypt\"",
        ),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"\nfingerprint = \"12:34\"\n[tls]\ncertificate = \"a\"\nkey = \"b\"",
            "pg.toml:7:15: \"12:34\" is no fingerprint; expected the 64 hexadecimal digits that phoebus cert show prints",
        ),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"\n[tls]\ncertificate = \"a\"\nkey = \"b\"",
            "pg.toml:5:8: nobody vouches for a; expected the peer's fingerprint (phoebus cert show prints it), or authorities",
        ),
        (
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\nrevoked = [\"c\"]",
            "pg.toml:4:1: revoked is for certificates of authorities; expected authorities in [tls]",
        ),
        (
            "auth = \"token\"",
            "pg.toml:4:8: auth \"token\" needs certificates; expected [tls] with certificate, key and",
        ),
        (
            "[[issuer]]\nurl = \"http://a.example\"\naudiences = [\"x\"]",
            "pg.toml:5:7: \"http://a.example\" is no issuer; expected an https:// URL without a query, exactly as",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = []",
            "pg.toml:6:13: audiences is empty; expected what tokens for this gateway have in \"aud\", such as",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\nalgorithms = [\"HS256\"]",
            "pg.toml:7:15: there is no asymmetric algorithm \"HS256\"; expected one of: ES256, ES384, EdDSA, RS256",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\nrealm = \"a@b\"",
            "pg.toml:7:9: \"a@b\" is no realm; expected letters, digits",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\ngroups = \"/a~b\"",
            "pg.toml:7:10: \"/a~b\" is no claim; expected a claim's name, or a path such as /realm_access/roles",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\nauthorities = \"/no/ca.pem\"",
            "pg.toml:7:15: cannot read /no/ca.pem: no such file",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\nsecret = \"x\"",
            "pg.toml:7:1: unknown field `secret`",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example/1\"\naudiences = [\"x\"]\n[[issuer]]\nurl = \"https://a.example/2\"\naudiences = [\"x\"]",
            "pg.toml:8:7: it could name the users of https://a.example/1, which has the realm \"a.example\" too; expected realm",
        ),
        (
            "[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]\n[[issuer]]\nurl = \"https://a.example\"\naudiences = [\"x\"]",
            "pg.toml:8:7: the issuer https://a.example stands here twice",
        ),
        ("auth = \"grid\"", "pg.toml:4:8: auth \"grid\" needs certificates; expected [tls] with certificate, key and"),
        ("[grid]\ncertificates = \"/no\"", "pg.toml:5:16: /no: No such file"),
        ("[grid]\nmap = \"a\"", "pg.toml:5:1: unknown field `map`"),
        ("[datagrams]\naddresses = [\"pg1\"]", "pg.toml:5:14: \"pg1\" is not an address and port such as"),
        (
            "[datagrams]\naddresses = [\"239.1.1.1:7\"]",
            "pg.toml:5:14: 239.1.1.1:7 is an address of groups; expected one of this host, or 0.0.0.0 or [::] for all",
        ),
        (
            "[datagrams]\naddresses = [\"0.0.0.0:7\", \"127.0.0.1:7\"]",
            "pg.toml:5:27: datagrams.addresses has 127.0.0.1:7 beside 0.0.0.0:7; expected another port or address",
        ),
        (
            "[[listen]]\naddress = \"0.0.0.0:7\"\ntransport = \"udt\"\n[datagrams]\naddresses = [\"127.0.0.1:7\"]",
            "pg.toml:8:14: the [[listen]] with udt at 0.0.0.0:7 has the UDP port of 127.0.0.1:7; expected another port",
        ),
        ("transport = \"sctp\"", "pg.toml:4:13: there is no transport \"sctp\"; expected one of: tcp, udt, quic"),
        (
            "security = \"encrypt\"",
            "pg.toml:4:12: \"encrypt\" needs certificates; expected [tls] with certificate, key",
        ),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"",
            "pg.toml:5:8: connections to peer \"a\" are encrypted unless its security says otherwise, which needs",
        ),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"\ntransport = \"udt\"\nsecurity = \"auth\"",
            "pg.toml:8:12: udt cannot do \"auth\"; expected one of: encrypt, none",
        ),
        (
            "[tls]\ncertificate = \"/nonexistent/a.pem\"\nkey = \"b\"\nauthorities = \"c\"",
            "pg.toml:4:1: cannot read /nonexistent/a.pem: no such file or directory",
        ),
        ("transport = \"quic\"", "pg.toml:3:11: quic needs certificates; expected [tls] with certificate, key"),
        ("transport = \"udt\"\npublic = true", "pg.toml:3:11: on a public listener, anyone could forge packets of udt"),
        (
            "transport = \"udt\"\nunprotected = true",
            "pg.toml:3:11: unprotected = true allows what public = true refuses, and means nothing without it; expected both",
        ),
        ("security = \"tls\"", "pg.toml:4:12: there is no security \"tls\"; expected one of: encrypt, auth, none"),
        ("[[peer]]\nname = \"pg1\"\naddress = \"a/1\"", "pg.toml:5:8: \"pg1\" is this gateway's own name"),
        ("[[peer]]\nname = \"direct\"\naddress = \"a/1\"", "pg.toml:5:8: \"direct\" is no name for a peer"),
        ("[[peer]]\nname = \"a\"\naddress = \"a/0\"", "pg.toml:6:11: \"a/0\" is not an endpoint with a port"),
        ("[[peer]]\nname = \"a\"\naddress = \"a/1\"\npool = { min = 9 }", "pg.toml:7:8: pool.min is 9 and pool.max 8"),
        (
            "[[peer]]\nname = \"a\"\naddress = \"a/1\"\nsecurity = \"none\"\nfrom = [\"a\"]",
            "pg.toml:8:9: \"a\" is not an address or a range",
        ),
        ("[[peer]]\naddress = \"a/1\"", "pg.toml:4:1: missing field `name`"),
        ("[[route]]\nto = \"*\"\nvia = \"pg9\"", "pg.toml:6:7: there is no peer \"pg9\"; expected one of: direct"),
        ("[[route]]\nto = \"10.0.0.0/99\"\nvia = \"direct\"", "pg.toml:5:6: \"10.0.0.0/99\" is not a destination"),
        (
            "[[route]]\nto = \"*\"\nvia = \"direct\"\n[[route]]\nto = \"*\"\nvia = \"direct\"",
            "pg.toml:8:6: there are two routes to *",
        ),
        ("[[allow]]\nfrom = [\"pg9\"]\nto = [\"*\"]", "pg.toml:5:9: \"pg9\" is neither an address range such as"),
        ("[[allow]]\nfrom = [\"::/0\"]\nto = [\"*.x\"]", "pg.toml:6:7: \"*.x\" is not a destination such as"),
        ("[[allow]]\nfrom = [\"::/0\"]\nto = [\"*\"]\nports = [0]", "pg.toml:7:10: 0 is no port"),
        (
            "[[allow]]\nfrom = [\"::/0\"]\nto = [\"*\"]\nports = [\"9-1\"]",
            "pg.toml:7:10: \"9-1\" is not a port or a range",
        ),
        ("[[allow]]\nfrom = [\"::/0\"]\nto = [\"*\"]\nports = []", "pg.toml:7:9: ports = [] allows nothing"),
        ("[log]\nformat = \"xml\"", "pg.toml:5:10: unknown variant `xml`, expected `text` or `json`"),
        ("=", "pg.toml:4:1: "),
    ] {
        let said = error(&format!("{LEAST}{more}\n"));
        assert!(said.starts_with(expected), "{more}\n  said: {said}\n  not:  {expected}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert!(error("name = \"a\"").starts_with("pg.toml: there is no [[listen]]; expected"));
    assert!(error(&LEAST.replace("pg1", "p g")).starts_with("pg.toml:1:8: \"p g\" is no name; expected"));
}

#[test]
fn error_names_unreadable_file() {
    let error = Config::read(Path::new("/nonexistent/pg.toml")).unwrap_err().to_string();
    assert_eq!(error, "/nonexistent/pg.toml: cannot read the configuration: no such file or directory");
}
