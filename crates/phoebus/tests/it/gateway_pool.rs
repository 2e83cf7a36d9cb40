//! Connections between gateways on the emulated path, where a session's end takes a round trip to be confirmed: one that is
//! opened right after another has ended finds a connection that is ready, and waits for no more than a direct one (S22).

use crate::support;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use support::path::{Joined, Path};
use support::wait_until;

/// Long enough for what takes several round trips not to be there after one, on a busy machine too.
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
        // As most programs do: the client has all and goes, and the server sees that and goes.
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
fn pool_grows_after_sessions_have_found_it_empty() {
    let path = Path::up(&Joined { wan_rtt: Duration::from_secs(1), peer: "pool = { min = 1 }", ..FAR });
    path.until_ready("tcp", 1);
    // Of these one begins long before there can be another connection, which takes some seconds.
    let mut open = std::thread::scope(|scope| {
        let both = [scope.spawn(|| path.session()), scope.spawn(|| path.session())];
        both.map(|session| session.join().unwrap())
    });
    open.iter_mut().for_each(echo);
    assert_eq!(path.pool()["reused"], 1);
    // Not one beside those in use, as configured, but one more.
    path.until_ready("tcp", 2);
    for (mut client, mut destination) in open {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(destination.read(&mut [0; 1]).unwrap(), 0);
        drop(destination);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
    let all = || path.pool()["idle"] == 4;
    wait_until(all, || format!("not all have come back: {:#}", path.pool()));
}
