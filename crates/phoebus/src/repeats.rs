//! A limit on repeated log lines, so that nobody can fill the disk or hide other lines.
//!
//! Lines of level `info` are records (a session, a login, a successful transfer) and are all written, except those of
//! the targets in [`BOUNDED`]: clients' texts, refusals and failures, and resets of beacons. Of these, and of all lines
//! of other levels, a fixed number of one kind from one source is written in a minute, and ten times as many of one
//! kind from all sources. A kind is a place in the program. A source is the address in the line (one /64 of IPv6), or
//! the name. The first line after the minute is preceded by the number of omitted lines.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The targets of `info` lines that others can cause as often as they like.
const BOUNDED: [&str; 4] = [
    phoebus_gridftp::server::CLIENT_SAYS,
    phoebus_gridftp::server::NOT_DONE,
    phoebus_gateway::REFUSED,
    phoebus_gateway::SUSPICION,
];
/// The target of lines about lines.
const OWN: &str = "phoebus::log";
/// For how long lines are counted.
const PERIOD: Duration = Duration::from_secs(60);
/// How many sources may cause all of their lines of one kind in that time.
const SOURCES: u32 = 10;
/// Bytes of a line by which it is known when others like it were left out, and of a source.
const LIKE_MAX: usize = 200;

/// The layer that leaves lines out.
pub(crate) struct Repeats {
    lines: u32,
    /// The clock.
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    kinds: Mutex<Kinds>,
}

/// Lines of each kind since its first.
#[derive(Default)]
struct Kinds {
    kinds: HashMap<Identifier, Kind>,
    /// End of the first minute.
    next_end: Option<Instant>,
}

struct Kind {
    end: Instant,
    level: Level,
    like: String,
    written: u32,
    sources: HashMap<String, Count>,
    left_out: u64,
}

#[derive(Default)]
struct Count {
    written: u32,
    left_out: u64,
}

/// Lines that were left out.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    level: Level,
    lines: u64,
    like: String,
    /// Whose most were.
    from: String,
}

impl Repeats {
    /// Lets `lines` lines of one kind and source through in a minute.
    pub(crate) fn new(lines: u32) -> Self {
        Self { lines, clock: Box::new(Instant::now), kinds: Mutex::default() }
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == OWN {
            return true;
        }
        let (now, is_record) =
            ((self.clock)(), *metadata.level() == Level::INFO && !BOUNDED.contains(&metadata.target()));
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = kinds.forget(now);
        let is_written = is_record || {
            let mut line = Line::default();
            event.record(&mut line);
            kinds.take(now + PERIOD, metadata, line, self.lines)
        };
        // These lines come here, too.
        drop(kinds);
        for LeftOut { level, lines, like, from } in left_out {
            if level == Level::ERROR {
                tracing::error!(target: OWN, lines, like, from, "lines were left out in the last minute");
            } else {
                tracing::warn!(target: OWN, lines, like, from, "lines were left out in the last minute");
            }
        }
        is_written
    }
}

impl Kinds {
    /// Whether a line may be written. It is counted with those before it; if there are none, until `end`.
    fn take(&mut self, end: Instant, metadata: &Metadata<'_>, line: Line, most: u32) -> bool {
        let (level, Line { message, source }) = (*metadata.level(), line);
        let kind = self.kinds.entry(metadata.callsite()).or_insert_with(|| Kind {
            end,
            level,
            like: message,
            written: 0,
            sources: HashMap::new(),
            left_out: 0,
        });
        self.next_end = Some(self.next_end.map_or(kind.end, |next| next.min(kind.end)));
        let is_full = kind.written >= most.saturating_mul(SOURCES);
        // No more sources are known than have lines.
        if is_full && !kind.sources.contains_key(&source) {
            kind.left_out += 1;
            return false;
        }
        let count = kind.sources.entry(source).or_default();
        if is_full || count.written >= most {
            kind.left_out += 1;
            count.left_out += 1;
            return false;
        }
        kind.written += 1;
        count.written += 1;
        true
    }

    /// Forgets kinds whose minute is over.
    fn forget(&mut self, now: Instant) -> Vec<LeftOut> {
        if self.next_end.is_none_or(|end| now < end) {
            return Vec::new();
        }
        let mut left_out = Vec::new();
        for (_, kind) in self.kinds.extract_if(|_, kind| kind.end <= now) {
            if kind.left_out > 0 {
                let most = kind.sources.into_iter().max_by_key(|(_, count)| count.left_out);
                let from = most.map(|(source, _)| source).unwrap_or_default();
                left_out.push(LeftOut { level: kind.level, lines: kind.left_out, like: kind.like, from });
            }
        }
        self.next_end = self.kinds.values().map(|kind| kind.end).min();
        left_out
    }
}

/// Kind and source of a line.
#[derive(Default)]
struct Line {
    message: String,
    source: String,
}

impl Visit for Line {
    /// As it is: Debug would put it in quotation marks.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = brief(value),
            "peer" | "from" => self.source = source(brief(value)),
            _ => {}
        }
    }
}

