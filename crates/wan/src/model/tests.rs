//! Timing, drops and byte counts of the model, with packets that know their segment numbers.

use super::*;
use phoebus_proto::units::{ByteSize, Span};
use proptest::prelude::*;
use std::ops::Range;

/// Segments of equal size, the last possibly smaller, that know their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parcel {
    numbers: Range<u64>,
    size: u32,
    last: u32,
}

impl Parcel {
    fn new(first: u64, segments: u64, size: u32, last: u32) -> Self {
        Self { numbers: first..first + segments, size, last }
    }

    /// A packet of one segment; `wire_bytes` includes the framing.
    fn single(number: u64, wire_bytes: u32) -> Self {
        let size = wire_bytes - FRAMING_BYTES as u32;
        Self::new(number, 1, size, size)
    }
}

impl Packet for Parcel {
    fn segments(&self) -> u32 {
        (self.numbers.end - self.numbers.start) as u32
    }

    fn segment_bytes(&self) -> u32 {
        if self.segments() == 1 { self.last } else { self.size }
    }

    fn bytes(&self) -> u64 {
        u64::from(self.segments() - 1) * u64::from(self.size) + u64::from(self.last)
    }

    fn split_off(&mut self, at: u32) -> Self {
        assert!((1..self.segments()).contains(&at), "split of {self:?} at {at}");
        let middle = self.numbers.start + u64::from(at);
        let rest = Self { numbers: middle..self.numbers.end, ..*self };
        *self = Self { numbers: self.numbers.start..middle, size: self.size, last: self.size };
        rest
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn config(change: impl FnOnce(&mut DirectionConfig)) -> DirectionConfig {
    let mut config = DirectionConfig::default();
    change(&mut config);
    config
}

fn one_way(config: DirectionConfig) -> OneWay<Parcel> {
    OneWay::new(config, 1500, 1)
}

/// All arrivals with their times, polling the model at each of its wake-ups.
fn arrivals(way: &mut OneWay<Parcel>) -> Vec<(Duration, Range<u64>)> {
    let mut arrived = Vec::new();
    while let Some(wakeup) = way.next_wakeup() {
        while let Some(parcel) = way.poll(wakeup) {
            arrived.push((wakeup, parcel.numbers));
        }
    }
    arrived
}

#[test]
fn delay_is_exact() {
    let mut way = one_way(config(|c| c.delay = "25ms".parse().unwrap()));
    way.push(ms(3), Parcel::single(0, 1538));
    assert_eq!(way.next_wakeup(), Some(ms(28)));
    assert_eq!(way.poll(ms(28) - Duration::from_nanos(1)), None);
    assert_eq!(way.poll(ms(28)), Some(Parcel::single(0, 1538)));
    assert_eq!(way.next_wakeup(), None);
}

#[test]
fn rate_is_exact_over_any_number_of_packets() {
    // A segment takes 1538·8/7 s, which is no whole number of nanoseconds.
    let mut way = one_way(config(|c| (c.rate, c.queue) = ("7bit".parse().unwrap(), "1GB".parse().unwrap())));
    let segments = 10_000;
    for number in 0..segments {
        way.push(Duration::ZERO, Parcel::single(number, 1538));
    }
    let (last, _) = arrivals(&mut way).pop().unwrap();
    assert_eq!(last.as_nanos(), u128::from(segments) * 1538 * 8 * 1_000_000_000 / 7);
}

#[test]
fn offloaded_packet_is_timed_by_segment_and_split_into_grains() {
    let mut way = one_way(config(|c| c.rate = "100mbit".parse().unwrap()));
    // 1538 bytes take 123.04 µs, so four fit into a grain; the last segment of 538 bytes takes 43.04 µs.
    way.push(ms(1), Parcel::new(0, 9, 1500, 500));
    let ns = |nanos| ms(1) + Duration::from_nanos(nanos);
    assert_eq!(arrivals(&mut way), [(ns(492_160), 0..4), (ns(984_320), 4..8), (ns(1_027_360), 8..9)]);
}

#[test]
fn time_does_not_run_backwards() {
    let mut way = one_way(config(|c| c.delay = "5ms".parse().unwrap()));
    way.poll(ms(10));
    way.push(ms(1), Parcel::single(0, 1538));
    assert_eq!(arrivals(&mut way), [(ms(15), 0..1)]);
}

#[test]
fn full_queue_accepts_the_segments_that_fit() {
    // One segment of 1538 bytes takes 12304 ns; the queue holds four.
    let mut way = one_way(config(|c| (c.rate, c.queue) = ("1gbit".parse().unwrap(), ByteSize(4 * 1538))));
    way.push(Duration::ZERO, Parcel::new(0, 10, 1500, 1500));
    assert_eq!(way.counters(Duration::ZERO).queue_drops, Amount { segments: 6, bytes: 6 * 1538 });
    assert_eq!(way.counters(Duration::ZERO).queue_bytes, 4 * 1538);
    // One has left, so one more fits.
    let later = Duration::from_nanos(12_304);
    way.push(later, Parcel::new(10, 2, 1500, 1500));
    let counters = way.counters(later);
    assert_eq!((counters.queue_drops.segments, counters.queue_bytes), (7, 4 * 1538));
    assert_eq!(counters.queue_bytes_max, 4 * 1538);
    let numbers: Vec<_> = arrivals(&mut way).into_iter().flat_map(|(_, numbers)| numbers).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 10]);
}

