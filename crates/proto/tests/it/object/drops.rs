//! Packets that the receiving host had no room for: they are repaired, and say nothing about the path.

use super::SHAPE;
use phoebus_proto::control::{Ack as Acked, Controller, Factory, Loss, Pace, Path, Reaction, Tolerant};
use phoebus_proto::object::{Ack, Receiver, SendConfig, Sender};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A control that counts the losses that it is told of.
#[derive(Debug, Clone, Default)]
struct Counting(Arc<AtomicU32>);

impl Factory for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn build(&self, _: Duration, _: &Path) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

impl Controller for Counting {
    fn on_ack(&mut self, _: Duration, _: &Path, _: &Acked) {}

    fn on_loss(&mut self, _: Duration, _: &Path, loss: &Loss) {
        self.0.fetch_add(loss.count, Ordering::Relaxed);
    }

    fn pace(&self) -> Pace {
        Pace { interval: 100_000.0, window: 10_000 }
    }
}

/// Losses that the sender found, and those that it told its control of, if the receiver reports so many `drops`.
fn losses(drops: u64) -> (u64, u32) {
    let control = Counting::default();
    let (mut sender, mut receiver) =
        (Sender::new(Duration::ZERO, SHAPE, SendConfig::default(), &control), Receiver::new(SHAPE));
    receiver.grant(Duration::ZERO);
    sender.raise_credit(receiver.credit());
    sender.push(SHAPE.chunk_len);
    let (mut now, mut sent) = (Duration::ZERO, 0);
    // The first acknowledgement gives the round trip, and the second tells of what is missing.
    for round in 1..=2 {
        for _ in 0..200 {
            now += Duration::from_micros(100);
            while let Some(transmit) = sender.poll_transmit(now) {
                sent += 1;
                if round == 1 || !(250..280).contains(&sent) {
                    receiver.place(&transmit.header, transmit.len).unwrap();
                    receiver.arrived(now + Duration::from_millis(20), &transmit.header, transmit.len);
                }
            }
        }
        now += Duration::from_millis(40);
        if round == 2 {
            receiver.dropped(drops);
        }
        let mut out = Vec::new();
        while receiver.poll_transmit(now, 1200, &mut out).is_some() {
            sender.handle_ack(now, &Ack::decode(&out).unwrap()).unwrap();
            out.clear();
        }
    }
    (sender.counters().lost, control.0.load(Ordering::Relaxed))
}

#[test]
fn drops_of_the_receiving_host_are_repaired_and_no_losses_to_the_control() {
    let (lost, told) = losses(0);
    assert!(lost >= 20 && u64::from(told) == lost, "{lost} lost, {told} told");
    assert_eq!(losses(1), (lost, 0));
}

/// Packets in flight when the receiver no longer acknowledges, after a round trip of 10 ms at 10 000 packets a second.
fn most_in_flight(socket_room: u64) -> u32 {
    let config = SendConfig { socket_room, ..SendConfig::default() };
    let (mut sender, mut receiver) =
        (Sender::new(Duration::ZERO, SHAPE, config, &Counting::default()), Receiver::new(SHAPE));
    for _ in 0..20 {
        receiver.grant(Duration::ZERO);
        sender.push(SHAPE.chunk_len);
    }
    sender.raise_credit(receiver.credit());
    let transmit = sender.poll_transmit(Duration::ZERO).unwrap();
    let mut now = Duration::from_millis(10);
    receiver.arrived(now, &transmit.header, transmit.len);
    now += SHAPE.ack_interval;
    let mut out = Vec::new();
    receiver.poll_transmit(now, 1200, &mut out).unwrap();
    sender.handle_ack(now, &Ack::decode(&out).unwrap()).unwrap();
    for _ in 0..10_000 {
        now += Duration::from_micros(100);
        while sender.poll_transmit(now).is_some() {}
    }
    sender.in_flight()
}

#[test]
fn no_more_waits_at_the_receiving_host_than_its_socket_holds() {
    let packet = u64::from(SHAPE.packet_len + SendConfig::default().overhead);
    // The path holds 100 packets.
    assert_eq!(most_in_flight(300 * packet), 250 + 300);
    assert_eq!(most_in_flight(0), 250);
    assert_eq!(most_in_flight(u64::MAX), 10_000);
}

/// The rate of `control=loss` in packets per second, each second, to a host that takes at most `each_ms` packets in a millisecond
/// and reports that it dropped the others. The round trip is 40 ms, and everything to send is there from the beginning.
fn rates(each_ms: usize, seconds: u64) -> Vec<f64> {
    let tolerant = Tolerant { share: 0.01, reaction: Reaction::History };
    let mut sender = Sender::new(Duration::ZERO, SHAPE, SendConfig::default(), &tolerant);
    let mut receiver = Receiver::new(SHAPE);
    for _ in 0..5000 {
        receiver.grant(Duration::ZERO);
        sender.push(SHAPE.chunk_len);
    }
    sender.raise_credit(receiver.credit());
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let (delay, mut drops, mut rates) = (Duration::from_millis(20), 0, Vec::new());
    for millis in 0..1000 * seconds {
        let now = Duration::from_millis(millis);
        while let Some((_, bytes)) = back.pop_front_if(|(at, _): &mut (Duration, Vec<u8>)| *at <= now) {
            sender.handle_ack(now, &Ack::decode(&bytes).unwrap()).unwrap();
        }
        while sender.poll_arrived().is_some() {}
        sender.handle_timeout(now);
        while let Some(transmit) = sender.poll_transmit(now) {
            there.push_back((now + delay, transmit));
        }
        let mut taken = 0;
        while let Some((_, transmit)) = there.pop_front_if(|(at, _)| *at <= now) {
            taken += 1;
            if taken > each_ms {
                drops += 1;
            } else if receiver.place(&transmit.header, transmit.len).is_ok() {
                receiver.arrived(now, &transmit.header, transmit.len);
            }
        }
        receiver.dropped(drops);
        loop {
            let mut out = Vec::new();
            if receiver.poll_transmit(now, 1200, &mut out).is_none() {
                break;
            }
            back.push_back((now + delay, out));
        }
        if millis % 1000 == 999 {
            rates.push(sender.rate() / 8.0 / 1500.0);
        }
    }
    rates
}

#[test]
fn tolerant_control_does_not_outrun_a_host_that_drops() {
    let rates = rates(5, 40);
    assert!(rates.iter().skip(5).all(|rate| (3000.0..7500.0).contains(rate)), "{rates:?}");
}

#[test]
fn tolerant_control_starts_when_everything_is_there_at_once() {
    let rates = rates(40, 3);
    assert!(rates[1] > 20_000.0, "{rates:?}");
}
