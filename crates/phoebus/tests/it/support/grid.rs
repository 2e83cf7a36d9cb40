//! The toolkit's server, and an authority with a user, as the tests of our own server have them.

pub use super::serve::run;
use std::process::Output;

#[path = "../../../../gridftp/tests/it/support/gct.rs"]
pub mod gct;
#[path = "../../../../gridftp/tests/it/support/lab.rs"]
pub mod lab;

/// The output of a program that succeeded.
pub fn ok(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