#[test]
fn link_without_queue_accepts_what_it_can_send_at_once() {
    let mut way = one_way(config(|c| (c.rate, c.queue) = ("1gbit".parse().unwrap(), ByteSize(0))));
    for number in 0..3 {
        way.push(Duration::ZERO, Parcel::single(number, 1538));
    }
    assert_eq!(arrivals(&mut way), [(Duration::from_nanos(12_304), 0..1)]);
}

#[test]
fn lost_segment_leaves_its_neighbours_intact() {
    let mut way = one_way(config(|c| c.loss = "5%".parse().unwrap()));
    for packet in 0..100 {
        way.push(ms(packet), Parcel::new(packet * 40, 40, 1500, 700));
    }
    let runs = arrivals(&mut way);
    // The same random draws, segment by segment.
    let mut singles = one_way(config(|c| c.loss = "5%".parse().unwrap()));
    for number in 0..4000 {
        singles.push(ms(number), Parcel::single(number, 1538));
    }
    let survivors: Vec<_> = arrivals(&mut singles).into_iter().flat_map(|(_, numbers)| numbers).collect();
    assert!((3700..3900).contains(&survivors.len()), "{} of 4000 survived", survivors.len());
    assert_eq!(runs.iter().cloned().flat_map(|(_, numbers)| numbers).collect::<Vec<_>>(), survivors);
    // Packets are split only at lost segments.
    let cut = |(now, numbers): &(Duration, Range<u64>)| {
        let packet = numbers.start / 40;
        *now == ms(packet) && (numbers.start % 40 == 0 || !survivors.contains(&(numbers.start - 1)))
    };
    assert!(runs.iter().all(cut));
}

#[test]
fn seed_determines_losses_independently_of_jitter() {
    let lost = |seed, jitter: &str| {
        let config = config(|c| (c.loss, c.jitter) = ("10%".parse().unwrap(), jitter.parse().unwrap()));
        let mut way = OneWay::new(config, 1500, seed);
        (0..1000).for_each(|number| way.push(ms(number), Parcel::single(number, 1538)));
        arrivals(&mut way).into_iter().map(|(_, numbers)| numbers.start).collect::<Vec<_>>()
    };
    assert_eq!(lost(1, "0"), lost(1, "0"));
    assert_eq!(lost(1, "0"), lost(1, "5ms"));
    assert_ne!(lost(1, "0"), lost(2, "0"));
}

#[test]
fn directions_have_independent_losses() {
    let mut link = Link::new(&LinkConfig::symmetric(1, config(|c| c.loss = "50%".parse().unwrap())));
    let [forward, backward] = Direction::BOTH.map(|direction| {
        let way = link.way(direction);
        (0..100).for_each(|number| way.push(ms(number), Parcel::single(number, 1538)));
        arrivals(way)
    });
    assert_ne!(forward, backward);
}

