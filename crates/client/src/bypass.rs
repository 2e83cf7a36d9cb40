//! Remembers destinations with short paths, in a file shared with the preload shim (S26; [`phoebus_config::bypass`]).
//!
//! A file that cannot be read or written only costs the detour through gateways; it is no error.

use crate::options::Options;
use phoebus_config::bypass::{FILE_MAX, LINE_MAX, Measurement, recall};
use phoebus_proto::endpoint::Host;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The round trip of an earlier session, if it was short enough to connect directly.
pub(crate) fn short(options: &Options, destination: &Host) -> Option<Duration> {
    if options.bypass_rtt.is_zero() {
        return None;
    }
    let mut memory = Vec::new();
    fs::File::open(options.cache.as_ref()?).ok()?.take(FILE_MAX as u64).read_to_end(&mut memory).ok()?;
    recall(&memory, destination.as_ref(), &options.path, now()).filter(|rtt| *rtt < options.bypass_rtt)
}

/// Remembers the round trip of a session.
pub(crate) fn remember(options: &Options, destination: &Host, rtt_us: u64) {
    // A hop that could not measure reports 0. Without direct connections, no memory is needed.
    if options.bypass_rtt.is_zero() || rtt_us == 0 {
        return;
    }
    let measured = Measurement { at: now(), destination: destination.as_ref(), rtt_us, path: &options.path };
    let mut line = [0; LINE_MAX];
    if let (Some(len), Some(file)) = (measured.write(&mut line), &options.cache) {
        let _ = append(file, &line[..len]);
    }
}

fn append(file: &Path, line: &[u8]) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut memory = OpenOptions::new().create(true).append(true).open(file)?;
    if memory.metadata()?.len() as usize + line.len() > FILE_MAX {
        memory.set_len(0)?;
    }
    // One write, so that the lines of concurrent programs do not interleave.
    memory.write_all(line)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Endpoint;

    #[test]
    fn bypass_remembers_short_paths_and_bounds_the_file() {
        let home = tempfile::tempdir().unwrap();
        let options = Options {
            path: Endpoint::parse_path("pg1").unwrap(),
            cache: Some(home.path().join("a/b/bypass")),
            bypass_rtt: Duration::from_millis(2),
            ..Options::default()
        };
        let (near, far): (Host, Host) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!(short(&options, &near), None);
        remember(&options, &near, 1500);
        remember(&options, &far, 2000);
        remember(&options, &near, 0);
        assert_eq!(short(&options, &near), Some(Duration::from_micros(1500)));
        assert_eq!(short(&options, &far), None);
        for _ in 0..FILE_MAX / 30 {
            remember(&options, &far, 7000);
        }
        assert!(fs::metadata(options.cache.as_ref().unwrap()).unwrap().len() as usize <= FILE_MAX);
        let off = Options { bypass_rtt: Duration::ZERO, ..options };
        assert_eq!(short(&off, &near), None);
    }
}
