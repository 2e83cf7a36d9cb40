//! The file in which a user's known paths outlive a program. A line for each: from, to, bits per second, round trip in
//! microseconds, packets lost of a million, and when that was found, in seconds since 1970.

use phoebus_proto::control::KnownPath;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first line.
const MAGIC: &str = "phoebus paths 1";
/// The highest rate that is believed, in bits per second: that of the fastest links.
const RATE_MAX: u64 = 800_000_000_000;
/// Longest file, in bytes: more than all paths take.
const MAX_FILE: u64 = 256 << 10;

/// A path, and when it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) path: KnownPath,
    pub(super) at: SystemTime,
}

/// Reads the file. What is no line of it is left out: at worst, a rate is found anew.
pub(super) fn read(file: &Path) -> Vec<Line> {
    let is_short = fs::metadata(file).is_ok_and(|meta| meta.len() <= MAX_FILE);
    let text = if is_short { fs::read_to_string(file).unwrap_or_default() } else { String::new() };
    let mut lines = text.lines();
    if lines.next() != Some(MAGIC) {
        return Vec::new();
    }
    lines.filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let [from, to] = [words.next()?, words.next()?].map(|word| word.parse().ok());
    let [bits_per_second, micros, loss, seconds] =
        [words.next()?, words.next()?, words.next()?, words.next()?].map(|word| word.parse::<u64>().ok());
    let loss_per_million = u32::try_from(loss?).ok().filter(|loss| *loss <= 1_000_000)?;
    let path = KnownPath { bits_per_second: bits_per_second?, rtt: Duration::from_micros(micros?), loss_per_million };
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds?))?;
    let is_sane = !path.rtt.is_zero() && path.bits_per_second <= RATE_MAX;
    (words.next().is_none() && is_sane).then_some(Line { from: from?, to: to?, path, at })
}

/// Replaces the file. Only its owner can read it: it says with whom the user has to do.
pub(super) fn write(file: &Path, lines: &[Line]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    // Several transfers, or programs on several hosts, may write at the same time.
    let next = file.with_extension(format!("{}-{}.new", std::process::id(), random()));
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    let mut text = format!("{MAGIC}\n");
    for Line { from, to, path, at } in lines {
        let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let KnownPath { bits_per_second, rtt, loss_per_million } = path;
        text += &format!("{from} {to} {bits_per_second} {} {loss_per_million} {seconds}\n", rtt.as_micros());
    }
    let written = out.write_all(text.as_bytes()).and_then(|()| fs::rename(&next, file));
    if written.is_err() {
        let _ = fs::remove_file(&next);
    }
    written
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // At worst, a name is taken.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_are_read_as_written_and_others_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/paths");
        assert_eq!(read(&file), []);
        let path = KnownPath { bits_per_second: 987_654_321, rtt: Duration::from_micros(50_123), loss_per_million: 7 };
        let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let lines = ["192.0.2.1", "2001:db8::1"].map(|to| Line {
            from: "198.51.100.1".parse().unwrap(),
            to: to.parse().unwrap(),
            path,
            at,
        });
        write(&file, &lines).unwrap();
        assert_eq!(read(&file), lines);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&file).unwrap();
        for bad in ["x y 1 2 3 4", "192.0.2.1 192.0.2.2 1 0 3 4", "192.0.2.1 192.0.2.2 1 2 1000001 4", "", "a"] {
            fs::write(&file, format!("{text}{bad}\n")).unwrap();
            assert_eq!(read(&file), lines, "{bad}");
        }
        fs::write(&file, text.replace("paths 1", "paths 2")).unwrap();
        assert_eq!(read(&file), []);
        for len in 0..text.len() {
            fs::write(&file, &text[..len]).unwrap();
            assert!(read(&file).len() <= 2);
        }
    }
}
