use super::*;
use proptest::prelude::*;

/// Gives `input` to a new proxy until it is to do something, and returns it with the rest of the input.
fn feed(entry: Entry, access: Access, input: &[u8]) -> (Proxy, Vec<u8>) {
    let mut proxy = Proxy::new(entry, "pg1", access).unwrap();
    let rest = go_on(&mut proxy, input, usize::MAX);
    (proxy, rest)
}

/// Gives `input` in parts of at most `part` bytes. Output counts as sent.
fn go_on(proxy: &mut Proxy, mut input: &[u8], part: usize) -> Vec<u8> {
    while proxy.step() == Step::Read && !input.is_empty() {
        let space = proxy.space();
        let n = space.len().min(input.len()).min(part);
        assert!(n > 0);
        space[..n].copy_from_slice(&input[..n]);
        proxy.received(n);
        input = &input[n..];
    }
    input.to_vec()
}

fn out(proxy: &mut Proxy) -> Vec<u8> {
    let out = proxy.outgoing().to_vec();
    proxy.sent(out.len());
    out
}

fn destination(proxy: &Proxy) -> String {
    match proxy.step() {
        Step::Open(to) => to.to_string(),
        step => panic!("{step:?}"),
    }
}

fn connect(head: &str) -> (Proxy, String) {
    let (mut proxy, rest) = feed(Entry::Http, Access::Open, format!("{head}\r\n\r\nrest").as_bytes());
    assert_eq!(rest, b"rest");
    let out = String::from_utf8(out(&mut proxy)).unwrap();
    (proxy, out)
}

/// A request of SOCKS, behind the choice of no method.
fn request(rest: &[u8]) -> (Proxy, Vec<u8>) {
    let (mut proxy, rest) = feed(Entry::Socks, Access::Open, &[&[5, 1, 0][..], rest].concat());
    assert!(rest.is_empty());
    let out = out(&mut proxy);
    (proxy, out)
}

const OPENED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

#[test]
fn first_bytes_tell_the_entries_apart() {
    assert_eq!(
        [0x05, b'C', b'g', 0x89, 0x16, 0x04, 0x00, b' '].map(Entry::of).map(Entry::name),
        ["socks", "http", "http", "session", "session", "session", "session", "session"]
    );
}

#[test]
fn socks_opens_sessions_to_addresses_and_names() {
    for (address, to) in [
        (&[1, 192, 0, 2, 1, 0, 80][..], "192.0.2.1:80"),
        (b"\x03\x0cHost.Example\x01\xbb", "host.example:443"),
        // A name that is an address is judged as one.
        (b"\x03\x09127.0.0.1\x00\x50", "127.0.0.1:80"),
        (b"\x03\x03::1\x00\x50", "[::1]:80"),
        (&[4, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80], "[2001:db8::1]:80"),
    ] {
        let mut input = [&[5, 2, 0, 2, 5, 1, 0][..], address].concat();
        input.push(b'x');
        for part in 1..input.len() {
            let mut proxy = Proxy::new(Entry::Socks, "pg1", Access::Open).unwrap();
            assert_eq!(go_on(&mut proxy, &input, part), b"x");
            assert_eq!(destination(&proxy), to);
            proxy.opened();
            assert_eq!(out(&mut proxy), OPENED);
            assert!(proxy.space().is_empty());
        }
    }
}

#[test]
fn socks_takes_a_password_where_one_is_wanted() {
    let hello = b"\x05\x02\x00\x02\x01\x03ada\x06secret\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50";
    for login in [Login::Right, Login::Wrong, Login::Unchecked] {
        let mut proxy = Proxy::new(Entry::Socks, "pg1", Access::Password).unwrap();
        let rest = go_on(&mut proxy, hello, 1);
        assert_eq!(out(&mut proxy), [5, 2]);
        assert_eq!(proxy.step(), Step::Login { user: b"ada", password: b"secret" });
        proxy.login(login);
        let is_right = login == Login::Right;
        assert_eq!(out(&mut proxy), [1, u8::from(!is_right)]);
        let rest = go_on(&mut proxy, &rest, 7);
        assert_eq!((matches!(proxy.step(), Step::Open(_)), rest.is_empty()), (is_right, is_right));
    }
    // Nothing is empty that a client may send so.
    let (proxy, _) = feed(Entry::Socks, Access::Password, b"\x05\x01\x02\x01\x00\x00");
    assert_eq!(proxy.step(), Step::Login { user: b"", password: b"" });
    let longest = [&b"\x05\x01\x02\x01\xff"[..], &[b'u'; 255], b"\xff", &[b'p'; 255]].concat();
    let (proxy, _) = feed(Entry::Socks, Access::Password, &longest);
    assert_eq!(proxy.step(), Step::Login { user: &[b'u'; 255], password: &[b'p'; 255] });
}

