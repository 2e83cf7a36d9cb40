//! The small commands about files: `ls`, `stat`, `cat`, `check`, `clean`, `mkdir`, `rm`, `mv`. Each takes places as
//! `phoebus cp` does, continues after failures, and returns an exit code for the whole.

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod ls;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod rm;
pub(crate) mod stat;

use crate::cp::interrupted;
use crate::exit::{self, Exit};
use crate::hints;
use crate::human;
use crate::place;
use anyhow::Result;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{Kind, Meta};
use phoebus_gridftp::client::farewells;
use phoebus_places::{Outcomes, Place, Stores, Url};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// For the help of each of them.
pub(crate) const CODES: &str = "\
Exit codes: 0 done; 2 wrong arguments; 4 some failed; 5 not found; 6 permission denied; 7 no space; 8 verification \
failed; 10 file exists; 11 temporary failure; 1 any other failure.";

/// Whether an error is one of a certain sort.
type Such = fn(&Error) -> bool;

/// The result of several operations.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    codes: Vec<u8>,
    /// Of how many that were copied the source does not tell the permissions.
    modes_unknown: u64,
    /// Advice for certain errors.
    hint: Option<(&'static str, Such)>,
}

impl Tally {
    /// Adds `hint` to later errors that match `such`.
    fn hint(&mut self, hint: &'static str, such: Such) {
        self.hint = Some((hint, such));
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

impl Outcomes for Tally {
    fn done(&mut self, count: u64) {
        self.done += count;
    }

    /// Counts it, and tells of it.
    fn failed(&mut self, error: Error) {
        let hint = self.hint.filter(|(_, such)| such(&error)).map_or("", |(hint, _)| hint);
        tell(&format!("{}{hint}", exit::without_numbers(&error.to_string())));
        self.codes.push(exit::code_of_kind(error.kind()));
    }

    fn modes_unknown(&mut self, count: u64) {
        self.modes_unknown += count;
    }

    fn has_failed(&self) -> bool {
        !self.codes.is_empty()
    }
}

/// Runs `work` with a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    block_on_and_part(async { (work.await, Duration::MAX) })
}

/// The same; `work` also says for how long servers may be told that nothing more comes. An interruption ends that.
fn block_on_and_part<T>(work: impl Future<Output = (Result<T>, Duration)>) -> Result<T> {
    let runtime = crate::runtime::multi_thread()?;
    let result = runtime.block_on(async {
        let (result, time_limit) = work.await;
        tokio::select! {
            () = farewells() => {}
            () = tokio::time::sleep(time_limit) => {}
            _ = interrupted() => {}
        }
        result
    });
    runtime.shutdown_background();
    result
}

/// Reports an error, if anybody reads it.
fn tell(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "phoebus: {sentence}");
}

/// Prints a line.
///
/// # Errors
/// Nobody reads the output (silent), or writing fails.
fn print(line: &str) -> Result<()> {
    crate::standard::print(&format!("{line}\n"))
}

/// The places that arguments name.
async fn find_all(stores: &mut Stores, written: &[OsString]) -> Result<Vec<Place>> {
    let urls = written.iter().map(|written| place::parse(written)).collect::<Result<Vec<Url>>>()?;
    stores.check_ssh(&urls, None)?;
    find(stores, &urls).await
}

/// The places of the arguments, the first `taken` of which `command` removes. All are checked before anything is
/// removed.
///
/// # Errors
/// One of those is a directory without its name, as from a mistake or a shell's `.*`, or the root (exit code 2); and
/// those of [`find_all`].
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

/// Metadata of `name` as JSON.
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
        "modified": meta.modified.map(|time| human::time(time).1),
        "mode": meta.mode.map(|mode| format!("{mode:04o}")),
    })
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
    fn codes_tell_what_failed() {
        let error = |kind| Err::<(), _>(Error::Store { name: "x".into(), reason: "y".into(), kind });
        let mut tally = Tally::default();
        tally.note(error(phoebus_files::ErrorKind::NotFound));
        assert_eq!(tally.code(), ExitCode::from(exit::ABSENT));
        tally.note(error(phoebus_files::ErrorKind::Denied));
        assert_eq!(tally.code(), ExitCode::from(exit::FAILED));
        tally.note(Ok(()));
        assert_eq!(tally.code(), ExitCode::from(exit::PARTIAL));
        tally.note(error(phoebus_files::ErrorKind::NoSpace));
        assert_eq!(tally.code(), ExitCode::from(exit::NO_SPACE));
    }
}
