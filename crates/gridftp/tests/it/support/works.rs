//! What tests have seen to work between two programs, for `docs/interop.md`: `scripts/interop` makes that of what is noted here.

use std::fs;
use std::io::Write;
use std::panic::Location;
use std::path::Path;

/// Notes that `client`, which logs in to `server` as `login` says, did all of `features`: words that `scripts/interop` knows, with
/// blanks between. Called at the end of a test, when it is so.
#[track_caller]
pub fn works(client: &str, server: &str, login: &str, features: &str) {
    let notes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    fs::create_dir_all(&notes).unwrap();
    let place = Location::caller();
    let file = format!("{}-{}", place.file().replace('/', "."), place.line());
    // A loop may come here again with something else, and another test at the same time.
    let mut file = fs::File::options().append(true).create(true).open(notes.join(file)).unwrap();
    let lines: String =
        features.split(' ').map(|feature| format!("{client}\t{server}\t{login}\t{feature}\n")).collect();
    file.write_all(lines.as_bytes()).unwrap();
}
