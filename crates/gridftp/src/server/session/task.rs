//! Tasks of a session that need sockets or files, and their outcomes.

use super::super::identity::Identity;
use super::Settings;
#[cfg(feature = "kerberos")]
use super::gssapi::{KerberosToken, TokenResult};
use crate::data::{ChannelSecurity, Sharing};
use phoebus_accounts::Account;
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Time};
use phoebus_files::sum::Algorithm;
use phoebus_proto::gridftp::command::Secret;
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::marker::Restart;
use phoebus_proto::gridftp::reply::Reply;
use std::net::{IpAddr, SocketAddr};

/// A task.
#[derive(Debug)]
pub(crate) enum Task {
    /// Check a password; or, with `identity`, whether that identity may log in as this user.
    Login { user: String, password: Secret, identity: Option<Identity> },
    /// Check a Kerberos token.
    #[cfg(feature = "kerberos")]
    CheckToken(Box<KerberosToken>),
    /// Listen for data connections, and reply in the form of `answer`.
    Listen {
        answer: Listening,
        generation: u64,
        third_party: bool,
        settings: Settings,
        security: Option<ChannelSecurity>,
    },
    /// Let the data nodes listen.
    ListenOnNodes { generation: u64, settings: Settings, security: Option<ChannelSecurity> },
    /// Log in a user that an authenticated front end names.
    LoginByFront { user: String, client: IpAddr },
    /// Check whether there is room for this many bytes (`ALLO`).
    Allocate(u64),
    /// Check that this is a directory.
    Enter(Key),
    /// Check that this exists.
    Find(Key),
    /// Carry out a task about one name.
    File(FileTask),
    /// Carry out a transfer.
    Transfer(Box<Transfer>),
    /// Listen, report the address, and carry out a transfer.
    ListenAndTransfer(Box<Transfer>),
}

impl Task {
    /// Whether the task may take long and can be stopped.
    pub(crate) fn is_stoppable(&self) -> bool {
        matches!(
            self,
            Self::Transfer(_)
                | Self::ListenAndTransfer(_)
                | Self::File(FileTask::Checksum { .. } | FileTask::List { .. })
        )
    }

    /// Whether the task is about a file or directory.
    pub(crate) fn is_of_files(&self) -> bool {
        matches!(self, Self::Allocate(_) | Self::Find(_) | Self::File(_)) || self.moves_data()
    }

    /// Whether the task uses the data channel.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Self::Transfer(_) | Self::ListenAndTransfer(_))
    }

    /// Whether the task continues after the client sent QUIT and left: transfers do.
    pub(crate) fn outlives_a_goodbye(&self) -> bool {
        !matches!(self, Self::File(_))
    }
}

/// The form of the reply with the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listening {
    Pasv,
    Epsv,
    Spas,
}

/// A task about one name.
#[derive(Debug)]
pub(crate) enum FileTask {
    MakeDir(Key),
    RemoveDir(Key),
    Remove(Key),
    Rename(Key, Key),
    /// Makes the changed names of the user durable.
    Sync,
    Size {
        key: Key,
        ascii: bool,
    },
    Modified(Key),
    Set {
        key: Key,
        attributes: Attributes,
        said: Confirmation,
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

/// The reply that confirms a change.
#[derive(Debug)]
pub(crate) enum Confirmation {
    /// `213 Modify=…; path`.
    Modify(Time, Vec<u8>),
    Done,
}

/// A transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) what: Operation,
    pub(crate) aim: DataEndpoint,
    pub(crate) generation: u64,
    pub(crate) settings: Settings,
    pub(crate) restart: Option<Restart>,
    /// Bytes that `ALLO` announced.
    pub(crate) allocated: Option<u64>,
    /// The user, by whom a draft of an earlier attempt is found.
    pub(crate) user: String,
    pub(crate) third_party: bool,
    pub(crate) security: Option<ChannelSecurity>,
}

/// The operation of a transfer.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Send a file, or the part (offset, length) of it, or one stripe of that.
    Send { key: Key, part: Option<(u64, u64)>, stripe: Option<Stripe> },
    /// Receive blocks into a file that the front end has made (`inode`), `from` bytes further on.
    Stripe { key: Key, from: u64, inode: u64 },
    /// Receive a whole file.
    Receive { key: Key },
    /// Receive a whole file under a name that the server chooses and reports.
    Unique { key: Key },
    /// Append to a file.
    Append { key: Key },
    /// Write a part of a file, from an offset on.
    Adjust { key: Key, offset: u64 },
    /// Send a listing.
    List { key: Key, format: Format },
    /// Send short files as a batch.
    SendBatch { keys: Vec<Key> },
    /// Receive a batch of short files.
    ReceiveBatch,
}

/// The blocks of one stripe: every `count`th block of `unit` bytes, from the one with this index on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) unit: u64,
    /// Inode of the file, as the front end sees it.
    pub(crate) inode: u64,
    /// Other nodes that send to the same address.
    pub(crate) sharing: Sharing,
}

/// The format of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people, as `ls -l`.
    Long,
    /// Names, each after this prefix.
    Names(Vec<u8>),
    /// Facts; with `deep`, of all levels below.
    Facts { names: FactNames, read_only: bool, deep: bool },
    /// Facts of drafts and their journals only.
    Drafts { names: FactNames, read_only: bool },
}

/// The other end of data connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataEndpoint {
    /// Not set.
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

/// Fact of MLST only: `no` for a directory whose drafts this server does not move to another directory.
pub(crate) const NO_DRAFTS: &str = "X.drafts";

/// Fact of MLST only: `yes` for a symbolic link. All other facts are those of its target.
pub(crate) const LINK: &str = "X.link";

/// The facts that a client has selected (RFC 3659, section 7.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FactNames([bool; 7]);

impl FactNames {
    /// All facts, as in `FEAT`.
    pub(crate) const ALL: [&'static str; 7] = ["Type", "Size", "Modify", "Perm", "UNIX.mode", NO_DRAFTS, LINK];

    /// Parses a list such as `type;size;`.
    pub(crate) fn parse(list: &str) -> Self {
        let wanted = |name: &str| list.split(';').any(|one| one.trim().eq_ignore_ascii_case(name));
        Self(Self::ALL.map(wanted))
    }

    /// The reply to `OPTS MLST`.
    pub(crate) fn chosen(self) -> String {
        let chosen = Self::ALL.iter().zip(self.0).filter(|(_, on)| *on);
        chosen.map(|(name, _)| format!("{name};")).collect()
    }

    /// The line of `FEAT`: all facts, with a star after the selected ones.
    pub(crate) fn feature(self) -> String {
        let all = Self::ALL.iter().zip(self.0);
        all.map(|(name, on)| format!("{name}{};", if on { "*" } else { "" })).collect()
    }

    /// Removes all but the selected facts.
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

/// The outcome of a task.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The reply.
    Answer(Reply),
    /// The account, or a failed login.
    Login(Option<Account>),
    /// The result of a Kerberos token.
    #[cfg(feature = "kerberos")]
    TokenChecked(TokenResult),
    /// The path is a directory.
    Entered(Key),
    /// The path exists.
    Exists(Key),
    /// The server listens at this address.
    Listening(Listening, SocketAddr),
    /// The data nodes listen at these addresses.
    Striped(Vec<SocketAddr>),
}
