//! What a session leaves to whoever has sockets and files, and what that one reports.

use super::Settings;
#[cfg(feature = "kerberos")]
use super::secured::{Agreed, Asking};
use crate::data::{Guard, Sharing};
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Time};
use phoebus_files::sum::Algorithm;
use phoebus_proto::gridftp::command::Secret;
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::marker::Restart;
use phoebus_proto::gridftp::reply::Reply;
use std::net::{IpAddr, SocketAddr};

/// Who is logged in, and what he may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// As the configuration calls him.
    pub(crate) name: String,
    /// Nothing may be changed.
    pub(crate) read_only: bool,
    /// Data may go to, and come from, others than the control connection's peer.
    pub(crate) third_party: bool,
    /// The same between ends that know each other by keys, and not in clear.
    pub(crate) keyed_third_party: bool,
}

/// Something to be done.
#[derive(Debug)]
pub(crate) enum Task {
    /// Look whether this is the user's password; or, where the client has proved to be `identity`, whether that one may be he.
    Login { user: String, password: Secret, identity: Option<Identity> },
    /// Look at a token of Kerberos.
    #[cfg(feature = "kerberos")]
    Agree(Box<Asking>),
    /// Listen for data connections, and answer in this form.
    Listen { answer: Listening, generation: u64, third_party: bool, settings: Settings, guard: Option<Guard> },
    /// Have the data nodes listen.
    ListenOnNodes { generation: u64, settings: Settings, guard: Option<Guard> },
    /// Log this user in, for whom a front end speaks that has proved to be one.
    Vouched { user: String, client: IpAddr },
    /// Look whether so many bytes have room, which `ALLO` announces.
    Allocate(u64),
    /// Look whether this is a directory.
    Enter(Key),
    /// Look whether this is there.
    Find(Key),
    /// Something about one name, answered by itself.
    File(FileTask),
    /// Something over the data channel.
    Transfer(Box<Transfer>),
    /// The same, after listening for its connection and saying where.
    ListenAndTransfer(Box<Transfer>),
}

impl Task {
    /// Whether it may take long, and can be left amid it.
    pub(crate) fn is_stoppable(&self) -> bool {
        matches!(
            self,
            Self::Transfer(_)
                | Self::ListenAndTransfer(_)
                | Self::File(FileTask::Checksum { .. } | FileTask::List { .. })
        )
    }

    /// Whether it is about a file or directory, or what carries one.
    pub(crate) fn is_of_files(&self) -> bool {
        matches!(self, Self::Allocate(_) | Self::Find(_) | Self::File(_)) || self.moves_data()
    }

    /// Whether something goes over the data channel.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Self::Transfer(_) | Self::ListenAndTransfer(_))
    }

    /// Whether it goes on for a client who has said goodbye and is not there any more: what moves data does, and what only answers does not.
    pub(crate) fn outlives_a_goodbye(&self) -> bool {
        !matches!(self, Self::File(_))
    }
}

/// How the answer says where is listened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listening {
    Pasv,
    Epsv,
    Spas,
}

/// Something about names.
#[derive(Debug)]
pub(crate) enum FileTask {
    MakeDir(Key),
    RemoveDir(Key),
    Remove(Key),
    Rename(Key, Key),
    Size {
        key: Key,
        ascii: bool,
    },
    Modified(Key),
    Set {
        key: Key,
        attributes: Attributes,
        said: Said,
    },
    Checksum {
        key: Key,
        algorithm: Algorithm,
        offset: u64,
        length: Option<u64>,
    },
    Facts {
        key: Key,
        shown: Vec<u8>,
        facts: FactNames,
        read_only: bool,
    },
    /// A listing on the control channel.
    List {
        key: Key,
        format: Format,
        code: u16,
    },
}

/// With what words a change is confirmed.
#[derive(Debug)]
pub(crate) enum Said {
    /// `213 Modify=…; path`.
    Modify(Time, Vec<u8>),
    Done,
}

/// A transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) what: What,
    pub(crate) aim: Aim,
    pub(crate) generation: u64,
    pub(crate) settings: Settings,
    pub(crate) restart: Option<Restart>,
    /// How many bytes `ALLO` announced.
    pub(crate) allocated: Option<u64>,
    /// Whose account it is, by which what was cut is found again.
    pub(crate) user: String,
    pub(crate) third_party: bool,
    pub(crate) guard: Option<Guard>,
}