/// The start of `value`.
fn brief(value: &dyn fmt::Debug) -> String {
    struct Brief(String);
    impl Write for Brief {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                if self.0.len() + c.len_utf8() > LIKE_MAX {
                    return Err(fmt::Error);
                }
                self.0.push(c);
            }
            Ok(())
        }
    }
    let mut brief = Brief(String::new());
    // An error ends the needed part.
    let _ = write!(brief, "{value:?}");
    brief.0
}

/// The address of a client without its port, and for IPv6 without the host's part.
fn source(text: String) -> String {
    let ip = text.parse::<SocketAddr>().map(|addr| addr.ip()).or_else(|_| text.parse::<IpAddr>());
    match ip.map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(ip)) => ip.to_string(),
        Ok(IpAddr::V6(ip)) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tracing_subscriber::layer::SubscriberExt;

    fn line(from: &str) -> Line {
        Line { message: "refused".to_owned(), source: source(from.to_owned()) }
    }

    #[test]
    fn log_limits_hold_for_each_source_and_in_all() {
        let one = tracing::callsite!(name: "one", kind: tracing::metadata::Kind::EVENT, fields:);
        let (metadata, other) = (tracing::Callsite::metadata(one), "192.0.2.1");
        let (mut kinds, start) = (Kinds::default(), Instant::now());
        let mut take = |at: u64, from: &str| {
            let now = start + Duration::from_secs(at);
            let left_out = kinds.forget(now);
            (kinds.take(now + PERIOD, metadata, line(from), 2), left_out)
        };
        let written = |(written, _): (bool, Vec<LeftOut>)| written;
        assert!(written(take(0, "192.0.2.1:1")) && written(take(1, "192.0.2.1:2")));
        assert!(!written(take(2, other)) && !written(take(59, "192.0.2.1:4")));
        let (mut many, mut known) = (0, 0);
        for n in 0..100_000 {
            many += u32::from(written(take(59, &format!("[2001:db8:{:x}:{:x}::{n:x}]:9", n >> 16, n & 0xffff))));
            known = known.max(n);
        }
        assert_eq!(many, 18, "twenty of one kind, two of which had been written");
        let like = || "refused".to_owned();
        let left_out = vec![LeftOut { level: *metadata.level(), lines: 99_984, like: like(), from: other.to_owned() }];
        assert_eq!(take(60, other), (true, left_out), "a minute later it begins anew");
        assert_eq!(kinds.kinds.values().map(|kind| kind.sources.len()).sum::<usize>(), 1);
    }

    #[test]
    fn next_line_counts_the_suppressed_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Mutex::new(file.reopen().unwrap());
        let (start, minutes) = (Instant::now(), Arc::<AtomicU32>::default());
        let clock = {
            let minutes = minutes.clone();
            move || start + PERIOD * minutes.load(Ordering::Relaxed)
        };
        let repeats = Repeats { clock: Box::new(clock), ..Repeats::new(2) };
        let log = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish().with(repeats);
        // Lines about lines are written while another is looked at, which a subscriber of one thread does not take.
        tracing::subscriber::set_global_default(log).unwrap();
        for port in 0..10 {
            tracing::warn!(peer = %SocketAddr::from(([192, 0, 2, 1], port)), "refused");
            tracing::info!(peer = %SocketAddr::from(([192, 0, 2, 1], port)), "transferred");
            tracing::warn!(peer = "pg2", "{}", "unanswered");
            tracing::info!(target: phoebus_gateway::SUSPICION, peer = "pg3", "a beacon was reset");
            tracing::info!(target: phoebus_gateway::REFUSED, from = "192.0.2.3", "session refused");
            tracing::info!(target: phoebus_gridftp::server::NOT_DONE, peer = "192.0.2.1", "not transferred");
            tracing::info!(target: phoebus_gridftp::server::CLIENT_SAYS, peer = "192.0.2.1", "the client says");
        }
        minutes.store(1, Ordering::Relaxed);
        tracing::info!("the end");
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((lines(": refused"), lines(": transferred")), (2, 10), "{text}");
        let last: Vec<&str> = text.lines().rev().take(7).collect();
        assert!(last[0].contains("the end"), "{text}");
        for (like, from) in [
            ("refused", "192.0.2.1"),
            ("unanswered", "pg2"),
            ("a beacon was reset", "pg3"),
            ("session refused", "192.0.2.3"),
            ("not transferred", "192.0.2.1"),
            ("the client says", "192.0.2.1"),
        ] {
            let told = format!("lines=8 like=\"{like}\" from=\"{from}\"");
            let is_told = |line: &&str| line.contains("WARN phoebus::log: lines were left out") && line.contains(&told);
            assert!(last[1..].iter().any(is_told), "{text}");
        }
    }

    #[test]
    fn ipv6_network_is_one_source() {
        let of = |text: &str| source(text.to_owned());
        assert_eq!(of("[2001:db8::1]:5"), of("2001:db8::ffff:1"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
        assert_eq!((of("[::ffff:192.0.2.1]:5"), of("pg2")), ("192.0.2.1".to_owned(), "pg2".to_owned()));
        assert_eq!(brief(&format_args!("{}", "ä".repeat(500))).len(), LIKE_MAX);
    }
}
