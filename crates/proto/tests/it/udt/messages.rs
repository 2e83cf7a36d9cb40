//! Tests of message mode: ordered and unordered messages, with and without a time to live, over links that lose and
//! reorder.

use super::host::{App, Faults, Net};
use super::link;
use super::transfer::{NEAR_THE_END, config, start};
use phoebus_proto::control::{Factory, Model, Native};
use phoebus_proto::udt::{Config, Connection, Kind, MessageOptions, SendError};
use phoebus_wan::model::{LinkConfig, Rng};
use phoebus_wan::sim::End;
use std::collections::VecDeque;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const IN_ORDER: MessageOptions = MessageOptions { in_order: true, time_to_live: None };
const UNORDERED: MessageOptions = MessageOptions { in_order: false, time_to_live: None };

/// An application that sends messages, and verifies and records those that it receives.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    to_send: VecDeque<(u32, usize, MessageOptions)>,
    /// Numbers of received messages, in the order of reading.
    got: Vec<u32>,
}

/// The message with this number: its number, and pseudo-random bytes that depend on it.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(number) + 1);
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((4..len).map(|_| rng.next_u64() as u8));
    bytes
}

impl Mail {
    pub(crate) fn run(&mut self, now: Duration, connection: &mut Connection) {
        while let Some((number, len, options)) = self.to_send.front().filter(|_| connection.is_open()) {
            match connection.send_message(now, &message(*number, *len), *options) {
                Ok(()) => drop(self.to_send.pop_front()),
                Err(error) => {
                    assert_eq!(error, SendError::Full);
                    break;
                }
            }
        }
        while let Some(len) = connection.message_len() {
            let mut out = vec![0; len];
            assert_eq!(connection.read_message(&mut out), Ok(len));
            let number = u32::from_be_bytes(out[..4].try_into().unwrap());
            assert!(out == message(number, len), "message {number} was changed");
            self.got.push(number);
        }
    }
}

/// Lengths of messages: 4 bytes to 60 kB, most of them short.
fn lengths(seed: u64, count: u32) -> Vec<usize> {
    let mut rng = Rng::new(seed);
    let mut len = || 4 + ((rng.next_u64() % 60_000) >> (rng.next_u64() % 10)) as usize;
    (0..count).map(|_| len()).collect()
}

/// Starts to send messages from a to b.
fn send(seed: u64, link: &LinkConfig, control: impl Factory + 'static, mail: Vec<(usize, MessageOptions)>) -> Net {
    let config = Config { kind: Kind::Message, ..config(control) };
    let mut net = start(seed, link, config, App::default());
    let to_send = mail.into_iter().enumerate().map(|(n, (len, options))| (n as u32, len, options)).collect();
    let host = net.sim.node_mut(net.a);
    host.connections.values_mut().next().unwrap().mail = Some(Mail { to_send, got: vec![] });
    net.sim.node_mut(net.b).takes_mail = true;
    for id in [net.a, net.b] {
        net.sim.node_mut(id).faults = Faults { duplicate: 0.02, ..Faults::default() };
    }
    net
}

/// Runs until a has sent everything, and returns the messages that b has read.
fn delivered(net: &mut Net, limit: Duration) -> Vec<u32> {
    let (a, b) = (net.a, net.b);
    let end = net.sim.run(limit, |sim| {
        let slot = sim.node(a).only();
        slot.connection.is_flushed() && slot.mail.as_ref().is_some_and(|mail| mail.to_send.is_empty())
    });
    let stats = net.sim.node(a).only().connection.stats();
    assert_eq!(end, End::Met, "not all was acknowledged at {:?}: {stats:?}", net.sim.now());
    assert!(net.sim.node(b).only().connection.is_open());
    net.sim.node(b).only().mail.as_ref().unwrap().got.clone()
}

fn bad_link(seed: u64, loss: &str) -> LinkConfig {
    let mut link = link(seed, "20ms", "50mbit", loss);
    for direction in [&mut link.forward, &mut link.backward] {
        direction.jitter = "5ms".parse().unwrap();
        direction.reorder = true;
    }
    link
}

