//! RETR, STOR, STOU, APPE, ERET, ESTO, REST, ALLO, LIST, NLST, MLSD, MLSR: commands that use the data channel (RFC 959,
//! 3659, GFD.20).

use super::facts::without_flags;
use super::task::{DataEndpoint, Format, Operation, Task, Transfer};
use super::{Session, Step};
use crate::data::Mode;
use phoebus_files::key::Key;
use phoebus_proto::gridftp::command::{Eret, Esto};
use phoebus_proto::gridftp::marker::Restart;
use phoebus_proto::hex::hex;
use ring::rand::{SecureRandom, SystemRandom};

impl Session {
    pub(super) fn rest(&mut self, restart: Restart) -> Step {
        let said = match &restart {
            Restart::At(at) => format!("the next transfer begins at {at}"),
            Restart::Without(_) => "the next transfer leaves these ranges out".to_owned(),
        };
        self.restart = Some(restart);
        Step::say(350, said)
    }

    pub(super) fn allo(&mut self, bytes: u64) -> Step {
        self.allocated = Some(bytes);
        Step::task(Task::Allocate(bytes))
    }

    pub(super) fn retr(&mut self, path: &[u8]) -> Step {
        self.transfer(path, |key| Operation::Send { key, part: None, stripe: None })
    }

    pub(super) fn eret(&mut self, eret: Eret) -> Step {
        match eret {
            Eret::Partial(offset, length, path) => {
                self.transfer(&path, |key| Operation::Send { key, part: Some((offset, length)), stripe: None })
            }
            Eret::Module(name, ..) => Step::say(504, format!("ERET has no module {name}, only P")),
        }
    }

    pub(super) fn stor(&mut self, path: &[u8]) -> Step {
        self.transfer(path, |key| Operation::Receive { key })
    }

    /// Receives a file under an unused name, which the preliminary reply has (RFC 1123, section 4.1.2.9).
    pub(super) fn stou(&mut self) -> Step {
        if self.restart.as_ref().is_some_and(|restart| *restart != Restart::At(0)) {
            self.restart = None;
            return Step::say(504, "REST cannot precede STOU, which stores a new file");
        }
        let mut random = [0; 10];
        if SystemRandom::new().fill(&mut random).is_err() {
            return Step::say(451, "the system has no random bytes for a name");
        }
        let name = format!("stou-{}", hex(&random));
        self.transfer(name.as_bytes(), |key| Operation::Unique { key })
    }

    pub(super) fn appe(&mut self, path: &[u8]) -> Step {
        if self.settings.mode != Mode::Stream {
            return Step::say(504, "APPE is for MODE S; where blocks are extended, ESTO A says where bytes belong");
        }
        self.transfer(path, |key| Operation::Append { key })
    }

    pub(super) fn esto(&mut self, esto: Esto) -> Step {
        match esto {
            Esto::Adjusted(offset, path) => self.transfer(&path, |key| Operation::Adjust { key, offset }),
            Esto::Module(name, ..) => Step::say(504, format!("ESTO has no module {name}, only A")),
        }
    }

    pub(super) fn list(&mut self, path: Option<&[u8]>) -> Step {
        self.listing(path, |_| Format::Long)
    }

    pub(super) fn nlst(&mut self, path: Option<&[u8]>) -> Step {
        // NLST lists names as clients can request them (RFC 1123, section 4.1.2.7), unless the client adds the
        // directory itself.
        let before = match path.map(without_flags) {
            None | Some(b"." | b"./") => Vec::new(),
            Some(_) if self.settings.bare_names => Vec::new(),
            Some(path) if path.ends_with(b"/") => path.to_vec(),
            Some(path) => [path, b"/"].concat(),
        };
        self.listing(path, |_| Format::Names(before))
    }

    pub(super) fn mlsd(&mut self, path: Option<&[u8]>) -> Step {
        self.listing(path, |session| session.facts_format(false))
    }

    pub(super) fn mlsr(&mut self, path: Option<&[u8]>) -> Step {
        self.listing(path, |session| session.facts_format(true))
    }

    fn listing(&mut self, path: Option<&[u8]>, format: impl FnOnce(&Self) -> Format) -> Step {
        let format = format(self);
        let path = match format {
            Format::Facts { .. } | Format::Drafts { .. } => path.unwrap_or(b"."),
            _ => path.map_or(&b"."[..], without_flags),
        };
        self.transfer(path, |key| Operation::List { key, format })
    }

    pub(super) fn transfer(&mut self, path: &[u8], what: impl FnOnce(Key) -> Operation) -> Step {
        // REST and ALLO count for one transfer, whatever its outcome.
        let (restart, allocated) = (self.restart.take(), self.allocated.take());
        let what = match self.key(path) {
            Ok(key) => what(key),
            Err(refusal) => return refusal,
        };
        let listing = matches!(what, Operation::List { .. });
        let settings = self.settings.clone();
        if settings.mode != Mode::Stream && settings.ascii && !listing {
            return Step::say(504, "files go as TYPE I where blocks are extended");
        }
        if settings.ascii && !listing && restart.as_ref().is_some_and(|restart| *restart != Restart::At(0)) {
            return Step::say(504, "REST needs TYPE I");
        }
        if self.aim == DataEndpoint::None {
            return Step::say(425, "PASV, EPSV, PORT or EPRT has to come first");
        }
        if let (DataEndpoint::Connect(to) | DataEndpoint::StripesConnect(to), Mode::Extended) =
            (&self.aim, settings.mode)
            && to.len() > (self.rules.streams / settings.streams.max(1)) as usize
        {
            return Step::say(504, format!("data goes over at most {} connections here", self.rules.streams));
        }
        let security = match self.channel_security() {
            Ok(security) => security,
            Err(refusal) => return refusal,
        };
        let transfer = Transfer {
            what,
            aim: self.aim.clone(),
            generation: self.generation,
            settings,
            restart,
            allocated,
            user: self.account().map(|account| account.name.clone()).unwrap_or_default(),
            third_party: self.third_party(),
            security,
        };
        if self.settings.mode != Mode::Extended {
            // Only MODE E keeps connections. Each other transfer needs a new data endpoint.
            self.forget_data_endpoint();
        }
        Step::task(Task::Transfer(Box::new(transfer)))
    }
}
