//! Chooses what carries each file of a server, and finds out whether it takes objects (S25).

use super::carrier::{CarriedFiles, Carrier};
use super::error::bare;
use super::remote::Remote;
use super::session::Session;
use crate::data::Mode;
use phoebus_files::{Error, ErrorKind};
use std::borrow::Cow;

impl Remote {
    /// What has carried files, where that was left to this end.
    pub fn carriers(&self) -> Vec<CarriedFiles> {
        self.0.carriers.all()
    }

    /// What is to carry an upload of this size, where that is left to this end.
    pub(super) fn carrier_to_write(&self, size: Option<u64>) -> Option<Carrier> {
        match size {
            Some(size) => self.carrier(size, self.0.windows.1),
            None => Some(Carrier { is_object: false, why: "their size is not known".into() })
                .filter(|_| self.options().auto.is_some()),
        }
    }

    /// Whether an upload of this size goes as an object by this end's choice.
    pub(super) fn writes_object(&self, size: Option<u64>) -> bool {
        self.carrier_to_write(size).is_some_and(|carrier| carrier.is_object)
    }

    /// What is to carry a download of so many bytes, where that is left to this end.
    pub(super) fn carrier_to_read(&self, bytes: u64) -> Option<Carrier> {
        self.carrier(bytes, self.0.windows.0)
    }

    /// What is to carry so many bytes of a file, where that is left to this end. `window`: the kernel's in this direction.
    fn carrier(&self, bytes: u64, window: u64) -> Option<Carrier> {
        let auto = self.options().auto.as_ref()?;
        let carrier = (auto.choose)(&self.segment(bytes, window));
        let obstacle = || {
            let known = auto.obstacle.clone().or_else(|| self.0.carriers.refusal().map(Cow::Owned));
            let other = || match self.why_inside() {
                Some(_) => Some("data goes inside ssh".into()),
                None if !self.has("XDRAFTS") => Some("only phoebus serve takes objects".into()),
                None => self.0.losses.no_datagrams().map(Cow::Owned),
            };
            known.or_else(other)
        };
        Some(match obstacle().filter(|_| carrier.is_object) {
            Some(why) => Carrier { is_object: false, why },
            None => carrier,
        })
    }

    /// Records what carries a file, if that was left to this end.
    pub(super) fn note_carrier(&self, carrier: Option<Carrier>) {
        carrier.into_iter().for_each(|carrier| self.0.carriers.note(carrier));
    }

    /// What carries a file whose object failed with `error` before any of it was read: `choice` by now, or connections if the way of
    /// objects may be at fault.
    pub(super) fn instead_of_object(&self, choice: Option<Carrier>, error: &Error, name: &str) -> Option<Carrier> {
        let known = choice.filter(|choice| !choice.is_object);
        let passing = || Carrier { is_object: false, why: bare(error, name).into() };
        known.or_else(|| (error.kind() == ErrorKind::Passing).then(passing))
    }

    /// Has the server take objects, on a session that is about to carry one.
    ///
    /// # Errors
    /// It takes none, which is recorded, or does not answer.
    pub(super) async fn agree_on_objects(&self, session: &mut Session) -> Result<(), Error> {
        let agreed = self.plan().by_objects().carry(session, Some(Mode::Extended)).await;
        if let Err(Error::Store { reason, kind: ErrorKind::Request, .. }) = &agreed {
            self.0.carriers.refused(reason);
        }
        agreed
    }
}
