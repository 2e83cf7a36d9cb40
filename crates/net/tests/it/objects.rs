//! Objects over loopback: what arrives, in which order, and what a forger can do (L3, L5).

use bytes::Bytes;
use phoebus_net::object::{Failure, OVERHEAD, Path, Port, Receiving, Secret, Sending, SendingOptions};
use phoebus_proto::control::{Fixed, Model, SharedControl};
use phoebus_proto::object::{Seal, SendConfig, Shape};
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

const SHAPE: Shape = Shape {
    transfer: 3,
    packet_len: 1438,
    chunk_len: 1 << 20,
    ack_packets: 64,
    ack_interval: Duration::from_millis(10),
};
const SECRET: Secret = Secret([9; 32]);
/// How long datagrams may take to be answered.
const ANSWER: Duration = Duration::from_secs(10);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn sending(to: SocketAddr, seal: Seal, silence: Duration) -> Sending {
    let config = SendConfig { rtt: Duration::from_millis(1), ..SendConfig::default() };
    let options = SendingOptions { config, shared_control: SharedControl::default(), chunks: 8, batch: 64, silence };
    let port = Port::bind(loopback()).unwrap();
    let path = Path::connected(&port, to, (SHAPE, seal, &SECRET), ANSWER);
    Sending::start(port, path, (SHAPE, seal, &SECRET), &Model, options).unwrap()
}

fn receiving(seal: Seal) -> (Receiving<Vec<u8>>, SocketAddr) {
    let port = Port::bind(loopback()).unwrap();
    let addr = port.local_addr();
    let path = Path::accepted(&port, addr.ip(), (SHAPE, seal, &SECRET), None);
    (Receiving::start(port, path, (SHAPE, seal, &SECRET)).unwrap(), addr)
}

/// Passes datagrams between the end at `to` and whoever else sends to `socket`, for ever, as far as they are wanted: a
/// datagram, and whether it goes to `to`.
async fn relay(socket: &tokio::net::UdpSocket, to: SocketAddr, mut passes: impl FnMut(&[u8], bool) -> bool) {
    let (mut datagram, mut other) = ([0; 2000], None);
    loop {
        let (len, from) = socket.recv_from(&mut datagram).await.unwrap();
        let is_there = from != to;
        if is_there {
            other = Some(from);
        }
        if let Some(to) = (if is_there { Some(to) } else { other }).filter(|_| passes(&datagram[..len], is_there)) {
            socket.send_to(&datagram[..len], to).await.unwrap();
        }
    }
}

/// Whether a datagram is a check, or the answer to one.
fn is_check(datagram: &[u8]) -> bool {
    [4, 5].contains(&datagram[0])
}

fn chunk(number: u64, len: usize) -> Bytes {
    (0..len).map(|at| (number as usize * 7 + at + (at >> 8)) as u8).collect()
}

/// Sends `lens` through both ends, whose control stream is the test itself.
async fn transfer(sending: &Sending, receiving: &Receiving<Vec<u8>>, lens: &[usize]) -> BTreeMap<u64, Vec<u8>> {
    let mut buffers = 4;
    (0..buffers).for_each(|_| sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize])));
    let send = async {
        for (number, len) in (0..).zip(lens) {
            assert_eq!(sending.push(chunk(number, *len)).await, Ok(number));
            receiving.announce(number, *len as u32).unwrap();
        }
        sending.finish();
        sending.arrived().await.unwrap();
    };
    let receive = async {
        let mut all = BTreeMap::new();
        while all.len() < lens.len() {
            let received = receiving.next().await.unwrap();
            let mut bytes = received.buffer;
            bytes.truncate(lens[received.number as usize]);
            all.insert(received.number, bytes);
            buffers += 1;
            sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize]));
        }
        all
    };
    tokio::join!(send, receive).1
}

#[tokio::test]
async fn chunks_arrive_whole_sealed_or_not() {
    for seal in [Seal::Encrypt, Seal::None] {
        let (receiving, addr) = receiving(seal);
        let sending = sending(addr, seal, Duration::from_secs(60));
        let lens = [1 << 20, 1, 1438, 1439, 1 << 20, 700_001, 1 << 20, 1 << 20, 1 << 20, 5];
        let all = transfer(&sending, &receiving, &lens).await;
        for (number, len) in (0..).zip(lens) {
            assert!(all[&number][..] == chunk(number, len)[..], "chunk {number}, {seal:?}");
        }
        let counters = sending.counters();
        assert_eq!(counters.arrived, counters.needed, "{counters:?}");
    }
}

