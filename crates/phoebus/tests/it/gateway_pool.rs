//! Connections between gateways on the emulated path, where the end of a session takes a round trip to be confirmed. A
//! session that is opened right after another finds a ready connection, and waits no longer than a direct connection
//! would (S22).

use crate::support;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use support::path::{Joined, Path};
use support::wait_until;

/// A round trip so long that even on a busy machine, one round trip is distinguishable from several.
const FAR: Joined = Joined {
    wan_rtt: Duration::from_millis(200),
    transport: "tcp",
    security: "encrypt",
    peer: "",
    profile: "",
    more: "",
};

fn echo((client, destination): &mut (TcpStream, TcpStream)) {
    client.write_all(b"x").unwrap();
    destination.read_exact(&mut [0; 1]).unwrap();
    destination.write_all(b"y").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
}

fn follow_each_other(transport: &str) {
    const SESSIONS: u64 = 12;
    let path = Path::up(&Joined { transport, ..FAR });
    path.until_ready(transport, 2);
    for _ in 0..SESSIONS {
        let mut ends = path.session();
        echo(&mut ends);
        let (client, mut destination) = ends;
        // Like most programs, the client closes when it has everything, and the server closes after it.
        drop(client);
        std::thread::spawn(move || {
            assert_eq!(destination.read(&mut [0; 1]).unwrap(), 0);
        });
    }
    let pool = path.pool();
    assert_eq!((&pool["reused"], &pool["stale"]), (&SESSIONS.into(), &0.into()), "a session had to wait: {pool:#}");
}

#[test]
fn sessions_over_tls_that_follow_each_other_find_connections_ready() {
    follow_each_other("tcp");
}

#[test]
fn sessions_over_udt_that_follow_each_other_find_connections_ready() {
    follow_each_other("udt");
}

#[test]
fn pool_keeps_the_connections_of_sessions_that_have_found_it_empty() {
    let path = Path::up(&Joined { wan_rtt: Duration::from_secs(1), peer: "pool = { min = 1 }", ..FAR });
    path.until_ready("tcp", 1);
    // One of these begins long before another connection can be ready, which takes some seconds.
    let mut open = std::thread::scope(|scope| {
        let both = [scope.spawn(|| path.session()), scope.spawn(|| path.session())];
        both.map(|session| session.join().unwrap())
    });
    open.iter_mut().for_each(echo);
    assert_eq!(path.pool()["reused"], 1);
    // The configured one beside those in use.
    path.until_ready("tcp", 1);
    for (mut client, mut destination) in open {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(destination.read(&mut [0; 1]).unwrap(), 0);
        drop(destination);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
    let all = || path.pool()["idle"] == 3;
    wait_until(all, || format!("not all have come back: {:#}", path.pool()));
}
