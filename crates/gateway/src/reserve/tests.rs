//! Division of rates among fake connections that record what they were set to.

use super::*;
use phoebus_net::Stats;
use phoebus_net::transport::{Boxed, Duplex, DuplexControl, DuplexIo, DuplexTelemetry};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// What all connections of a test were set to, and the highest sum of their rates.
#[derive(Debug, Default)]
struct Told {
    rates: Mutex<HashMap<usize, Option<u64>>>,
    most: AtomicU64,
    /// Connections whose rate cannot be set at the moment.
    deaf: Mutex<BTreeSet<usize>>,
    /// Whether none takes a rate.
    unable: AtomicBool,
    /// The congestion control that each was set to.
    controls: Mutex<HashMap<usize, CongestionControl>>,
}

/// A connection that does nothing.
#[derive(Debug)]
struct Fake {
    id: usize,
    sent: Arc<AtomicU64>,
    told: Arc<Told>,
}

impl DuplexIo for Fake {
    fn try_read(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_write(&self, _: &[u8], _: bool) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn poll_read_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_write_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn is_quiet(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Ok(())
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        Ok(0)
    }
}

impl DuplexControl for Fake {
    fn set(&self, change: Change) -> io::Result<()> {
        let rate = match change {
            Change::Rate(rate) => rate,
            Change::CongestionControl(control) => {
                self.told.controls.lock().unwrap().insert(self.id, control);
                return Ok(());
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        if self.told.unable.load(Relaxed) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if self.told.deaf.lock().unwrap().contains(&self.id) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut rates = self.told.rates.lock().unwrap();
        rates.insert(self.id, rate.map(|rate| rate.0));
        let sum: u64 = rates.values().flatten().sum();
        self.told.most.fetch_max(sum, Relaxed);
        Ok(())
    }

    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(std::future::pending())
    }

    fn disarm(&self) {}

    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }
}

impl DuplexTelemetry for Fake {
    fn stats(&self) -> io::Result<Stats> {
        let congestion_control = "bbr".to_owned();
        Ok(Stats { bytes_sent: self.sent.load(Relaxed), congestion_control, ..Stats::default() })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(NOBODY)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(NOBODY)
    }
}

/// Connections under the profile `circuit` to one peer.
struct Circuit {
    reservations: Arc<Reservations>,
    told: Arc<Told>,
    streams: Vec<(Arc<Stream>, Arc<AtomicU64>)>,
    now: Instant,
}

const RATE: u64 = 100_000_000;

impl Circuit {
    fn new() -> Self {
        let reservations = Reservations::new(rates(Some(RATE)));
        Self { reservations, told: Arc::default(), streams: Vec::new(), now: Instant::now() }
    }

    fn segment() -> Segment {
        Segment { profile: "circuit".into(), neighbour: Neighbour::Peer("pg2".into()) }
    }

    fn open(&mut self, booked: Option<u64>) -> Result<Reservation, CannotHold> {
        let sent = Arc::new(AtomicU64::new(0));
        let id = self.streams.len();
        let stream = Arc::new(Stream::from(Fake { id, sent: sent.clone(), told: self.told.clone() }));
        self.streams.push((stream.clone(), sent));
        Ok(self.reservations.hold(&Self::segment().into(), &stream, booked)?.unwrap())
    }

    /// Simulates `looks` checks while the connections send at these rates, within their limits.
    fn pass(&mut self, looks: u32, rates: &[u64]) {
        for _ in 0..looks {
            for (id, rate) in rates.iter().enumerate() {
                let now = (*rate).min(self.rate(id).unwrap_or(u64::MAX));
                self.streams[id].1.fetch_add(now / 8 / 50, Relaxed);
            }
            self.now += LOOK;
            self.reservations.look(self.now);
        }
    }

    fn rate(&self, id: usize) -> Option<u64> {
        self.told.rates.lock().unwrap().get(&id).copied().flatten()
    }

