//! `auth`: TLS ends and the next byte is raw, wherever reads happen to end.

use super::*;
use proptest::prelude::*;

const OPEN: &[u8] = b"OPEN dst/22, and who asks for it";
const OPENED: &[u8] = b"OPENED by way of pg2";
/// The destination's first bytes, in one segment with the last TLS record.
const BANNER: &[u8] = b"SSH-2.0-OpenSSH_10.0p2 Debian-7\r\n";
const REQUEST: &[u8] = b"SSH-2.0-client\r\n";

/// One end: sends `says` under TLS, expects `hears`, ends TLS, and sends `then` without it.
struct End {
    engine: Engine,
    says: &'static [u8],
    hears: &'static [u8],
    then: &'static [u8],
    /// Whether this end sends first, and ends TLS only after the answer.
    first: bool,
    said: bool,
    heard: Vec<u8>,
    raw: Vec<u8>,
    fault: Option<Fault>,
}

impl End {
    fn new(engine: Engine, first: bool) -> Self {
        let (says, hears, then) = if first { (OPEN, OPENED, REQUEST) } else { (OPENED, OPEN, BANNER) };
        Self { engine, says, hears, then, first, said: false, heard: Vec::new(), raw: Vec::new(), fault: None }
    }

    /// Returns whether anything moved.
    fn go_on(&mut self, from: &mut Wire, to: &mut Wire) -> bool {
        if self.fault.is_some() {
            return false;
        }
        self.step(from, to).unwrap_or_else(|fault| {
            self.fault = Some(fault);
            true
        })
    }

    fn step(&mut self, from: &mut Wire, to: &mut Wire) -> Result<bool, Fault> {
        let mut moved = exchange(&mut self.engine, from, to)?;
        if self.engine.is_handshaking() {
            return Ok(moved);
        }
        if !self.said && (self.first || self.heard == self.hears) {
            assert_eq!(self.engine.write(self.says)?, self.says.len());
            (self.said, moved) = (true, true);
        }
        if self.said && self.heard == self.hears && !self.engine.is_closed() {
            self.engine.close()?;
            let last = self.engine.outgoing().to_vec();
            self.engine.sent(last.len());
            to.send(&last);
            // Corruption affects only TLS bytes, not the raw bytes behind them.
            let spoilt = to.corrupt.take();
            to.send(self.then);
            to.corrupt = spoilt;
            moved = true;
        }
        let mut piece = [0; 7];
        if self.engine.is_at_end() {
            let n = from.receive(&mut piece);
            self.raw.extend_from_slice(&piece[..n]);
            return Ok(moved || n > 0);
        }
        while let Some(n @ 1..) = self.engine.read(&mut piece)? {
            self.heard.extend_from_slice(&piece[..n]);
            moved = true;
        }
        Ok(moved)
    }

    /// Checks that the output is a prefix of the input, and that anything missing comes with an error.
    fn check(&self, other: &Self) {
        assert!(self.hears.starts_with(&self.heard), "{:?}", self.heard);
        if self.engine.is_at_end() {
            assert_eq!(self.heard, self.hears);
            assert!(other.then.starts_with(&self.raw), "{:?}", self.raw);
        } else {
            assert!(self.fault.is_some() || self.engine.input_ended().is_err(), "a cut looks like an end");
            assert!(self.raw.is_empty());
        }
    }

    fn is_complete(&self, other: &Self) -> bool {
        self.engine.is_at_end() && self.raw == other.then
    }
}

fn run(mut up: Wire, mut down: Wire) -> (End, End, [usize; 2]) {
    let mut a = End::new(client(Intake::Exact, Mode::Auth), true);
    let mut b = End::new(server(Intake::Exact, Mode::Auth), false);
    while a.go_on(&mut down, &mut up) | b.go_on(&mut up, &mut down) {}
    a.check(&b);
    b.check(&a);
    (a, b, [up.bytes.len(), down.bytes.len()])
}

fn lengths() -> [usize; 2] {
    let (a, b, lengths) = run(Wire::default(), Wire::default());
    assert!(a.is_complete(&b) && b.is_complete(&a), "{:?} {:?}", a.fault, b.fault);
    lengths
}

/// Signature lengths vary from one handshake to the next, by up to this many bytes in total.
const VARIATION: usize = 16;

#[test]
fn engine_reads_no_byte_behind_close_notify() {
    let [up, down] = lengths();
    for cut in 1..up.max(down) + VARIATION {
        let wire = Wire { cuts: vec![cut], ..Wire::default() };
        let (a, b, _) = run(wire.clone(), wire);
        assert!(a.is_complete(&b) && b.is_complete(&a), "cut at {cut}: {:?} {:?}", a.fault, b.fault);
    }
}