/// Who a client has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The subject of a certificate.
    Certificate(String),
    /// A principal of Kerberos.
    #[cfg(feature = "kerberos")]
    Principal(String),
}

/// What goes over the data channel.
#[derive(Debug)]
pub(crate) enum What {
    /// A file, or an offset and a length of it, or what of it is one stripe's.
    Send { key: Key, part: Option<(u64, u64)>, stripe: Option<Stripe> },
    /// Blocks of a file that a front end has made, which has this inode; they belong `from` bytes further on.
    Stripe { key: Key, from: u64, inode: u64 },
    /// A file, as a whole.
    Receive { key: Key },
    /// A file, as a whole, under a name of the server's choice, which the client is told.
    Unique { key: Key },
    /// What follows the end of a file.
    Append { key: Key },
    /// A part of a file, from an offset on.
    Adjust { key: Key, offset: u64 },
    /// The entries of a directory.
    List { key: Key, format: Format },
}

/// Which blocks of a file are one stripe's: every `count`th of so many bytes, from the one of this index on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) unit: u64,
    /// The file's, where the front end has it.
    pub(crate) inode: u64,
    /// With how many others it sends to the same address.
    pub(crate) sharing: Sharing,
}

/// How entries are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people, as `ls -l` does.
    Long,
    /// Names, with this before each.
    Names(Vec<u8>),
    /// Facts; `deep` of all that lies below, too.
    Facts { names: FactNames, read_only: bool, deep: bool },
    /// Facts of drafts and their journals, and of nothing else.
    Drafts { names: FactNames, read_only: bool },
}

/// Where data goes to or comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Nobody has said.
    None,
    /// The server connects.
    Connect(Vec<SocketAddr>),
    /// The server listens.
    Listen,
    /// Data nodes connect.
    StripesConnect(Vec<SocketAddr>),
    /// Data nodes listen.
    StripesListen,
}

/// The fact, which MLST alone tells, of a directory from which this server takes no draft to another one: it is `no`.
pub(crate) const NO_DRAFTS: &str = "X.drafts";

/// The fact, which MLST alone tells, of a symbolic link, of which all other facts tell what it leads to: it is `yes`.
pub(crate) const LINK: &str = "X.link";

/// Which facts a client wants to see (RFC 3659, section 7.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FactNames([bool; 7]);

impl FactNames {
    /// All that there are, as `FEAT` names them.
    pub(crate) const ALL: [&'static str; 7] = ["Type", "Size", "Modify", "Perm", "UNIX.mode", NO_DRAFTS, LINK];

    /// Those of `ALL` that a list such as `type;size;` names.
    pub(crate) fn parse(list: &str) -> Self {
        let wanted = |name: &str| list.split(';').any(|one| one.trim().eq_ignore_ascii_case(name));
        Self(Self::ALL.map(wanted))
    }

    /// As `OPTS MLST` is answered.
    pub(crate) fn chosen(self) -> String {
        let chosen = Self::ALL.iter().zip(self.0).filter(|(_, on)| *on);
        chosen.map(|(name, _)| format!("{name};")).collect()
    }

    /// As `FEAT` has them: all, with a star after those that are shown.
    pub(crate) fn feature(self) -> String {
        let all = Self::ALL.iter().zip(self.0);
        all.map(|(name, on)| format!("{name}{};", if on { "*" } else { "" })).collect()
    }

    /// Leaves of `facts` those that are wanted.
    pub(crate) fn keep(self, facts: &mut Facts) {
        let [kind, size, modify, perm, mode, drafts, link] = self.0;
        facts.kind.take_if(|_| !kind);
        facts.size.take_if(|_| !size);
        facts.modify.take_if(|_| !modify);
        facts.perm.take_if(|_| !perm);
        facts.mode.take_if(|_| !mode);
        facts.others.retain(|(name, _)| (drafts || name != NO_DRAFTS) && (link || name != LINK));
    }
}

impl Default for FactNames {
    fn default() -> Self {
        Self([true; 7])
    }
}

/// How a task ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With this to be said.
    Answer(Reply),
    /// With an account, or not.
    Login(Option<Account>),
    /// With what a token of Kerberos came to.
    #[cfg(feature = "kerberos")]
    Agreed(Agreed),
    /// It is a directory.
    Entered(Key),
    /// It is there.
    Exists(Key),
    /// The server listens.
    Listening(Listening, SocketAddr),
    /// The data nodes listen.
    Striped(Vec<SocketAddr>),
}
