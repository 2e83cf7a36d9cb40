//! Private files: nobody but the owner may read them before their first byte arrives, although servers make new files
//! readable to all.
//!
//! During an upload, the server does not listen on that control connection. So another one sets the permissions while
//! the bytes wait. If nothing can be set then, the file is first created empty.

use super::draft::RemoteDraft;
use super::gated::Nothing;
use super::modes::Mode;
use super::remote::Remote;
use super::store::{Sending, Upload};
use phoebus_files::Error;
use phoebus_files::range::Ranges;
use phoebus_files::store::{Draft, Store};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Round trips, with a login, that a command over another connection takes at most.
const LOGIN: u32 = 20;

impl RemoteDraft {
    /// Makes the existing part of a private file private before any byte is sent. If that fails, the file becomes
    /// private at the end.
    pub(super) async fn be_private(&self, mode: Option<Mode>) -> Result<(), Error> {
        let remote = self.remote();
        if !mode.is_some_and(Mode::is_private) || remote.0.modeless.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (is_in_place, ours) = (self.part() == self.key(), remote.has("XDRAFTS"));
        // `phoebus serve` writes a private draft, so there is no file yet whose permissions could be set.
        let is_made = is_in_place && self.is_new() && ours;
        if is_made {
            self.is_made.store(true, Ordering::Relaxed);
            self.make_empty(&self.sending()?.of_nothing()).await?;
        }
        let is_there = if is_in_place { is_made || !self.is_new() } else { !ours && !self.kept().is_empty() };
        if is_there {
            let line = self.private_line()?;
            self.open.note(remote.ask_twice(line).await?);
        }
        Ok(())
    }

    /// The same for a file that another server sends, during whose upload nothing can be set. Returns whether the file
    /// was created empty.
    pub(super) async fn be_private_for_another(&self) -> Result<bool, Error> {
        let (remote, sending) = (self.remote(), self.sending()?);
        let Some(line) = &sending.private_line else { return Ok(false) };
        let privacy = &remote.0.privacy;
        if privacy.is_without_data() {
            return Ok(false);
        }
        // One failure may be a coincidence.
        let mut tries = 2;
        loop {
            let nothing = sending.of_nothing();
            let Err(error) = self.make_empty(&nothing).await else { break };
            if !nothing.no_data.load(Ordering::Relaxed) || privacy.has_data.load(Ordering::Relaxed) {
                return Err(error);
            }
            tries -= 1;
            if tries == 0 {
                // Transfers between servers go on even if this end reaches no data port.
                privacy.no_data.store(true, Ordering::Relaxed);
                // Some servers have created the file by then.
                let _ = remote.remove(self.part()).await;
                remote.note_public(format!("this end reaches no data port of {}", remote.0.name));
                return Ok(false);
            }
        }
        self.open.note(remote.ask_twice(line.clone()).await?);
        Ok(true)
    }

    /// Creates the file empty.
    async fn make_empty(&self, nothing: &Sending) -> Result<(), Error> {
        Upload::begin(self.remote().clone(), nothing.clone(), Arc::new(Nothing), Arc::default()).end().await
    }

    /// Makes the file private before its first byte, on servers that write it under its name.
    pub(super) fn private_line_at_begin(&self, mode: Option<Mode>) -> Result<Option<Vec<u8>>, Error> {
        let remote = self.remote();
        let is_new = if self.part() == self.key() { self.is_new() } else { self.kept().is_empty() };
        let comes = is_new && mode.is_some_and(Mode::is_private);
        let known = remote.0.modeless.load(Ordering::Relaxed) || remote.0.privacy.writes_once.load(Ordering::Relaxed);
        let asks = comes && !remote.has("XDRAFTS") && !known;
        asks.then(|| self.private_line()).transpose()
    }

    fn private_line(&self) -> Result<Vec<u8>, Error> {
        self.remote().line("SITE CHMOD 600", self.part())
    }
}

impl Sending {
    /// The same file, empty.
    pub(super) fn of_nothing(&self) -> Self {
        let (size, kept, no_data, refused) = (Some(0), Ranges::new(), Arc::default(), Arc::default());
        Self { size, kept, no_data, refused, marks: None, private_line: None, ..self.clone() }
    }
}

impl Remote {
    /// Whether something can be set during an upload before its first byte, as far as known.
    pub(super) fn takes_side_command(&self) -> bool {
        !self.0.privacy.no_side_command.load(Ordering::Relaxed)
    }

    /// Records that it cannot, for all later files.
    pub(super) fn note_no_side_command(&self) {
        self.0.privacy.no_side_command.store(true, Ordering::Relaxed);
    }

    /// Limit for it.
    pub(super) fn side_command_timeout(&self) -> Duration {
        self.options().beside.max(self.rtt() * LOGIN)
    }

    /// Sends `line` about a file whose upload is beginning. `None` if that was impossible before its first byte;
    /// otherwise the reply, which may be a refusal.
    pub(super) async fn send_beside(&self, line: Vec<u8>) -> Option<Reply> {
        let said = async {
            let reply = self.ask(line.clone()).await?;
            if is_heard(&reply) {
                return Ok::<_, Error>(reply);
            }
            // Some servers send the preliminary reply a little before they create the file.
            sleep(self.rtt()).await;
            self.ask(line).await
        };
        let said = timeout(self.side_command_timeout(), said).await.ok().and_then(Result::ok).filter(is_heard);
        if said.is_none() {
            self.note_no_side_command();
        }
        said
    }

    /// Sends `line`, and again after a temporary refusal (4xx).
    async fn ask_twice(&self, line: Vec<u8>) -> Result<Reply, Error> {
        let reply = self.ask(line.clone()).await?;
        if reply.is_transient_failure() { self.ask(line).await } else { Ok(reply) }
    }

    /// Records that the file was not private before its first byte, because the server refused that with `code`. If it
    /// refuses all modes, the report on modes says so.
    pub(super) fn note_not_private(&self, code: u16) {
        if self.sets_modes() {
            self.note_public(format!("{} has answered SITE CHMOD with {code} before the first byte", self.0.name));
        }
    }

    /// Records that empty files cannot be overwritten, so that private files are public until they are complete.
    pub(super) fn writes_once(&self) {
        self.0.privacy.writes_once.store(true, Ordering::Relaxed);
        let name = &self.0.name;
        self.note_public(format!(
            "{name} lets nobody write over a file, and accepts no second control connection during an upload"
        ));
    }

    /// Records why private files are public until they are complete.
    fn note_public(&self, why: String) {
        let mut all = self.0.public.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&why) {
            all.push(why);
        }
    }

    /// Why private files were public until they were complete, if any were.
    pub fn why_public(&self) -> Vec<String> {
        self.0.public.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether a reply decides the matter for all files: success, or a general refusal. Any other refusal may mean that the
/// file does not exist yet.
fn is_heard(reply: &Reply) -> bool {
    const REFUSALS: [&str; 5] = ["permission", "denied", "not allowed", "not permitted", "privileges"];
    let text = reply.text().to_lowercase();
    let is_refused = (500..550).contains(&reply.code) || REFUSALS.iter().any(|words| text.contains(words));
    reply.is_success() || is_refused
}
