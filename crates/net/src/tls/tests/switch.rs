//! `auth`: TLS ends and the next byte is raw, wherever reads happen to end.

use super::*;
use proptest::prelude::*;

const OPEN: &[u8] = b"OPEN dst/22, and who asks for it";
const OPENED: &[u8] = b"OPENED by way of pg2";
/// What the destination says at once, in one segment with the last record.
const BANNER: &[u8] = b"SSH-2.0-OpenSSH_10.0p2 Debian-7\r\n";
const REQUEST: &[u8] = b"SSH-2.0-client\r\n";

/// One end: says `says` under TLS, expects `hears`, ends TLS, and says `then` without it.
struct End {
    engine: Engine,
    says: &'static [u8],
    hears: &'static [u8],
    then: &'static [u8],
    /// Speaks first, and ends TLS only when it was answered.
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

    /// Gives whether anything moved.
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
            // A wire that spoils TLS leaves alone what follows.
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

    /// Whatever happened on the way: what came out is what went in, or there is an error.
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

/// Lengths of signatures vary from one handshake to the next.
const VARIATION: usize = 16;

#[test]
fn tls_ends_at_its_last_byte_wherever_reads_end() {
    let [up, down] = lengths();
    for cut in 1..up.max(down) + VARIATION {
        let wire = Wire { cuts: vec![cut], ..Wire::default() };
        let (a, b, _) = run(wire.clone(), wire);
        assert!(a.is_complete(&b) && b.is_complete(&a), "cut at {cut}: {:?} {:?}", a.fault, b.fault);
    }
}

#[test]
fn one_byte_at_a_time() {
    let wire = Wire { cuts: (1..10_000).collect(), ..Wire::default() };
    let (a, b, _) = run(wire.clone(), wire);
    assert!(a.is_complete(&b) && b.is_complete(&a));
}

#[test]
fn a_cut_is_never_an_end() {
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
fn what_was_altered_is_never_delivered() {
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
    // All but the few bytes that TLS has for the sake of old machines on the way.
    assert!(found > up + down - 2 * VARIATION - BANNER.len() - REQUEST.len() - 40, "{found} of {}", up + down);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_splits(up in prop::collection::vec(1usize..2500, 0..40), down in prop::collection::vec(1usize..2500, 0..40)) {
        let (a, b, _) = run(Wire { cuts: up, ..Wire::default() }, Wire { cuts: down, ..Wire::default() });
        prop_assert!(a.is_complete(&b) && b.is_complete(&a));
    }
}

/// Any end that rustls makes, up to where the handshake is over on both sides.
fn shake_hands(peer: &mut rustls::Connection, engine: &mut Engine) {
    let (mut up, mut down) = (Wire::default(), Wire::default());
    for _ in 0..8 {
        pass(peer, &mut up, &mut down);
        exchange(engine, &mut up, &mut down).unwrap();
    }
    assert!(!peer.is_handshaking() && !engine.is_handshaking());
}

/// What `peer` has to say goes to `to`, and what is on `from` to it.
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
fn new_keys_are_refused_where_tls_is_about_to_end_and_taken_elsewhere() {
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
