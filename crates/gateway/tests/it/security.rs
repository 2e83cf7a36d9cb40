//! Protection of hops: which protection is required, what certificates prove, and how credentials change while the
//! gateway runs (P2, P9).

use crate::support;
use phoebus_proto::session::Code;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use support::{ALLOW_ALL, Ask, Certificates, No, Pg, address, destination, exchange, pattern};

/// A peer with this protection.
fn peer(name: &str, addr: SocketAddr, security: &str) -> String {
    format!(
        "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\nsecurity = \"{security}\"\nfrom = [\"127.0.0.0/8\"]\n\
         pool = {{ min = 0 }}\n"
    )
}

/// pg1 and pg2 with these `[tls]` sections, each with its own requirement for the hop between them.
fn pair(tls: [&str; 2], wants: [&str; 2]) -> (Pg, Pg) {
    let addrs = [address(), address()];
    let second = Pg::start_at(addrs[1], "pg2", &format!("{}{}{ALLOW_ALL}", tls[1], peer("pg1", addrs[0], wants[1])));
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first = format!("{}{}{route}{ALLOW_ALL}", tls[0], peer("pg2", addrs[1], wants[0]));
    (Pg::start_at(addrs[0], "pg1", &first), second)
}

fn refused(gateway: &Pg) -> No {
    let (_listener, addr) = destination();
    Ask::to(addr).ask(gateway.addr).map(drop).expect_err("the hop must not be had so")
}

#[test]
fn peer_with_less_protection_than_configured_is_refused() {
    let certificates = Certificates::new();
    let tls = [certificates.issue("pg1"), certificates.issue("pg2")];
    for (comes, wanted) in [("none", "auth"), ("none", "encrypt"), ("auth", "encrypt")] {
        let (first, _second) = pair([&tls[0], &tls[1]], [comes, wanted]);
        let no = refused(&first);
        assert_eq!((no.code, no.hop.as_str()), (Code::AuthRequired, "pg2"));
        let expected =
            format!("connections of pg1 have to come with security \"{wanted}\", and this one has \"{comes}\"");
        assert_eq!(no.reason, expected);
    }
}

#[test]
fn peer_may_use_more_protection_than_configured() {
    let certificates = Certificates::new();
    let tls = [certificates.issue("pg1"), certificates.issue("pg2")];
    let (first, _second) = pair([&tls[0], &tls[1]], ["encrypt", "none"]);
    let (client, server, report) = support::session(&first, |ask| ask);
    assert_eq!(report.carried[0], ("tcp".to_owned(), "encrypt".to_owned()));
    exchange(client, server, &pattern(100_000, 1), &pattern(100_000, 2));
}

#[test]
fn certificate_proves_only_its_own_name() {
    let certificates = Certificates::new();
    let own = [certificates.issue("pg1"), certificates.issue("pg2")];
    let other = certificates.issue("mallory");
    // The connecting end.
    let (first, _second) = pair([&other, &own[1]], ["encrypt", "encrypt"]);
    let no = refused(&first);
    assert_eq!(no.code, Code::AuthRequired);
    assert_eq!(no.reason, "the certificate of this connection is for mallory, and not for pg1");
    // The accepting end.
    let (first, _second) = pair([&own[0], &other], ["encrypt", "encrypt"]);
    let no = refused(&first);
    assert_eq!((no.code, no.hop.as_str()), (Code::AuthFailed, "pg2"));
    assert!(no.reason.starts_with("pg1 cannot trust pg2 at "), "{}", no.reason);
    // An untrusted certificate.
    let others = Certificates::new();
    let strange = others.issue("pg1");
    let (first, _second) = pair([&strange, &own[1]], ["encrypt", "encrypt"]);
    assert_eq!(refused(&first).code, Code::AuthFailed);
}

#[test]
fn listener_can_refuse_unencrypted_connections() {
    let certificates = Certificates::new();
    let inside = address();
    let more = format!("{}[[listen]]\naddress = \"{inside}\"\nsecurity = \"encrypt\"\n", certificates.issue("pg1"));
    let gateway = Pg::start("pg1", &(more + ALLOW_ALL));
    // Any answer is no session protocol: a TLS alert, or an end.
    let (listener, addr) = destination();
    let stream = TcpStream::connect(inside).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let error = Ask::to(addr).try_ask_on(stream).expect_err("nothing is to be had in the clear there");
    let expected = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
    assert!(expected.contains(&error.kind()), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody was connected to");
    assert_eq!(gateway.status().totals.sessions_opened, 0);
    // The other listener has not changed.
    let (client, server, _) = support::session(&gateway, |ask| ask);
    exchange(client, server, b"up", b"down");
}

#[test]
fn reload_replaces_certificates_and_status_warns_of_expiry() {
    let certificates = Certificates::new();
    let tls = certificates.issue_as("own", "pg1", 365);
    let gateway = Pg::start("pg1", &format!("{tls}{ALLOW_ALL}"));
    let certificate = gateway.status().certificate.unwrap();
    assert_eq!((certificate.names, certificate.warning), (vec!["pg1".to_owned()], None));
    certificates.issue_as("own", "pg1.example", 5);
    gateway.reload("pg1", &format!("{tls}{ALLOW_ALL}"));
    let certificate = gateway.status().certificate.unwrap();
    assert_eq!(certificate.names, ["pg1.example"]);
    assert!(certificate.warning.is_some_and(|text| text.contains("expires in")));
}