/// A path to `to` that takes 30 ms and loses each twentieth datagram of those that go there. It ends when what it
/// returns is dropped.
fn lossy_path(to: SocketAddr) -> (Arc<()>, SocketAddr) {
    let (near, far) = (UdpSocket::bind(loopback()).unwrap(), UdpSocket::bind(loopback()).unwrap());
    let (addr, alive) = (near.local_addr().unwrap(), Arc::new(()));
    let (watched, delay) = (Arc::downgrade(&alive), Duration::from_millis(30));
    [&near, &far].iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    std::thread::spawn(move || {
        let (mut back, mut count, mut under_way) = (None, 0, VecDeque::new());
        let mut datagram = [0; 2000];
        while watched.strong_count() > 0 {
            while let Ok((len, from)) = near.recv_from(&mut datagram) {
                (back, count) = (Some(from), count + 1);
                if count % 20 != 0 {
                    under_way.push_back((Instant::now() + delay, true, datagram[..len].to_vec()));
                }
            }
            while let Ok(len) = far.recv(&mut datagram) {
                under_way.push_back((Instant::now() + delay, false, datagram[..len].to_vec()));
            }
            while let Some((_, is_there, bytes)) = under_way.pop_front_if(|(at, ..)| *at <= Instant::now()) {
                let _ = match (is_there, back) {
                    (true, _) => far.send_to(&bytes, to),
                    (false, Some(back)) => near.send_to(&bytes, back),
                    (false, None) => Ok(0),
                };
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    (alive, addr)
}

#[tokio::test]
async fn parity_gives_what_the_tail_of_a_lossy_path_has_lost() {
    let (receiving, addr) = receiving(Seal::Encrypt);
    let (_path, addr) = lossy_path(addr);
    let config = SendConfig { known_loss: 0.05, ..SendConfig::default() };
    let options = SendingOptions {
        config,
        shared_control: SharedControl::default(),
        chunks: 8,
        batch: 64,
        silence: Duration::from_secs(60),
    };
    let port = Port::bind(loopback()).unwrap();
    let control = Fixed { bits_per_second: 200_000_000 };
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let path = Path::connected(&port, addr, keys, ANSWER);
    let sending = Sending::start(port, path, keys, &control, options).unwrap();
    let lens = [500_000, 1438, 400_001];
    let all = transfer(&sending, &receiving, &lens).await;
    for (number, len) in (0..).zip(lens) {
        assert!(all[&number][..] == chunk(number, len)[..], "chunk {number}");
    }
    let (sent, came) = (sending.counters(), receiving.counters());
    assert!(sent.parity > 0 && came.parity > 0 && came.restored > 0, "{sent:?}, {came:?}");
}

#[tokio::test]
async fn forged_datagrams_change_nothing_and_get_no_answer() {
    let (receiving, addr) = receiving(Seal::Encrypt);
    let forger = UdpSocket::bind(loopback()).unwrap();
    forger.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let sending = sending(addr, Seal::Encrypt, Duration::from_secs(60));
    let forge = |transmission: u64| {
        let mut datagram = vec![1, 0, 0, 0, 3];
        datagram.extend(&transmission.to_be_bytes()[3..]);
        datagram.extend([0; 8]);
        datagram.extend([0xee; 1438 + 16]);
        datagram
    };
    for transmission in [0, 1, 77, 1 << 23, (1 << 40) - 1] {
        forger.send_to(&forge(transmission), addr).unwrap();
        forger.send_to(&forge(transmission)[..20], addr).unwrap();
    }
    let lens = [300_000; 5];
    let all = transfer(&sending, &receiving, &lens).await;
    assert!((0..5).all(|number| all[&number][..] == chunk(number, 300_000)[..]));
    assert!(forger.recv(&mut [0; 10]).is_err(), "a forged datagram was answered");
}

#[tokio::test]
async fn silent_peer_ends_the_transfer_with_a_reason() {
    // It takes everything and says nothing, whether a batch is all that is in flight or not.
    for len in [5000, 1438, 2 * 1438, 5] {
        let (_receiving, addr) = receiving(Seal::Encrypt);
        let path = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
        let sending = sending(path.local_addr().unwrap(), Seal::Encrypt, Duration::from_secs(1));
        sending.push(chunk(0, len)).await.unwrap();
        sending.raise_credit(9);
        let failure = tokio::select! {
            ended = timeout(Duration::from_secs(30), sending.arrived()) => ended.unwrap().unwrap_err(),
            () = relay(&path, addr, |datagram, _| is_check(datagram)) => unreachable!("the path never ends"),
        };
        assert!(failure.to_string().contains("has acknowledged nothing new for 1 s"), "{failure}");
        assert_eq!(sending.push(chunk(1, 5)).await, Err(failure));
    }
}

#[tokio::test]
async fn chunks_are_announced_no_further_beyond_the_credit_than_allowed() {
    let (receiving, addr) = receiving(Seal::Encrypt);
    let port = Port::bind(loopback()).unwrap();
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let path = Path::connected(&port, addr, keys, ANSWER);
    let config = SendConfig { rtt: Duration::from_millis(1), ..SendConfig::default() };
    // Memory for all of them at the sender, and for four at the receiver.
    let options = SendingOptions {
        config,
        shared_control: SharedControl::default(),
        chunks: 1000,
        batch: 64,
        silence: Duration::from_secs(60),
    };
    let sending = Sending::start(port, path, keys, &Model, options).unwrap();
    let lens = [1000; 600];
    let all = transfer(&sending, &receiving, &lens).await;
    assert!((0..600).all(|number| all[&number][..] == chunk(number, 1000)[..]));
}

#[tokio::test]
async fn path_without_datagrams_is_found_before_anything_is_sent() {
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let (receiving, addr) = receiving(Seal::Encrypt);
    for one_way in [true, false] {
        // A firewall drops datagrams to the receiver, or its answers.
        let firewall = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
        let to = firewall.local_addr().unwrap();
        let port = Port::bind(loopback()).unwrap();
        let path = Path::connected(&port, to, keys, Duration::from_secs(1));
        let config = SendConfig { rtt: Duration::from_millis(1), ..SendConfig::default() };
        let options = SendingOptions {
            config,
            shared_control: SharedControl::default(),
            chunks: 8,
            batch: 64,
            silence: Duration::from_secs(60),
        };
        let sending = Sending::start(port, path, keys, &Model, options).unwrap();
        sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize]));
        sending.push(chunk(0, 5000)).await.unwrap();
        let mut others = 0;
        let passes = |datagram: &[u8], is_there: bool| {
            others += u32::from(!is_check(datagram));
            is_there == one_way
        };
        let failure = tokio::select! {
            opened = sending.opened() => opened.unwrap_err(),
            () = relay(&firewall, addr, passes) => unreachable!("the path never ends"),
        };
        let Failure::Closed(why) = failure else { panic!("{failure}") };
        assert_eq!(
            why,
            format!("datagrams (UDP) to {to} got no answer within 1 s; a firewall may drop them, or the answers")
        );
        assert_eq!((others, sending.counters().sent), (0, 0), "data went out before the path was known to be open");
    }
}

/// The receiver has made the control connection: it checks, and the sender learns where datagrams have to go, also when
/// address translation gives the receiver another port meanwhile.
#[tokio::test]
async fn receiver_that_connects_opens_the_way_and_may_change_its_port() {
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let (there, here) = (Port::bind(loopback()).unwrap(), Port::bind(loopback()).unwrap());
    let (to, receiver) = (there.local_addr(), here.local_addr());
    let config = SendConfig { rtt: Duration::from_millis(1), ..SendConfig::default() };
    let options = SendingOptions {
        config,
        shared_control: SharedControl::default(),
        chunks: 8,
        batch: 64,
        silence: Duration::from_secs(60),
    };
    let accepted = Path::accepted(&there, to.ip(), keys, Some(ANSWER));
    let sending = Sending::start(there, accepted, keys, &Model, options).unwrap();
    // The translator's port on the side of the sender changes with each datagram of the receiver's.
    let inside = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
    let outside: Vec<_> = (0..3).map(|_| UdpSocket::bind(loopback()).unwrap()).collect();
    outside.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let path = Path::connected(&here, inside.local_addr().unwrap(), keys, ANSWER);
    let receiving = Receiving::start(here, path, keys).unwrap();
    let translator = async {
        let (mut datagram, mut count) = ([0; 65_536], 0);
        loop {
            if let Ok(came) = timeout(Duration::from_millis(1), inside.recv_from(&mut datagram)).await {
                count += 1;
                let _ = outside[count % outside.len()].send_to(&datagram[..came.unwrap().0], to);
            }
            for socket in &outside {
                while let Ok(len) = socket.recv(&mut datagram) {
                    let _ = inside.try_send_to(&datagram[..len], receiver);
                }
            }
        }
    };
    let lens = [300_000, 1, 1438, 700_001];
    let all = tokio::select! {
        all = transfer(&sending, &receiving, &lens) => all,
        () = translator => unreachable!("it never ends"),
    };
    for (number, len) in (0..).zip(lens) {
        assert!(all[&number][..] == chunk(number, len)[..], "chunk {number}");
    }
}

/// Packets from the sender are longer than what the path carries in that direction.
#[tokio::test]
async fn receiver_that_connects_finds_that_packets_do_not_come() {
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let (there, here) = (Port::bind(loopback()).unwrap(), Port::bind(loopback()).unwrap());
    let sender = there.local_addr();
    let options = SendingOptions {
        config: SendConfig::default(),
        shared_control: SharedControl::default(),
        chunks: 8,
        batch: 64,
        silence: Duration::from_secs(60),
    };
    let accepted = Path::accepted(&there, sender.ip(), keys, Some(ANSWER));
    let _sending = Sending::start(there, accepted, keys, &Model, options).unwrap();
    let narrow = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
    let path = Path::connected(&here, narrow.local_addr().unwrap(), keys, Duration::from_secs(1));
    let receiving = Receiving::<Vec<u8>>::start(here, path, keys).unwrap();
    let failure = tokio::select! {
        next = receiving.next() => next.unwrap_err(),
        () = relay(&narrow, sender, |datagram, is_there| is_there || datagram.len() < 1400) => unreachable!(),
    };
    assert!(matches!(&failure, Failure::Closed(why) if why.contains("got no answer within 1 s")), "{failure}");
}

#[tokio::test]
async fn sender_whom_nobody_checks_says_so() {
    let keys = (SHAPE, Seal::Encrypt, &SECRET);
    let port = Port::bind(loopback()).unwrap();
    let own = port.local_addr().port();
    let path = Path::accepted(&port, loopback().ip(), keys, Some(Duration::from_secs(1)));
    let options = SendingOptions {
        config: SendConfig::default(),
        shared_control: SharedControl::default(),
        chunks: 8,
        batch: 64,
        silence: Duration::from_secs(60),
    };
    let sending = Sending::start(port, path, keys, &Model, options).unwrap();
    let says = format!("no datagram (UDP) of 127.0.0.1 came to port {own} within 1 s; a firewall may drop them");
    assert_eq!(sending.opened().await, Err(Failure::Closed(says)));
}

#[tokio::test]
async fn source_that_pauses_is_no_silent_peer() {
    let silence = Duration::from_millis(300);
    let (receiving, addr) = receiving(Seal::Encrypt);
    let sending = sending(addr, Seal::Encrypt, silence);
    (0..4).for_each(|_| sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize])));
    for number in 0..3 {
        tokio::time::sleep(2 * silence).await;
        sending.push(chunk(number, 1438)).await.unwrap();
        receiving.announce(number, 1438).unwrap();
        assert_eq!(receiving.next().await.unwrap().number, number);
    }
    sending.finish();
    sending.arrived().await.unwrap();
}

