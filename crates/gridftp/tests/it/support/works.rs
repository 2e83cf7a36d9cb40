//! Notes which programs tests have seen working together. `scripts/interop` makes `docs/interop.md` of the notes.

use std::fs;
use std::io::Write;
use std::panic::Location;
use std::path::Path;

/// Notes that `client`, logged in to `server` by `login`, did all of `features` (words that `scripts/interop` knows,
/// separated by blanks). Call it at the end of a test that has checked them.
#[track_caller]
pub fn works(client: &str, server: &str, login: &str, features: &str) {
    let notes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    fs::create_dir_all(&notes).unwrap();
    let place = Location::caller();
    let file = format!("{}-{}", place.file().replace('/', "."), place.line());
    // A test may call this in a loop, and another test at the same time.
    let mut file = fs::File::options().append(true).create(true).open(notes.join(file)).unwrap();
    let lines: String =
        features.split(' ').map(|feature| format!("{client}\t{server}\t{login}\t{feature}\n")).collect();
    file.write_all(lines.as_bytes()).unwrap();
}