#[test]
fn switch_works_one_byte_at_a_time() {
    let wire = Wire { cuts: (1..10_000).collect(), ..Wire::default() };
    let (a, b, _) = run(wire.clone(), wire);
    assert!(a.is_complete(&b) && b.is_complete(&a));
}

#[test]
fn truncation_is_never_an_end_of_stream() {
    let [up, down] = lengths();
    for (wire, len, then) in [(0, up, REQUEST.len()), (1, down, BANNER.len())] {
        for at in 0..len - then - VARIATION {
            let mut wires = [Wire::default(), Wire::default()];
            wires[wire].truncate = Some(at);
            let [up, down] = wires;
            let (a, b, _) = run(up, down);
            let receiver = if wire == 0 { &b } else { &a };
            assert!(!receiver.engine.is_at_end(), "{wire} cut at {at}");
            assert!(matches!(receiver.engine.input_ended(), Err(Fault::Cut { .. })));
        }
    }
}

#[test]
fn altered_bytes_are_never_delivered() {
    let [up, down] = lengths();
    let mut found = 0;
    for at in 0..up.max(down) {
        for wire in 0..2 {
            let mut wires = [Wire::default(), Wire::default()];
            wires[wire].corrupt = Some(at);
            let [up, down] = wires;
            let (a, b, _) = run(up, down);
            found += usize::from(!a.is_complete(&b) || !b.is_complete(&a));
        }
    }
    // All bytes except the few that TLS includes for the sake of old middleboxes.
    assert!(found > up + down - 2 * VARIATION - BANNER.len() - REQUEST.len() - 40, "{found} of {}", up + down);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn switch_works_with_any_read_sizes(up in prop::collection::vec(1usize..2500, 0..40), down in prop::collection::vec(1usize..2500, 0..40)) {
        let (a, b, _) = run(Wire { cuts: up, ..Wire::default() }, Wire { cuts: down, ..Wire::default() });
        prop_assert!(a.is_complete(&b) && b.is_complete(&a));
    }
}

/// Performs a handshake with a plain rustls connection until both sides have completed it.
fn shake_hands(peer: &mut rustls::Connection, engine: &mut Engine) {
    let (mut up, mut down) = (Wire::default(), Wire::default());
    for _ in 0..8 {
        pass(peer, &mut up, &mut down);
        exchange(engine, &mut up, &mut down).unwrap();
    }
    assert!(!peer.is_handshaking() && !engine.is_handshaking());
}

/// Sends the output of `peer` to `to`, and passes the input on `from` to it.
fn pass(peer: &mut rustls::Connection, to: &mut Wire, from: &mut Wire) {
    let mut said = Vec::new();
    while peer.wants_write() {
        peer.write_tls(&mut said).unwrap();
    }
    to.send(&said);
    let mut piece = [0; 20_000];
    let n = from.receive(&mut piece);
    let mut heard = &piece[..n];
    while !heard.is_empty() {
        peer.read_tls(&mut heard).unwrap();
        peer.process_new_packets().unwrap();
    }
}

#[test]
fn auth_refuses_key_updates_and_encrypt_accepts_them() {
    for (mode, is_server) in [Mode::Auth, Mode::Encrypt].into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
        let (near, far) = &*CREDENTIALS;
        let (mut peer, mut engine): (rustls::Connection, Engine) = if is_server {
            let peer = rustls::ServerConnection::new(far.server_config(&[mode.protocol()])).unwrap();
            (peer.into(), client(Intake::Exact, mode))
        } else {
            let name = ServerName::try_from("pg2").unwrap();
            let peer = rustls::ClientConnection::new(near.client_config(&[mode.protocol()]), name).unwrap();
            (peer.into(), server(Intake::Exact, mode))
        };
        shake_hands(&mut peer, &mut engine);
        std::io::Write::write_all(&mut peer.writer(), OPEN).unwrap();
        peer.refresh_traffic_keys().unwrap();
        std::io::Write::write_all(&mut peer.writer(), REQUEST).unwrap();
        let (mut up, mut down) = (Wire::default(), Wire::default());
        pass(&mut peer, &mut up, &mut down);
        let (mut heard, mut piece) = (Vec::new(), [0; 7]);
        let end = loop {
            let n = up.receive(engine.space());
            engine.received(n).unwrap();
            match engine.read(&mut piece) {
                Ok(Some(n)) => heard.extend_from_slice(&piece[..n]),
                Ok(None) if n == 0 => break None,
                Ok(None) => {}
                Err(fault) => break Some(fault),
            }
        };
        match mode {
            Mode::Auth => assert_eq!((&heard[..], end), (OPEN, Some(Fault::Unexpected))),
            Mode::Encrypt => assert_eq!((heard, end), ([OPEN, REQUEST].concat(), None)),
        }
    }
}
