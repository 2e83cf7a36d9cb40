//! Shared parts of the tests of the client with [`Fake`].

use super::{Client, Fake};
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::{Done, Error, Links, TransferOptions, transfer};
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit against hanging, far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Short, because the tests wait for silence.
pub const SOON: Duration = Duration::from_secs(3);

pub fn options(fake: &Fake) -> Options {
    within(fake, PATIENCE)
}

pub fn within(fake: &Fake, limit: Duration) -> Options {
    let mut options = Options::new("ftp://fake", Endpoint::parse(&fake.addr.to_string(), None).unwrap());
    (options.reply_timeout, options.stall_timeout) = (limit, limit);
    options
}

pub async fn remote(fake: &Fake) -> Remote {
    Remote::connect(options(fake)).await.unwrap()
}

pub fn key(path: &str) -> Key {
    Key::parse(path).unwrap()
}

pub fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// What a server does with a command.
pub type Does = fn(&mut Client, &str);

/// A directory of this machine.
pub struct Here(pub TempDir, pub Local);

impl Here {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::new(dir.path(), Links::Beneath).unwrap();
        Self(dir, local)
    }

    pub fn with(content: &[u8]) -> Self {
        let here = Self::new();
        std::fs::write(here.0.path().join("x"), content).unwrap();
        here
    }

    pub fn content(&self) -> Option<Vec<u8>> {
        std::fs::read(self.0.path().join("x")).ok()
    }
}

/// Gets `/x`, and returns the result.
pub async fn get(fake: &Fake, here: &Here, streams: Option<u32>) -> Result<Done, Error> {
    get_with(Options { streams, ..options(fake) }, here).await
}

pub async fn get_with(options: Options, here: &Here) -> Result<Done, Error> {
    let stall_timeout = options.stall_timeout;
    let remote = Remote::connect(options).await?;
    transfer(&remote, &key("x"), &here.1, &key("x"), &TransferOptions { stall_timeout, ..TransferOptions::default() })
        .await
}

pub async fn put(fake: &Fake, here: &Here) -> Result<Done, Error> {
    put_with(options(fake), here).await
}

pub async fn put_with(options: Options, here: &Here) -> Result<Done, Error> {
    let stall_timeout = options.stall_timeout;
    let remote = Remote::connect(options).await?;
    transfer(&here.1, &key("x"), &remote, &key("x"), &TransferOptions { stall_timeout, ..TransferOptions::default() })
        .await
}

/// A server with a different behaviour for one command.
pub fn on(verb: &'static str, does: impl Fn(&mut Client, &str) + Send + Sync + 'static) -> Fake {
    Fake::with(move |client, came, argument| {
        let mine = came == verb;
        if mine {
            does(client, argument);
        }
        mine
    })
}

#[track_caller]
pub fn says(error: &Error, words: &str) {
    let text = error.to_string();
    assert!(text.contains(words) && text.contains("ftp://fake"), "\"{text}\" does not say \"{words}\"");
}