#[test]
fn socks_says_what_it_does_not_take() {
    for (access, methods) in [
        (Access::Open, &[5, 0][..]),
        (Access::Open, &[5, 1, 1]),
        (Access::Password, &[5, 1, 0]),
        (Access::Closed, &[5, 2, 0, 2]),
    ] {
        let (mut proxy, _) = feed(Entry::Socks, access, methods);
        assert!(matches!(proxy.step(), Step::Close(_)));
        assert_eq!(out(&mut proxy), [5, 0xff]);
    }
    // BIND, UDP ASSOCIATE, a type of address, no port, no name, a name that is none.
    for (rest, code) in [
        (&b"\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50"[..], 7),
        (b"\x05\x03\x00\x01\x01\x02\x03\x04\x00\x50", 7),
        (b"\x05\x01\x00\x02", 8),
        (b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x00", 1),
        (b"\x05\x01\x00\x03\x00\x00\x50", 1),
        (b"\x05\x01\x00\x03\x03a\nb\x00\x50", 1),
        (&[&b"\x05\x01\x00\x03\xff"[..], &[b'a'; 255], b"\x00\x50"].concat(), 1),
    ] {
        let (proxy, out) = request(rest);
        assert!(matches!(proxy.step(), Step::Close(_)), "{rest:?}");
        assert_eq!(out[..2], [5, code], "{rest:?}");
    }
}

#[test]
fn refusals_become_the_replies_of_direct_connections() {
    for (code, socks, http) in [
        (Code::NotAllowed, 2, "403 Forbidden"),
        (Code::NetworkUnreachable, 3, "502 Bad Gateway"),
        (Code::HostUnreachable, 4, "502 Bad Gateway"),
        (Code::NameNotFound, 4, "502 Bad Gateway"),
        (Code::Refused, 5, "502 Bad Gateway"),
        (Code::TimedOut, 6, "504 Gateway Timeout"),
        (Code::Limit, 1, "503 Service Unavailable"),
    ] {
        let refusal = Refusal { code, hop: "pg2", reason: "it is so" };
        let (mut proxy, _) = request(b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50");
        proxy.refused(refusal);
        assert_eq!(out(&mut proxy)[1], socks);
        let (mut proxy, _) = connect("CONNECT a:1 HTTP/1.1\r\nHost: a:1");
        proxy.refused(refusal);
        let said = String::from_utf8(out(&mut proxy)).unwrap();
        assert!(
            said.starts_with(&format!("HTTP/1.1 {http}\r\n")) && said.ends_with("\r\n\r\npg2: it is so\n"),
            "{said}"
        );
        assert!(said.contains("Content-Length: 14\r\n") && said.contains("Proxy-Status: \"pg1\"; error="), "{said}");
    }
}

#[test]
fn connect_opens_sessions_and_reads_nothing_beyond_its_head() {
    for (target, to) in [
        ("host.example:443", "host.example:443"),
        ("HOST.example.:443", "host.example:443"),
        ("192.0.2.1:80", "192.0.2.1:80"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80"),
    ] {
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: curl/8\r\n\r\n");
        for part in 1..5 {
            let mut proxy = Proxy::new(Entry::Http, "pg1", Access::Open).unwrap();
            assert_eq!(go_on(&mut proxy, format!("{head}\x16rest").as_bytes(), part), b"\x16rest");
            assert_eq!(destination(&proxy), to);
            proxy.opened();
            assert_eq!(out(&mut proxy), b"HTTP/1.1 200 Connection established\r\n\r\n");
            assert!(proxy.space().is_empty());
        }
    }
    assert_eq!(destination(&connect("CONNECT a:1 HTTP/1.0").0), "a:1");
}

#[test]
fn requests_that_are_no_connect_are_refused() {
    let host = "\r\nHost: a:1";
    for (head, status) in [
        (format!("GET http://a/ HTTP/1.1{host}"), 405),
        ("PRI * HTTP/2.0".to_owned(), 405),
        (format!("CONNECT a:1 HTTP/2.0{host}"), 505),
        ("CONNECT a:1 HTTP/1.1".to_owned(), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}{host}"), 400),
        (format!("connect a:1{host}"), 400),
        (format!("CONNECT  a:1 HTTP/1.1{host}"), 400),
        (format!("CONNECT a:1 HTTP/1.1 {host}"), 400),
        (format!("CONNECT a HTTP/1.1{host}"), 400),
        (format!("CONNECT a:0 HTTP/1.1{host}"), 400),
        (format!("CONNECT a:+1 HTTP/1.1{host}"), 400),
        (format!("CONNECT a:65536 HTTP/1.1{host}"), 400),
        (format!("CONNECT :1 HTTP/1.1{host}"), 400),
        (format!("CONNECT ::1:1 HTTP/1.1{host}"), 400),
        (format!("CONNECT [::1:1 HTTP/1.1{host}"), 400),
        (format!("CONNECT user@a:1 HTTP/1.1{host}"), 400),
        (format!("CONNECT http://a:1/ HTTP/1.1{host}"), 400),
        (format!("CONNECT {}:1 HTTP/1.1{host}", "a".repeat(255)), 400),
        (format!("CONNECT a\nb:1 HTTP/1.1{host}"), 400),
        (format!("CONNECT a\rb:1 HTTP/1.1{host}"), 400),
        ("CONNECT a:1 HTTP/1.1\nHost: a:1".to_owned(), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\nX: a\0b"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\n folded"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\nX : a"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\nno colon"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\nContent-Length: 5"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\nContent-Length: 0\r\nContent-Length: 0"), 400),
        (format!("CONNECT a:1 HTTP/1.1{host}\r\ntransfer-encoding: chunked"), 400),
    ] {
        let (proxy, out) = connect(&head);
        assert!(matches!(proxy.step(), Step::Close(_)), "{head:?}");
        assert!(out.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}: {out}");
        assert_eq!(out.contains("\r\nAllow: CONNECT\r\n"), status == 405);
    }
    let endless = format!("CONNECT a:1 HTTP/1.1\r\nX: {}", "a".repeat(1 << 16));
    let (mut proxy, rest) = feed(Entry::Http, Access::Open, endless.as_bytes());
    assert_eq!(rest.len(), endless.len() - http::HEAD_MAX);
    assert!(out(&mut proxy).starts_with(b"HTTP/1.1 431 "));
}

#[test]
fn connect_takes_a_password_where_one_is_wanted() {
    let of = |authorization: &str| {
        let head = format!("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n{authorization}\r\n\r\n");
        feed(Entry::Http, Access::Password, head.as_bytes()).0
    };
    let right = "proxy-authorization: bAsIc YWRhOnNlOmNyZXQ=";
    for (login, status) in [(Login::Right, None), (Login::Wrong, Some("407")), (Login::Unchecked, Some("429"))] {
        let mut proxy = of(right);
        assert_eq!(proxy.step(), Step::Login { user: b"ada", password: b"se:cret" });
        proxy.login(login);
        match status {
            None => assert_eq!(destination(&proxy), "a:1"),
            Some(status) => assert!(out(&mut proxy).starts_with(format!("HTTP/1.1 {status} ").as_bytes())),
        }
    }
    for (wrong, status) in [
        ("X: y", "407"),
        ("Authorization: Basic YWRhOnNlOmNyZXQ=", "407"),
        ("Proxy-Authorization: Bearer abc", "407"),
        ("Proxy-Authorization: Basic !!!", "407"),
        ("Proxy-Authorization: Basic YWRh", "407"),
        ("Proxy-Authorization: Basic\r\nProxy-Authorization: Basic", "400"),
    ] {
        let said = String::from_utf8(out(&mut of(wrong))).unwrap();
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{wrong}: {said}");
        assert_eq!(
            said.contains("\r\nProxy-Authenticate: Basic realm=\"phoebus\""),
            status == "407",
            "{wrong}: {said}"
        );
    }
    let (mut proxy, _) = feed(Entry::Http, Access::Closed, b"CONNECT a:1 HTTP/1.0\r\n\r\n");
    assert!(out(&mut proxy).starts_with(b"HTTP/1.1 403 "));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(input: Vec<u8>, part in 1usize..9, is_http: bool, has_password: bool) {
        let access = if has_password { Access::Password } else { Access::Open };
        let entry = if is_http { Entry::Http } else { Entry::Socks };
        let mut proxy = Proxy::new(entry, "pg1", access).unwrap();
        let rest = go_on(&mut proxy, &input, part);
        proxy.login(Login::Right);
        go_on(&mut proxy, &rest, part);
        proxy.refused(Refusal { code: Code::Refused, hop: "pg2", reason: "" });
        prop_assert!(matches!(proxy.step(), Step::Close(_)));
    }

    #[test]
    fn how_bytes_are_parted_changes_nothing(
        pieces in proptest::collection::vec(0..PIECES.len(), 0..12),
        part in 1usize..9,
        is_http: bool,
        has_password: bool,
    ) {
        let input = pieces.iter().flat_map(|piece| PIECES[*piece]).copied().collect::<Vec<u8>>();
        let access = if has_password { Access::Password } else { Access::Open };
        let entry = if is_http { Entry::Http } else { Entry::Socks };
        let outcome = |part| {
            let mut proxy = Proxy::new(entry, "pg1", access).unwrap();
            let rest = go_on(&mut proxy, &input, part);
            proxy.login(Login::Right);
            let rest = go_on(&mut proxy, &rest, part);
            (rest, format!("{:?}", proxy.step()), proxy.outgoing().to_vec())
        };
        prop_assert_eq!(outcome(part), outcome(usize::MAX));
    }
}

/// Parts of requests, right and wrong.
const PIECES: [&[u8]; 16] = [
    b"CONNECT a:1 HTTP/1.1\r\n",
    b"CONNECT [::1]:1 HTTP/1.0\r\n",
    b"GET / HTTP/1.1\r\n",
    b"Host: a:1\r\n",
    b"Proxy-Authorization: Basic YTpi\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b" : ",
    b"\x05\x01\x00",
    b"\x05\x02\x00\x02",
    b"\x05\x01\x00\x03\x01a\x00\x50",
    b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
    b"\x05\x03\x00\x04",
    b"\x01\x01a\x01b",
    b"\x00",
];
