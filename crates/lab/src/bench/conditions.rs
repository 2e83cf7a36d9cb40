//! The conditions on this machine while an experiment runs. They are printed with every table: a figure without its
//! conditions means little, least of all over a WAN (R12, R14).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine: kernel, processors, congestion controls, and the load before the experiment.
pub(crate) fn machine() -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map_or_else(|_| "?".into(), |n| n.to_string());
    let line =
        |path: &str| fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_else(|e| format!("unknown ({e})"));
    let tcp = |key: &str| line(&format!("/proc/sys/net/ipv4/tcp_{key}"));
    let controls = format!(
        "{} by default, {} allowed, {} available",
        tcp("congestion_control"),
        tcp("allowed_congestion_control"),
        tcp("available_congestion_control")
    );
    let mut facts = vec![
        ("kernel".to_owned(), format!("Linux {}", line("/proc/sys/kernel/osrelease"))),
        ("processors".to_owned(), format!("{cores} × {}, shared by all programs and the emulated links", processor())),
        ("congestion control of the machine".to_owned(), controls),
        ("load before".to_owned(), line("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")),
        ("phoebus".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    if cfg!(debug_assertions) {
        facts.push(("build".to_owned(), "with debug assertions: not for comparison".to_owned()));
    }
    facts
}

/// The versions of programs: for each, the first line with a digit in the output of `program argument`.
pub(crate) fn versions(programs: &[(&str, &str)]) -> Vec<(String, String)> {
    let version = |program: &str, argument: &str| {
        let output = match Command::new(program).arg(argument).output() {
            Ok(output) => [output.stdout, output.stderr].concat(),
            Err(error) => return format!("did not start: {error}"),
        };
        let text = String::from_utf8_lossy(&output);
        text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())).unwrap_or("unknown").trim().to_owned()
    };
    programs.iter().map(|(program, argument)| ((*program).to_owned(), version(program, argument))).collect()
}

/// The type of the file system that contains `path`, such as "ext4", according to proc_pid_mountinfo(5).
pub(crate) fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    type_in(&mounts, path).unwrap_or("an unknown file system").to_owned()
}

fn type_in<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let of_line = |line: &'a str| {
        let (mount, rest) = line.split_once(" - ")?;
        let point = Path::new(mount.split(' ').nth(4)?);
        path.starts_with(point).then(|| (point.components().count(), rest.split(' ').next().unwrap_or_default()))
    };
    // Of several at one place, the last is on top.
    mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth).map(|(_, name)| name)
}

/// The command line of this process.
pub(crate) fn command_line() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=%+@".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let program = |word: String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let first = words.next().map(program).unwrap_or_default();
    std::iter::once(first).chain(words.map(quoted)).collect::<Vec<_>>().join(" ")
}

/// The current time in UTC, to the minute.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Days since 1 March of year 0 in eras of 400 years (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_236_300), "2026-11-21 04:45 UTC");
    }

    #[test]
    fn file_system_is_that_of_the_nearest_mount() {
        let mounts = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n30 22 0:25 / /tmp rw - tmpfs tmpfs rw\n\
                      31 30 0:26 / /tmp/a rw - xfs /dev/vdb rw\n";
        let of = |path| type_in(mounts, Path::new(path));
        assert_eq!(
            [of("/tmp/b"), of("/tmp/a/b"), of("/tmpx"), of("x")],
            [Some("tmpfs"), Some("xfs"), Some("ext4"), None]
        );
    }

    #[test]
    fn versions_names_a_missing_program() {
        let facts = versions(&[("no-such-program-at-all", "--version")]);
        assert!(facts[0].1.starts_with("did not start"), "{facts:?}");
    }
}