#[test]
fn jitter_keeps_order_unless_told_otherwise() {
    for reorder in [false, true] {
        let jittery = config(|c| {
            (c.delay, c.jitter, c.reorder) = ("10ms".parse().unwrap(), "2ms".parse().unwrap(), reorder);
        });
        let mut way = one_way(jittery);
        for packet in 0..1000 {
            way.push(us(packet * 200), Parcel::new(packet * 2, 2, 1500, 1500));
        }
        let arrived = arrivals(&mut way);
        let segments: Vec<_> =
            arrived.into_iter().flat_map(|(at, numbers)| numbers.map(move |number| (at, number))).collect();
        assert_eq!(segments.len(), 2000);
        assert!(segments.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(segments.is_sorted_by_key(|(_, number)| *number), !reorder);
        for (at, number) in segments {
            let sent = us(number / 2 * 200);
            assert!((ms(8)..=ms(12)).contains(&(at - sent)), "segment {number} took {:?}", at - sent);
        }
    }
}

#[test]
fn new_rate_applies_to_queued_packets() {
    let mut way = one_way(config(|c| c.rate = "1mbit".parse().unwrap()));
    // One second of data at this rate; half of it is sent when the rate becomes ten times as high.
    let segments = 100;
    (0..segments).for_each(|number| way.push(Duration::ZERO, Parcel::single(number, 1250)));
    way.update(ms(500), &DirectionUpdate { rate: "10mbit".parse().ok(), ..Default::default() });
    let arrived = arrivals(&mut way);
    assert_eq!((arrived.len(), arrived.last()), (100, Some(&(ms(550), 99..100))));
}

#[test]
fn unlimited_rate_empties_the_queue() {
    let mut way = one_way(config(|c| c.rate = "1mbit".parse().unwrap()));
    way.push(Duration::ZERO, Parcel::new(0, 40, 1500, 1500));
    way.update(ms(1), &DirectionUpdate { rate: Some(Rate::Unlimited), ..Default::default() });
    assert_eq!(way.counters(ms(1)).queue_bytes, 0);
    assert_eq!(arrivals(&mut way).last().map(|(at, _)| *at), Some(ms(1)));
}

#[test]
fn shorter_delay_does_not_reorder() {
    let mut way = one_way(config(|c| c.delay = "100ms".parse().unwrap()));
    way.push(ms(0), Parcel::single(0, 1538));
    way.update(ms(1), &DirectionUpdate { delay: "1ms".parse().ok(), ..Default::default() });
    way.push(ms(1), Parcel::single(1, 1538));
    assert_eq!(arrivals(&mut way), [(ms(100), 0..1), (ms(100), 1..2)]);
}

#[test]
fn cut_drops_packets_in_flight_and_new_ones_until_healed() {
    let both = config(|c| (c.rate, c.delay) = ("1mbit".parse().unwrap(), "50ms".parse().unwrap()));
    let mut link = Link::new(&LinkConfig::symmetric(0, both));
    let segment = |number| Parcel::single(number, 1250); // 10 ms each
    (0..4).for_each(|number| link.way(Direction::Forward).push(ms(0), segment(number)));
    link.cut(ms(25)); // two on the wire, one being sent, one waiting
    assert_eq!(link.next_wakeup(), None);
    link.way(Direction::Backward).push(ms(26), segment(9));
    assert!(link.counters(ms(27)).cut);
    link.heal();
    link.way(Direction::Forward).push(ms(100), segment(4));
    let counters = link.counters(ms(100));
    assert_eq!(counters.forward.cut_drops, Amount { segments: 4, bytes: 5000 });
    assert_eq!(counters.backward.cut_drops, Amount { segments: 1, bytes: 1250 });
    assert!(!counters.cut);
    assert_eq!(arrivals(link.way(Direction::Forward)), [(ms(160), 4..5)]);
}

#[test]
fn packet_above_the_mtu_is_dropped() {
    let mut way = one_way(DirectionConfig::default());
    let big = Parcel::new(0, 2, 1501, 10);
    way.push(ms(0), big.clone());
    way.push(ms(0), Parcel::new(2, 2, 1500, 10));
    assert_eq!(way.counters(ms(0)).oversize_drops, big.amount());
    assert_eq!(arrivals(&mut way), [(ms(0), 2..4)]);
}

#[test]
fn counters_are_json() {
    let mut link = Link::new(&LinkConfig::default());
    link.way(Direction::Forward).push(ms(0), Parcel::single(0, 1538));
    let counters = link.counters(ms(0));
    let json = serde_json::to_value(counters).unwrap();
    assert_eq!(json["forward"]["entered"]["bytes"], 1538);
    assert_eq!(serde_json::from_value::<LinkCounters>(json).unwrap(), counters);
}

/// An event on a link, some time after the previous one.
#[derive(Debug, Clone)]
enum Event {
    Push { segments: u64, last: u32 },
    Poll,
    Update(DirectionUpdate),
    Cut,
    Heal,
}

fn events() -> impl Strategy<Value = Vec<(Duration, Event)>> {
    let loss = prop_oneof![
        Just("0%"),
        Just("20%"),
        Just("100%"),
        Just("to_bad=5%,to_good=30%"),
        Just("to_bad=5%,to_good=30%,loss_good=1%,loss_bad=60%")
    ];
    let rate = prop_oneof![Just("unlimited"), Just("1mbit"), Just("333mbit"), Just("10gbit")];
    let update = (loss, rate, 0..20_000u64, 0..30_000_000u64, 0..10_000_000u64, any::<bool>());
    let update = update.prop_map(|(loss, rate, queue, delay, jitter, reorder)| DirectionUpdate {
        loss: loss.parse().ok(),
        rate: rate.parse().ok(),
        queue: Some(ByteSize(queue)),
        delay: Some(Span(Duration::from_nanos(delay))),
        jitter: Some(Span(Duration::from_nanos(jitter))),
        reorder: Some(reorder),
    });
    let event = prop_oneof![
        20 => (1..45u64, 1..1500u32).prop_map(|(segments, last)| Event::Push { segments, last }),
        20 => Just(Event::Poll),
        2 => update.prop_map(Event::Update),
        1 => Just(Event::Cut),
        2 => Just(Event::Heal),
    ];
    proptest::collection::vec(((0..2_000_000u64).prop_map(Duration::from_nanos), event), 1..120)
}

/// Applies `events` to a link and returns the segments that arrived and the final counters. After each event
/// it checks that every segment and byte is accounted for. If `prompt`, it polls the model at each wake-up,
/// otherwise only at the polls among the events.
fn run(events: &[(Duration, Event)], prompt: bool) -> (Vec<u64>, DirectionCounters) {
    let mut way = OneWay::new(DirectionConfig::default(), 1500, 99);
    let (mut now, mut pushed, mut arrived) = (Duration::ZERO, 0, Vec::new());
    let drain = |way: &mut OneWay<Parcel>, now, arrived: &mut Vec<u64>| {
        while let Some(parcel) = way.poll(now) {
            arrived.extend(parcel.numbers);
        }
    };
    for (pause, event) in events {
        now += *pause;
        while let Some(wakeup) = way.next_wakeup().filter(|wakeup| prompt && *wakeup <= now) {
            drain(&mut way, wakeup, &mut arrived);
        }
        match event {
            Event::Push { segments, last } => {
                way.push(now, Parcel::new(pushed, *segments, 1448, *last.min(&1448)));
                pushed += segments;
            }
            Event::Poll => drain(&mut way, now, &mut arrived),
            Event::Update(update) => way.update(now, update),
            Event::Cut => {
                drain(&mut way, now, &mut arrived);
                way.cut(now);
            }
            Event::Heal => way.heal(),
        }
        let c = way.counters(now);
        assert_eq!(c.entered.segments, c.delivered.segments + c.dropped().segments + c.held.segments);
        assert_eq!(c.entered.bytes, c.delivered.bytes + c.dropped().bytes + c.held.bytes);
        assert!(c.queue_bytes <= c.held.bytes && c.queue_bytes <= c.queue_bytes_max);
    }
    while let Some(wakeup) = way.next_wakeup() {
        now = now.max(wakeup);
        drain(&mut way, now, &mut arrived);
    }
    let counters = way.counters(now);
    assert_eq!((counters.held, counters.queue_bytes), (Amount::default(), 0));
    assert_eq!(counters.delivered.segments, arrived.len() as u64);
    (arrived, counters)
}

proptest! {
    #[test]
    fn every_segment_is_accounted_for_and_none_is_delivered_twice(events in events()) {
        let (mut arrived, _) = run(&events, true);
        let ordered = events.iter().all(|(_, event)| !matches!(event, Event::Update(u) if u.reorder == Some(true)));
        prop_assert!(!ordered || arrived.is_sorted());
        arrived.sort_unstable();
        prop_assert!(arrived.windows(2).all(|pair| pair[0] < pair[1]), "a segment arrived twice");
    }

    #[test]
    fn late_polls_change_nothing(events in events()) {
        let (prompt, late) = (run(&events, true), run(&events, false));
        prop_assert_eq!(prompt, late);
    }
}
