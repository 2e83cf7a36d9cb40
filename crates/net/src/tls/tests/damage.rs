//! TLS over UDT on a path that damages packets in ways that UDP's checksum does not detect. Bare UDT then
//! delivers damaged bytes, and TLS detects the damage: everything read up to there is what was written, and
//! no end of stream is forged.

use super::*;
use phoebus_proto::control::Model;
use phoebus_proto::udt::{Arrival, Config, Connection, Endpoint, Route};
use std::collections::BTreeMap;
use std::sync::Arc;

const WRITTEN: usize = 400_000;
const DELAY: Duration = Duration::from_millis(5);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// One end: TLS over UDT.
struct End {
    engine: Engine,
    udt: Connection,
    fault: Option<Fault>,
}

impl End {
    /// Moves bytes between TLS and UDT as far as possible.
    fn turn(&mut self, now: Duration) {
        self.udt.handle_timeout(now);
        loop {
            let sent = self.udt.write(self.engine.outgoing());
            self.engine.sent(sent);
            let (space, chunk) = (self.engine.space(), self.udt.chunk());
            let n = space.len().min(chunk.len());
            space[..n].copy_from_slice(&chunk[..n]);
            self.udt.consume(n);
            if n > 0 && self.fault.is_none() {
                self.fault = self.engine.received(n).err();
            }
            if self.fault.is_some() || sent + n == 0 {
                return;
            }
        }
    }
}

/// Two connected ends of UDT.
fn opened() -> (Connection, Connection) {
    let control = Arc::new(Model);
    let config = Arc::new(Config { control, send_buffer: 64, receive_buffer: 64, ..Config::default() });
    let (mut near, mut far) = (Endpoint::new([1; 32]), Endpoint::new([2; 32]));
    far.listen(Some(config.clone())).unwrap();
    let (here, there) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
    let mut client = near.connect(Duration::ZERO, there, config).unwrap();
    let (mut buf, mut answer) = ([0; 1500], [0; 64]);
    loop {
        let len = client.poll_transmit(Duration::ZERO, &mut buf).unwrap().len;
        match far.route(Duration::ZERO, here, &buf[..len], &mut answer) {
            Route::Answer(len) => client.handle(Duration::ZERO, &answer[..len], Arrival::Alone),
            Route::Incoming(incoming) => {
                let mut server = far.accept(Duration::ZERO, &incoming).unwrap();
                let len = server.poll_transmit(Duration::ZERO, &mut buf).unwrap().len;
                client.handle(Duration::ZERO, &buf[..len], Arrival::Alone);
                return (client, server);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Transfers data over a path that flips a bit in one of `one_in` packets; returns the fault, unless the
/// transfer was complete.
fn play(seed: u64, one_in: u64) -> Result<(), String> {
    let (client_udt, server_udt) = opened();
    let mut ends = [
        End { engine: client(Intake::Bulk, Mode::Encrypt), udt: client_udt, fault: None },
        End { engine: server(Intake::Bulk, Mode::Encrypt), udt: server_udt, fault: None },
    ];
    let (mut random, mut now, mut sent) = (Random(seed), Duration::ZERO, 0u64);
    let mut path: BTreeMap<(Duration, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let (mut buf, mut piece) = (vec![0; 64_000], [0; 10_000]);
    let (mut written, mut read, mut damaged) = (0, 0, 0);
    let nth = |at: usize| (at * 31 % 251) as u8;
    while now < Duration::from_secs(300) {
        while let Some(first) = path.first_entry().filter(|first| first.key().0 <= now) {
            let (to, bytes) = first.remove();
            ends[to].udt.handle(now, &bytes, Arrival::Alone);
        }
        ends.iter_mut().for_each(|end| end.turn(now));
        if !ends[0].engine.is_handshaking() && ends[0].fault.is_none() {
            let bytes: Vec<u8> = (written..WRITTEN.min(written + 20_000)).map(nth).collect();
            written += ends[0].engine.write(&bytes).unwrap_or(0);
            if written == WRITTEN && !ends[0].engine.is_closed() {
                ends[0].engine.close().unwrap();
            }
        }
        while let Some(n) = ends[1].engine.read(&mut piece).unwrap_or_else(|fault| {
            ends[1].fault = Some(fault);
            None
        }) {
            assert!((read..read + n).zip(&piece).all(|(at, byte)| *byte == nth(at)), "wrong bytes, seed {seed}");
            read += n;
            if n == 0 {
                assert_eq!(read, WRITTEN, "an end that was not made, seed {seed}");
                return Ok(());
            }
        }
        for from in [0, 1] {
            ends[from].turn(now);
            assert!(ends[from].engine.memory() <= 2 * super::super::buffer::CAPACITY + (1 << 15));
            let failed = ends[from].fault.as_ref().map(|fault| fault.to_string());
            if let Some(found) = failed.or_else(|| ends[from].udt.closed().map(|reason| reason.to_string())) {
                assert!(damaged > 0, "{found} without any damage");
                return Err(found);
            }
            while let Some(transmit) = ends[from].udt.poll_transmit(now, &mut buf) {
                for bytes in buf[..transmit.len].chunks(transmit.segment) {
                    let mut bytes = bytes.to_vec();
                    if random.next().is_multiple_of(one_in) {
                        let bit = random.next() as usize % (bytes.len() * 8);
                        bytes[bit / 8] ^= 1 << (bit % 8);
                        damaged += 1;
                    }
                    sent += 1;
                    path.insert((now + DELAY, sent), (1 - from, bytes));
                }
            }
        }
        let due = ends.iter().filter_map(|end| end.udt.poll_timeout());
        let next = due.chain(path.first_key_value().map(|((at, _), _)| *at)).min();
        now = next.unwrap_or(now).max(now + Duration::from_micros(10));
    }
    panic!("seed {seed} hangs: {written} written, {read} read");
}

#[test]
fn tls_detects_damage_over_udt() {
    let mut found: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 1..=60 {
        if let Err(what) = play(seed, [100, 1000, 10][seed as usize % 3]) {
            *found.entry(what).or_default() += 1;
        }
    }
    println!("{found:?}");
    assert!(found.contains_key("what it sent was altered on the way"), "{found:?}");
    assert_eq!(play(1, u64::MAX), Ok(()));
}
