//! The small commands about files: `ls`, `stat`, `cat`, `check`, `clean`, `mkdir`, `rm`, `mv`. Each takes places as `phoebus cp` does, goes on
//! past what fails, and says in its exit code what became of the whole.

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod ls;
pub(crate) mod mkdir;
mod moving;
pub(crate) mod mv;
pub(crate) mod rm;
pub(crate) mod stat;

use crate::exit::{self, Exit};
use crate::hints;
use crate::place::{self, Place, Stores, Url};
use anyhow::Result;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta, Time};
use phoebus_gridftp::client::farewells;
use phoebus_proto::gridftp::time::Stamp;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// For the help of each of them.
pub(crate) const CODES: &str = "\
Exit codes: 0 all is done; 2 wrong arguments; 4 some of it is done and some failed; 5 not there; \
6 not allowed; 7 no space; 8 damaged on the way; 10 there already; 11 it failed in a way that may pass; 1 anything else.";

/// Whether an error is one of a certain sort.
type Such = fn(&Error) -> bool;

/// What became of several things, one after the other.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    codes: Vec<u8>,
    /// What is said beside certain errors.
    hint: Option<(&'static str, Such)>,
}

impl Tally {
    /// From now on `hint` is said beside errors that are `such`.
    fn hint(&mut self, hint: &'static str, such: Such) {
        self.hint = Some((hint, such));
    }

    /// Counts one that was asked for, and tells of it if it failed.
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        let value = self.check(result);
        self.done += u64::from(value.is_some());
        value
    }

    /// The same for a step on the way, which is nothing done when it succeeds.
    fn check<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let hint = self.hint.filter(|(_, such)| such(&error)).map_or("", |(hint, _)| hint);
                tell(&format!("{}{hint}", exit::without_numbers(&error.to_string())));
                self.codes.push(exit::code_of_sort(error.sort()));
                None
            }
        }
    }

    fn code(&self) -> ExitCode {
        self.number().into()
    }

    fn number(&self) -> u8 {
        match self.codes.first() {
            None => 0,
            Some(_) if self.codes.contains(&exit::DAMAGED) => exit::DAMAGED,
            Some(_) if self.codes.contains(&exit::NO_SPACE) => exit::NO_SPACE,
            Some(_) if self.done > 0 => exit::PARTIAL,
            Some(first) if self.codes.iter().all(|code| code == first) => *first,
            Some(_) => exit::FAILED,
        }
    }
}

/// Runs `work` with a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let result = work.await;
        farewells().await;
        result
    });
    runtime.shutdown_background();
    result
}

/// Says what went wrong, if anybody listens.
fn tell(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "phoebus: {sentence}");
}

/// Prints a line, for as long as somebody reads.
///
/// # Errors
/// Nobody does any more (quietly), or it cannot be written.
fn print(line: &str) -> Result<()> {
    crate::standard::print(&format!("{line}\n"))
}

/// The places that arguments name.
async fn find_all(stores: &mut Stores, written: &[OsString]) -> Result<Vec<Place>> {
    let urls = written.iter().map(|written| place::parse(written)).collect::<Result<Vec<Url>>>()?;
    stores.check_ssh(&urls, None)?;
    find(stores, &urls).await
}

/// The places that arguments name, the first `taken` of which `command` takes away. All are looked at before anything is taken.
///
/// # Errors
/// One of those is a directory that is not called by its name, which a slip or a shell's `.*` leads to, or the root (exit code 2); and
/// what [`find_all`] has.
async fn find_to_take(stores: &mut Stores, written: &[OsString], command: &str, taken: usize) -> Result<Vec<Place>> {
    let urls = written.iter().map(|written| place::parse(written)).collect::<Result<Vec<Url>>>()?;
    stores.check_ssh(&urls, hints::asking(command))?;
    let done = if command == "mv" { "moved" } else { "removed" };
    if let Some(url) = urls.iter().take(taken).find(|url| url.has_no_name()) {
        return Err(Exit::usage(format!(
            "\"{url}\" is not {done}: expected a file or directory by its name, which \".\" and \"..\" are not"
        )));
    }
    let places = find(stores, &urls).await?;
    if let Some(place) = places.iter().take(taken).find(|place| place.key.is_root()) {
        return Err(Exit::usage(format!("{}: the root of a store is not {done}", place.name())));
    }
    Ok(places)
}

async fn find(stores: &mut Stores, urls: &[Url]) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for url in urls {
        places.push(stores.find(url).await?);
    }
    Ok(places)
}

/// What is known of `name`, for machines.
fn described(name: &str, meta: &Meta) -> Value {
    let kind = match meta.kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Link => "link",
        Kind::Device => "device",
        Kind::Other => "other",
    };
    json!({
        "name": name,
        "kind": kind,
        "bytes": meta.size,
        "modified": meta.modified.map(|time| time_of(time).1),
        "mode": meta.mode.map(|mode| format!("{mode:04o}")),
    })
}

/// A moment in UTC: for people, to the second, and by RFC 3339, as precisely as it is known.
pub(crate) fn time_of(time: Time) -> (String, String) {
    let text = Stamp { seconds: time.seconds, nanos: time.nanos }.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let part = |from: usize, to: usize| whole.get(from..to).unwrap_or("00");
    let (date, clock) = (
        format!("{}-{}-{}", part(0, 4), part(4, 6), part(6, 8)),
        format!("{}:{}:{}", part(8, 10), part(10, 12), part(12, 14)),
    );
    let dot = if fraction.is_empty() { "" } else { "." };
    (format!("{date} {clock}"), format!("{date}T{clock}{dot}{fraction}Z"))
}

/// A name as a terminal can be shown it.
fn printable(name: &[u8]) -> String {
    Key::ROOT
        .join(name)
        .map_or_else(|_| String::from_utf8_lossy(name).escape_debug().to_string(), |key| key.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        let time = Time { seconds: 1_795_291_200, nanos: 500_000_000 };
        assert_eq!(time_of(time), ("2026-11-21 20:00:00".to_owned(), "2026-11-21T20:00:00.5Z".to_owned()));
    }

    #[test]
    fn codes_tell_what_failed() {
        let error = |sort| Err::<(), _>(Error::Store { name: "x".into(), reason: "y".into(), sort });
        let mut tally = Tally::default();
        tally.note(error(phoebus_files::Sort::NotFound));
        assert_eq!(tally.code(), ExitCode::from(exit::ABSENT));
        tally.note(error(phoebus_files::Sort::Denied));
        assert_eq!(tally.code(), ExitCode::from(exit::FAILED));
        tally.note(Ok(()));
        assert_eq!(tally.code(), ExitCode::from(exit::PARTIAL));
        tally.note(error(phoebus_files::Sort::NoSpace));
        assert_eq!(tally.code(), ExitCode::from(exit::NO_SPACE));
    }
}
