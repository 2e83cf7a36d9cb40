//! Failures of a bundle's connections, with and without loss of data.

use super::*;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

/// A forwarder between two gateways that can delay and break connections.
pub(super) struct Way {
    open: Arc<Mutex<Vec<(TcpStream, TcpStream)>>>,
    pub(super) most: Arc<Mutex<usize>>,
}

impl Way {
    /// Forwards to `addr`. Connections beyond the first `most` wait.
    fn to(addr: SocketAddr, most: usize) -> (SocketAddr, Self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let way = Self { open: Arc::default(), most: Arc::new(Mutex::new(most)) };
        let (open, most) = (way.open.clone(), way.most.clone());
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming() {
                while open.lock().unwrap().len() >= *most.lock().unwrap() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                let (near, Ok(far)) = (near.unwrap(), TcpStream::connect(addr)) else { return };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(a, b)| (a.try_clone(), b.try_clone()))
                    .map(|(a, b)| (a.unwrap(), b.unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
                open.lock().unwrap().push((near, far));
            }
        });
        (at, way)
    }

    /// Breaks one connection: with a reset, or with an end towards both gateways, as if the other had closed it.
    fn cut(&self, number: usize, resets: bool) {
        let open = self.open.lock().unwrap();
        let (near, far) = &open[number];
        for stream in [near, far] {
            if resets {
                rustix::net::connect_unspec(stream).unwrap();
            } else {
                // The first shutdown may have closed the second connection too.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Breaks one idle connection. Returns when both gateways' kernels have noticed, so that the gateways notice before
    /// anything later.
    fn cut_idle(&self, number: usize, resets: bool) {
        let ends = {
            let open = self.open.lock().unwrap();
            let (near, far) = &open[number];
            [near, far].map(|stream| (stream.peer_addr().unwrap(), stream.local_addr().unwrap()))
        };
        self.cut(number, resets);
        let start = std::time::Instant::now();
        while ends.iter().any(|(local, remote)| is_established(*local, *remote)) {
            assert!(start.elapsed() < PATIENCE, "connection {number} is still there");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// Whether the kernel lists this connection as established (proc_pid_net(5)).
fn is_established(local: SocketAddr, remote: SocketAddr) -> bool {
    const ESTABLISHED: &str = "01";
    let shown = |addr: SocketAddr| {
        let SocketAddr::V4(addr) = addr else { panic!("{addr} is no IPv4 address") };
        format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port())
    };
    let wanted = [shown(local), shown(remote)];
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1..3] == wanted && fields[3] == ESTABLISHED
    })
}

/// Two gateways with a hop of four connections, none of which is ready. Connections beyond the first `most` wait.
pub(super) fn pair_through_forwarder(most: usize) -> (Pg, Pg, Way) {
    let (first, second) = (address(), address());
    let pg2 = Pg::start_at(second, "pg2", &format!("{}{ALLOW_ALL}", peer("pg1", first, 0)));
    let (at, way) = Way::to(second, most);
    let text = format!("{}streams = 4\n[[route]]\nto = \"*\"\nvia = \"pg2\"\n{ALLOW_ALL}", peer("pg2", at, 0));
    (Pg::start_at(first, "pg1", &text), pg2, way)
}

#[test]
fn broken_connection_fails_session_at_both_ends() {
    for (number, resets) in [(0, true), (1, true), (3, true), (1, false), (2, false)] {
        let (pg1, pg2, way) = pair_through_forwarder(usize::MAX);
        let (client, server, _) = session(&pg1, |ask| ask);
        until_joined(&pg1, &pg2, 4);
        std::thread::scope(|scope| {
            // All connections have data in flight when the path is full.
            let bytes = pattern(40_000_000, 4);
            let mut to = client.try_clone().unwrap();
            let writer = scope.spawn(move || to.write_all(&bytes));
            until_full(&pg2);
            way.cut(number, resets);
            let error =
                (&server).read_to_end(&mut Vec::new()).expect_err("a session that was cut must not end cleanly");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            // The kernel reports the reset only once, to the reader or the writer.
            let told = writer.join().unwrap().is_err() || (&client).read_to_end(&mut Vec::new()).is_err();
            assert!(told, "the client takes the session for ended");
        });
        assert_eq!((pg1.quiet(), pg2.quiet()), ((0, 1), (0, 1)), "connection {number}, reset {resets}");
        let (client, server, _) = session(&pg1, |ask| ask);
        exchange(client, server, &pattern(500_001, 1), &pattern(400_001, 2));
    }
}

#[test]
fn session_survives_loss_of_idle_connection() {
    for (number, resets) in [(0, true), (1, true), (3, false)] {
        let (pg1, pg2, way) = pair_through_forwarder(usize::MAX);
        let (mut client, mut server, _) = session(&pg1, |ask| ask);
        until_joined(&pg1, &pg2, 4);
        way.cut_idle(number, resets);
        let carry = |status: &Status, hop: usize| status.sessions[0].hops[hop].streams == 3;
        pg1.until(|status| carry(status, 1), "pg1 counts what carries");
        pg2.until(|status| carry(status, 0), "pg2 counts what carries");
        for (up, down) in [(&b"up"[..], &b"down"[..]), (&pattern(2_000_003, 1), &pattern(1_000_003, 2))] {
            std::thread::scope(|scope| {
                let mut client = client.try_clone().unwrap();
                scope.spawn(move || client.write_all(up).unwrap());
                expect(&mut server, up);
            });
            std::thread::scope(|scope| {
                let mut server = server.try_clone().unwrap();
                scope.spawn(move || server.write_all(down).unwrap());
                expect(&mut client, down);
            });
        }
        exchange(client, server, b"end", b"end");
        assert_eq!((pg1.quiet(), pg2.quiet()), ((1, 0), (1, 0)), "connection {number}, reset {resets}");
    }
}

/// The peer's kernel has received acknowledgements for these bytes, so the peer knows of no loss.
#[test]
fn unread_bytes_on_reset_connection_fail_session() {
    let pg = Pg::start("pg2", &format!("{}{ALLOW_ALL}", peer("pg1", address(), 0)));
    let (mut first, server, session, token) = open(pg.addr, "pg1", 2);
    let mut lane = attach(pg.addr, "pg1", (session, &token, 1)).unwrap();
    let mut ping = FrameState::striped(Role::Initiator);
    lane.write_all(&ping.ping(1)).unwrap();
    lane.read_exact(&mut [0; 16]).unwrap();
    // The destination does not read, so in the end the gateway does not read either.
    let (mut scatter, mut exchange) = (Scatter::default(), FrameState::striped(Role::Initiator));
    first.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let block = vec![7; 1 << 20];
    'full: loop {
        let mut frame = scatter.data(&mut exchange, 1 << 20).unwrap().to_vec();
        frame.extend_from_slice(&block);
        let mut left = &frame[..];
        while !left.is_empty() {
            match first.write(left) {
                Ok(n) => left = &left[n..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let now = until_full(&pg);
                    if now == std::mem::replace(&mut sent, now) {
                        break 'full;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    let header = scatter.data(&mut ping, 5).unwrap();
    lane.write_all(&[&header[..], b"later"].concat()).unwrap();
    reset(lane);
    // The gateway knows that bytes are missing, and does not wait for them.
    assert_eq!(pg.quiet(), (0, 1));
    drop((first, server));
}