#[tokio::test]
async fn peer_with_one_buffer_at_a_time_is_not_out_of_buffers() {
    let silence = Duration::from_millis(600);
    let (receiving, addr) = receiving(Seal::Encrypt);
    let sending = Arc::new(sending(addr, Seal::Encrypt, silence));
    // More chunks wait than there is credit for, all the time.
    let source = sending.clone();
    let source = tokio::spawn(async move {
        for number in 0..40 {
            source.push(chunk(number, 1438)).await?;
        }
        source.finish();
        source.arrived().await
    });
    for number in 0..40 {
        sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize]));
        receiving.announce(number, 1438).unwrap();
        assert_eq!(receiving.next().await.unwrap().number, number);
        tokio::time::sleep(silence / 12).await;
    }
    source.await.unwrap().unwrap();
}

/// A path that repeats every acknowledgement for ever, and loses everything else from some time on.
#[tokio::test]
async fn repeated_acknowledgements_keep_no_transfer_alive() {
    let (receiving, addr) = receiving(Seal::Encrypt);
    let path = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
    let sending = sending(path.local_addr().unwrap(), Seal::Encrypt, Duration::from_secs(1));
    (0..4).for_each(|_| sending.raise_credit(receiving.grant(vec![0; SHAPE.chunk_len as usize])));
    sending.push(chunk(0, 1438)).await.unwrap();
    receiving.announce(0, 1438).unwrap();
    let path = async {
        let (mut datagram, mut sender, mut ack) = ([0; 2000], None, Vec::new());
        loop {
            let Ok(came) = timeout(Duration::from_millis(20), path.recv_from(&mut datagram)).await else {
                if let Some(sender) = sender.filter(|_| !ack.is_empty()) {
                    path.send_to(&ack, sender).await.unwrap();
                }
                continue;
            };
            let (len, from) = came.unwrap();
            if from == addr && is_check(&datagram) {
                path.send_to(&datagram[..len], sender.unwrap()).await.unwrap();
            } else if from == addr {
                ack = datagram[..len].to_vec();
            } else if ack.is_empty() {
                sender = Some(from);
                path.send_to(&datagram[..len], addr).await.unwrap();
            }
        }
    };
    let transfer = async {
        receiving.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        sending.push(chunk(1, 1438)).await.unwrap();
        sending.finish();
        timeout(Duration::from_secs(30), sending.arrived()).await.unwrap().unwrap_err()
    };
    let failure = tokio::select! {
        failure = transfer => failure,
        () = path => unreachable!("the path never ends"),
    };
    assert!(failure.to_string().contains("has acknowledged nothing new for 1 s"), "{failure}");
}

