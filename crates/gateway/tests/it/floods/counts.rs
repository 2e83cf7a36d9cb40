//! Limits on clients that stay: only some are served at a time, and a slot is free when its connection has closed.

use super::*;

#[test]
fn administration_socket_limits_concurrent_connections() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    let limits = "[limits]\nadmin_connections = 3\nhandshake_timeout = \"10m\"\n";
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{limits}[admin]\nsocket = {path:?}\n"));
    let asking: Vec<UnixStream> = (0..12)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"{\"command\":\"status\"}\n").unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            stream
        })
        .collect();
    let mut answered = vec![false; asking.len()];
    let mut look = |mut count: usize| {
        // Read once more after the last expected answer, to catch one too many.
        let start = Instant::now();
        while count <= answered.len() {
            for (stream, answered) in asking.iter().zip(&mut answered) {
                *answered |= (&*stream).read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0);
            }
            if answered.iter().filter(|answered| **answered).count() == count {
                count = usize::MAX;
            }
            assert!(start.elapsed() < PATIENCE, "{answered:?}");
        }
        answered.iter().filter(|answered| **answered).count()
    };
    assert_eq!(look(3), 3, "those that are served keep the others waiting");
    asking[0].shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(look(4), 4, "who has gone makes room");
    drop(pg);
}

#[test]
fn silent_administration_connection_makes_room() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    let limits = "[limits]\nadmin_connections = 3\nhandshake_timeout = \"10m\"\n";
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{limits}[admin]\nsocket = {path:?}\n"));
    // Nearly all of these connect before any of them counts as silent.
    let silent: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut asking = UnixStream::connect(&path).unwrap();
    asking.set_read_timeout(Some(PATIENCE)).unwrap();
    asking.write_all(b"{\"command\":\"status\"}\n").unwrap();
    assert!(asking.read(&mut [0; 1 << 16]).unwrap() > 0);
    drop((silent, pg));
}

#[test]
fn request_displaces_one_silent_connection() {
    const STATUS: &[u8] = b"{\"command\":\"status\"}";
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    let limits = "[limits]\nadmin_connections = 3\nhandshake_timeout = \"10m\"\n";
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{limits}[admin]\nsocket = {path:?}\n"));
    let connect = || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    // The last line needs no newline.
    let ask = |mut stream: &UnixStream| {
        stream.write_all(STATUS).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with('{') && answer.ends_with("}\n") && answer.contains("\"pg1\""), "{answer}");
    };
    // Connections that have ended earlier free no slot now.
    (0..3).for_each(|_| ask(&connect()));
    let silent = [connect(), connect(), connect()];
    ask(&connect());
    assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0);
    silent[1..].iter().for_each(ask);
    drop(pg);
}

/// A failed session is counted until the gateway stops reading its connections.
#[test]
fn session_is_counted_as_long_as_its_connections() {
    let _turn = alone();
    let pg = Pg::start("pg1", &format!("{ALLOW_ALL}{LIMITS}sessions = 1\nsessions_per_source = 1\n"));
    let (mut client, server) = framed(&pg);
    let (_listener, to) = destination();
    client.set_nonblocking(true).unwrap();
    support::reset(server);
    let (mut sending, payload) = (FrameState::new(Role::Initiator), vec![1; 1 << 20]);
    let (mut header, mut left) = (Vec::new(), 0);
    // Continues to send; false when the connection has closed.
    let mut pump = |wanted: usize| {
        let mut taken = 0;
        while taken < wanted {
            if header.is_empty() && left == 0 {
                (header, left) = (sending.data(1 << 20).unwrap().to_vec(), payload.len());
            }
            match client.write(if header.is_empty() { &payload[..left] } else { &header }) {
                Ok(n) if header.is_empty() => (left, taken) = (left - n, taken + n),
                Ok(n) => drop(header.drain(..n)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => return false,
            }
        }
        true
    };
    let start = Instant::now();
    loop {
        let is_there = pump(1 << 20);
        if Ask::to(to).try_ask(pg.addr).is_none() {
            // More than the kernel's buffers hold, so the gateway would have to read it.
            assert!(
                !is_there || !pump(64 << 20),
                "another session is open, and the first one's connection is still read"
            );
            return;
        }
        assert!(start.elapsed() < PATIENCE, "its place is never free");
    }
}