    /// Asserts these fractions of the rate, within about a hundredth of the whole.
    fn expect(&self, parts: &[f64]) {
        for (id, part) in parts.iter().enumerate() {
            let (got, wanted) = (self.rate(id).unwrap() as f64, part * RATE as f64);
            assert!((got - wanted).abs() <= 0.011 * RATE as f64, "{id}: {got} instead of {wanted}");
        }
    }
}

fn rates(rate: Option<u64>) -> ReservationRules {
    let rates = rate.map(|rate| ("circuit".into(), BitRate(rate))).into_iter().collect();
    ReservationRules { rates, any_control: BTreeSet::from(["circuit".into()]), ..ReservationRules::default() }
}

#[test]
fn single_connection_gets_whole_rate_and_several_share_it() {
    let mut circuit = Circuit::new();
    let first = circuit.open(None).unwrap();
    circuit.expect(&[1.0]);
    let _second = circuit.open(None).unwrap();
    circuit.expect(&[0.5, 0.5]);
    circuit.pass(50, &[u64::MAX, 0]);
    circuit.expect(&[1.0, 0.0]);
    circuit.pass(5, &[u64::MAX, u64::MAX]);
    circuit.expect(&[0.5, 0.5]);
    // Connections to another neighbour are independent.
    let other = Segment { neighbour: Neighbour::Peer("pg3".into()), ..Circuit::segment() };
    assert_eq!(circuit.reservations.free(&other), Some([RATE, RATE]));
    drop(first);
    assert_eq!(circuit.rate(1), Some(RATE));
}

#[test]
fn sum_of_shares_never_exceeds_rate() {
    let mut circuit = Circuit::new();
    let mut held: Vec<_> = (0..4).map(|_| circuit.open(None).unwrap()).collect();
    for round in 0..40u64 {
        let wants: Vec<_> = (0..4).map(|id| if (round + id) % 3 == 0 { u64::MAX } else { 1 << (20 + id) }).collect();
        circuit.pass(3, &wants);
    }
    for id in [3, 2] {
        // A closed connection sends nothing.
        circuit.told.rates.lock().unwrap().remove(&id);
        held.pop();
    }
    circuit.pass(10, &[u64::MAX, u64::MAX]);
    let most = circuit.told.most.load(Relaxed);
    assert!(most <= RATE && most > RATE * 98 / 100, "{most}");
}

#[test]
fn no_share_grows_while_a_reduction_fails() {
    let mut circuit = Circuit::new();
    let _held = [circuit.open(None).unwrap(), circuit.open(None).unwrap()];
    circuit.pass(50, &[u64::MAX, 0]);
    circuit.expect(&[1.0, 0.0]);
    circuit.told.deaf.lock().unwrap().insert(0);
    circuit.pass(20, &[u64::MAX, u64::MAX]);
    circuit.expect(&[1.0, 0.0]);
    let most = circuit.told.most.load(Relaxed);
    assert!(most <= RATE, "{most}");
    // The gateway keeps trying.
    circuit.told.deaf.lock().unwrap().clear();
    circuit.pass(5, &[u64::MAX, u64::MAX]);
    circuit.expect(&[0.5, 0.5]);
}

#[test]
fn gateway_chooses_control_that_holds_the_rate() {
    let mut circuit = Circuit::new();
    let held = circuit.open(None).unwrap();
    let told = |circuit: &Circuit| circuit.told.controls.lock().unwrap().get(&0).copied();
    circuit.pass(50, &[0]);
    assert_eq!(told(&circuit), None, "bbr begins");
    circuit.pass(100, &[u64::MAX]);
    assert_eq!(told(&circuit), Some(CongestionControl::Cubic));
    drop(held);
    assert_eq!(told(&circuit), Some(CongestionControl::Bbr), "whoever has the connection next is held to nothing");

    // A configured control stays.
    let mut circuit = Circuit::new();
    circuit.reservations.change(ReservationRules { any_control: BTreeSet::new(), ..rates(Some(RATE)) });
    let _held = circuit.open(None).unwrap();
    circuit.pass(200, &[u64::MAX]);
    assert_eq!(told(&circuit), None);
}

#[test]
fn changed_rate_applies_to_open_connections() {
    let mut circuit = Circuit::new();
    let _held = [circuit.open(None).unwrap(), circuit.open(None).unwrap()];
    circuit.reservations.change(rates(Some(RATE / 2)));
    circuit.expect(&[0.25, 0.25]);
    circuit.reservations.change(rates(None));
    assert_eq!((circuit.rate(0), circuit.rate(1)), (None, None));
    circuit.reservations.change(rates(Some(RATE)));
    circuit.expect(&[0.5, 0.5]);
}

#[test]
fn connection_loses_rate_that_was_removed() {
    let mut circuit = Circuit::new();
    let held = circuit.open(None).unwrap();
    drop(held);
    circuit.reservations.change(rates(None));
    assert_eq!(circuit.rate(0), Some(RATE));
    let stream = circuit.streams[0].0.clone();
    assert!(circuit.reservations.hold(&Circuit::segment().into(), &stream, None).unwrap().is_none());
    assert_eq!(circuit.rate(0), None);
}

#[test]
fn promise_is_kept_and_not_made_twice() {
    let mut circuit = Circuit::new();
    let promised = circuit.open(Some(60_000_000)).unwrap();
    circuit.expect(&[0.6]);
    assert_eq!(
        circuit.open(Some(50_000_000)).unwrap_err(),
        CannotHold::Insufficient { free: 40_000_000, account: None }
    );
    let _other = circuit.open(None).unwrap();
    circuit.pass(20, &[u64::MAX, 0, u64::MAX]);
    assert_eq!(circuit.rate(0), Some(60_000_000));
    assert!((38_000_000..=40_000_000).contains(&circuit.rate(2).unwrap()));
    // The unused part is lent to others.
    circuit.pass(50, &[0, 0, u64::MAX]);
    assert!(circuit.rate(2).unwrap() >= 98_000_000);
    drop(promised);
    assert_eq!(circuit.reservations.free(&Circuit::segment()), Some([RATE, RATE]));
}

#[test]
fn booked_bandwidth_is_kept_without_a_profile_rate() {
    let reservations = Reservations::new(ReservationRules::default());
    let told = Arc::new(Told::default());
    let stream = Arc::new(Stream::from(Fake { id: 0, sent: Arc::default(), told: told.clone() }));
    let held = reservations.hold(&Circuit::segment().into(), &stream, Some(7_000_000)).unwrap();
    assert_eq!(told.rates.lock().unwrap()[&0], Some(7_000_000));
    drop(held);
    assert_eq!(told.rates.lock().unwrap()[&0], None);
}

#[test]
fn bundle_stays_within_the_rate() {
    const LANES: usize = 8;
    let mut circuit = Circuit::new();
    let _held: Vec<_> = (0..LANES).map(|_| circuit.open(None).unwrap()).collect();
    circuit.expect(&[1.0 / LANES as f64; LANES]);
    let (mut sent, seconds) = (0, 10);
    for look in 0..50 * seconds as usize {
        // Each uses its whole share while its window is open, and the windows open at different times.
        let open: Vec<_> = (0..LANES).map(|lane| !(look / 10 + lane).is_multiple_of(3)).collect();
        let allowed = |lane: usize| circuit.rate(lane).unwrap() / 50;
        sent += (0..LANES).filter(|lane| open[*lane]).map(allowed).sum::<u64>();
        let rates: Vec<_> = open.iter().map(|open| if *open { u64::MAX } else { 0 }).collect();
        circuit.pass(1, &rates);
    }
    // The rest was kept for a while for lanes that had just stopped.
    assert!((RATE * seconds * 60 / 100..=RATE * seconds).contains(&sent), "{sent}");
    assert!(circuit.told.most.load(Relaxed) <= RATE);
}

/// Limits of 40 Mbit/s for each user, and of 60 Mbit/s for a peer.
fn accounts() -> AccountLimits {
    let text = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n[[peer]]\nname = \"pg1\"\naddress = \"pg1.example\"\n\
                security = \"none\"\n[[limit]]\neach = \"user\"\nbandwidth = \"40mbit\"\n\
                [[limit]]\npeer = \"pg1\"\nbandwidth = \"60mbit\"\n";
    Config::parse(text, "pg.toml".as_ref()).unwrap().account_limits
}

impl Circuit {
    /// A session's connection towards its destination, of this user, brought by pg1.
    fn open_for(&mut self, user: &str, booked: Option<u64>) -> Result<Option<Reservation>, CannotHold> {
        let sent = Arc::new(AtomicU64::new(0));
        let id = self.streams.len();
        let stream = Arc::new(Stream::from(Fake { id, sent: sent.clone(), told: self.told.clone() }));
        self.streams.push((stream.clone(), sent));
        let accounts = [Account::User(user.to_owned()), Account::Peer("pg1".to_owned())];
        let bounds = Bounds::new(Self::segment(), crate::failure::Side::Second, &accounts);
        self.reservations.hold(&bounds, &stream, booked)
    }
}

#[test]
fn connection_keeps_to_the_least_of_its_shares() {
    let mut circuit = Circuit::new();
    circuit.reservations.change(ReservationRules { accounts: accounts(), ..rates(Some(RATE)) });
    let ada = circuit.open_for("ada", None).unwrap();
    circuit.expect(&[0.4]);
    let _more = [circuit.open_for("ada", None).unwrap(), circuit.open_for("bob", None).unwrap()];
    circuit.pass(50, &[u64::MAX; 3]);
    // The peer's 60 are shared by three, and ada's 40 by two of them.
    circuit.expect(&[0.2, 0.2, 0.2]);
    circuit.pass(100, &[u64::MAX, 0, u64::MAX]);
    let [first, third] = [0, 2].map(|id| circuit.rate(id).unwrap());
    assert!(first <= 40_000_000 && third <= 40_000_000 && first + third <= 60_000_000, "{first} {third}");
    assert!(first + third >= 55_000_000, "what one leaves, the others get: {first} {third}");
    // The other direction is counted by itself.
    let down = Bounds::new(Circuit::segment(), crate::failure::Side::First, &[Account::Peer("pg1".to_owned())]);
    assert_eq!(circuit.reservations.rate(&down), Some(60_000_000));
    drop(ada);
    circuit.pass(50, &[0, u64::MAX, u64::MAX]);
    let [second, third] = [1, 2].map(|id| circuit.rate(id).unwrap());
    assert!([second, third].iter().all(|rate| (29_000_000..=31_000_000).contains(rate)), "{second} {third}");
}

#[test]
fn transport_without_a_rate_carries_nothing_of_a_limited_account() {
    let mut circuit = Circuit::new();
    circuit.told.unable.store(true, Relaxed);
    let refused = |account| Err(CannotHold::Transport(account));
    circuit.reservations.change(ReservationRules { accounts: accounts(), ..rates(None) });
    assert_eq!(circuit.open_for("ada", None).map(drop), refused(Account::User("ada".to_owned())));
    assert!(circuit.reservations.lock().shared.is_empty());
    // Where nothing but a profile has a rate, the connection has had it from the beginning.
    circuit.reservations.change(rates(Some(RATE)));
    assert!(circuit.open_for("ada", None).is_ok());
}

#[test]
fn promises_are_made_of_every_rate() {
    let mut circuit = Circuit::new();
    circuit.reservations.change(ReservationRules { accounts: accounts(), ..rates(None) });
    let held = circuit.open_for("ada", Some(30_000_000)).unwrap();
    assert_eq!(circuit.rate(0), Some(30_000_000));
    let free = |free, account| CannotHold::Insufficient { free, account: Some(account) };
    assert_eq!(
        circuit.open_for("ada", Some(11_000_000)).unwrap_err(),
        free(10_000_000, Account::User("ada".to_owned()))
    );
    assert_eq!(
        circuit.open_for("bob", Some(31_000_000)).unwrap_err(),
        free(30_000_000, Account::Peer("pg1".to_owned()))
    );
    // Nothing is left behind for whoever has the connection next.
    drop(held);
    assert_eq!(circuit.rate(0), None);
    assert!(circuit.reservations.lock().shared.is_empty());
    // A reload that adds or takes away a limit holds for open connections.
    circuit.reservations.change(rates(Some(RATE)));
    let _held = circuit.open_for("ada", None).unwrap();
    circuit.reservations.change(ReservationRules { accounts: accounts(), ..rates(Some(RATE)) });
    assert_eq!(circuit.rate(3), Some(40_000_000));
    circuit.reservations.change(rates(None));
    assert_eq!(circuit.rate(3), None);
}