#[test]
fn ordered_messages_arrive_in_order() {
    for (seed, loss) in [(1, "0%"), (2, "1%"), (3, "10%"), (4, "to_bad=0.5%,to_good=20%")] {
        let mail: Vec<_> = lengths(seed, 400).into_iter().map(|len| (len, IN_ORDER)).collect();
        let mut net = send(seed, &bad_link(seed, loss), Model, mail);
        assert_eq!(delivered(&mut net, 300 * SECOND), (0..400).collect::<Vec<_>>(), "{loss}");
    }
}

#[test]
fn unordered_messages_arrive_once_and_may_overtake_each_other() {
    for (seed, loss) in [(1, "1%"), (2, "5%"), (3, "10%")] {
        let mail: Vec<_> = lengths(seed, 400).into_iter().map(|len| (len, UNORDERED)).collect();
        let mut net = send(seed, &bad_link(seed, loss), Native, mail);
        let mut got = delivered(&mut net, 300 * SECOND);
        assert!(!got.is_sorted(), "no message has overtaken another with {loss} loss");
        got.sort_unstable();
        assert_eq!(got, (0..400).collect::<Vec<_>>(), "{loss}");
    }
}

#[test]
fn ordered_message_arrives_after_all_messages_sent_before_it() {
    for seed in 1..6 {
        let options = |n: usize| if n.is_multiple_of(5) { IN_ORDER } else { UNORDERED };
        let mail = lengths(seed, 400).into_iter().enumerate().map(|(n, len)| (len, options(n))).collect();
        let mut net = send(seed, &bad_link(seed, "5%"), Model, mail);
        let got = delivered(&mut net, 300 * SECOND);
        assert_eq!(got.len(), 400);
        for (at, number) in got.iter().enumerate().filter(|(_, number)| number.is_multiple_of(5)) {
            let before = got[..at].iter().filter(|other| *other < number).count();
            assert_eq!(before as u32, *number, "seed {seed}: {number} arrived before a message that was sent earlier");
        }
    }
}

#[test]
fn expired_messages_are_dropped_and_do_not_block_others() {
    for seed in 1..9 {
        // The messages together take ten times their time to live on the link.
        let expiring = |in_order| MessageOptions { in_order, time_to_live: Some(Duration::from_millis(300)) };
        let options = |n: usize| match n % 8 {
            0 => IN_ORDER,
            n => expiring(n % 2 == 0),
        };
        let mail = lengths(seed, 400).into_iter().enumerate().map(|(n, len)| (len, options(n))).collect();
        let mut link = bad_link(seed, "3%");
        link.forward.rate = "2mbit".parse().unwrap();
        let mut net = send(seed, &link, Model, mail);
        let got = delivered(&mut net, 300 * SECOND);
        let kept: Vec<u32> = got.iter().copied().filter(|number| number.is_multiple_of(8)).collect();
        assert_eq!(
            kept,
            (0..400).step_by(8).collect::<Vec<_>>(),
            "seed {seed}: messages without a time to live arrive in order"
        );
        let mut once = got.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), got.len(), "seed {seed}: a message arrived twice");
        assert!(got.len() < 350, "seed {seed}: {} of 400 in ten times the time to live", got.len());
        assert!(got.len() > 50, "seed {seed}: nothing with a time to live arrives at all");
        assert!(net.sim.node(net.a).only().connection.stats().messages_dropped > 50);
    }
}

#[test]
fn sequence_numbers_wrap_in_message_mode() {
    for seed in NEAR_THE_END {
        let mail: Vec<_> = lengths(seed, 400).into_iter().map(|len| (len, IN_ORDER)).collect();
        let mut net = send(seed, &bad_link(seed, "2%"), Model, mail);
        assert_eq!(delivered(&mut net, 300 * SECOND).len(), 400);
        assert!(net.sim.node(net.a).only().connection.stats().packets_sent > 1500, "too few packets to wrap");
    }
}