#[tokio::test]
async fn peer_without_buffers_ends_the_transfer_with_a_reason() {
    let (_receiving, addr) = receiving(Seal::Encrypt);
    let sending = sending(addr, Seal::Encrypt, Duration::from_secs(1));
    sending.push(chunk(0, 5000)).await.unwrap();
    let failure = sending.arrived().await.unwrap_err();
    assert!(failure.to_string().contains("has had no buffer for more for 1 s"), "{failure}");
}

/// Not a test of speed: it prints how fast loopback is, for whoever asks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn speed_on_loopback() {
    for (seal, packet_len) in [(Seal::Encrypt, 1438), (Seal::None, 1438), (Seal::Encrypt, 8938)] {
        let shape = Shape { packet_len, chunk_len: 4 << 20, ..SHAPE };
        let port = Port::bind(loopback()).unwrap();
        let addr = port.local_addr();
        let keys = (shape, seal, &SECRET);
        let path = Path::accepted(&port, addr.ip(), keys, None);
        let receiving = Arc::new(Receiving::<Vec<u8>>::start(port, path, keys).unwrap());
        let config = SendConfig { rtt: Duration::from_millis(1), ..SendConfig::default() };
        let options = SendingOptions {
            config,
            shared_control: SharedControl::default(),
            chunks: 16,
            batch: 64,
            silence: Duration::from_secs(9),
        };
        let port = Port::bind(loopback()).unwrap();
        let path = Path::connected(&port, addr, keys, ANSWER);
        let sending = Arc::new(Sending::start(port, path, keys, &Model, options).unwrap());
        (0..16).for_each(|_| sending.raise_credit(receiving.grant(vec![0; 4 << 20])));
        let bytes = Bytes::from(vec![7; 4 << 20]);
        const CHUNKS: u64 = 500;
        let began = std::time::Instant::now();
        let receiver = tokio::spawn({
            let (sending, receiving) = (sending.clone(), receiving.clone());
            async move {
                for _ in 0..CHUNKS {
                    let received = receiving.next().await.unwrap();
                    sending.raise_credit(receiving.grant(received.buffer));
                }
            }
        });
        for number in 0..CHUNKS {
            assert_eq!(sending.push(bytes.clone()).await, Ok(number));
            receiving.announce(number, 4 << 20).unwrap();
        }
        sending.finish();
        receiver.await.unwrap();
        let seconds = began.elapsed().as_secs_f64();
        let rate = CHUNKS as f64 * f64::from(4 << 20) * 8e-9 / seconds;
        println!(
            "{seal:?}, {packet_len} + {OVERHEAD}: {rate:.2} Gbit/s, {:?}, {:?}",
            sending.counters(),
            receiving.counters()
        );
    }
}
