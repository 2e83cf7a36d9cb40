//! Commands of `SITE`, which no standard defines and GridFTP needs.

use super::parameter::{CommandError, Path, number, path, text, two};
use super::time::Stamp;

/// A site-specific command. The names are GCT's, and one is from the paper on UDT as a driver (U12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Site {
    /// `HELP`, optionally about a command.
    Help(Option<String>),
    /// Sets the driver stack of data connections, the lowest driver first, as sent: `SETNETSTACK`, or `SETDCSTACK` as
    /// in the paper.
    NetStack(String),
    /// Sets the driver stack of files.
    DiskStack(String),
    /// Sets the socket buffers, in bytes.
    Buffer(Buffer, u64),
    /// Sets the permissions of a path.
    Chmod(u32, Path),
    /// Sets the group of a path.
    Chgrp(String, Path),
    /// Sets the modification time of a path.
    Utime(Stamp, Path),
    /// The target of a new symbolic link.
    SymlinkFrom(Path),
    /// The path of the new symbolic link.
    SymlinkTo(Path),
    /// Removes a directory recursively.
    Rdel(Path),
    /// Truncates a file to a length.
    Truncate(u64, Path),
    /// The task of a transfer service, for logs.
    TaskId(String),
    /// Information about the client, for logs.
    ClientInfo(String),
    /// Lists the partial files that interrupted transfers have left in a directory. An extension of Phoebus.
    Drafts(Option<Path>),
    /// Makes the names that the user has changed durable. An extension of Phoebus.
    Sync,
    /// Names files for the next [`Self::GetBatch`], as paths from the root. An extension of Phoebus.
    Want(Vec<Path>),
    /// Sends the files that were named, as a batch ([`batch`](super::batch)). An extension of Phoebus.
    GetBatch,
    /// Stores the files of a batch. An extension of Phoebus.
    PutBatch,
    /// Requests the local user to whom the client is mapped.
    WhoAmI,
    /// Requests the server's version.
    Version,
    /// Any other command: its name in upper case, and its parameter.
    Other(String, Vec<u8>),
}

/// The socket buffers to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// Both buffers: `SBUF`, `BUFSIZE`.
    Both,
    /// The buffer for data that the server sends: `RETRBUFSIZE`, `RBUFSZ`, `RBUFSIZ`.
    Retrieve,
    /// The buffer for data that the server receives: `STORBUFSIZE`, `SBUFSZ`, `SBUFSIZ`.
    Store,
}

impl Site {
    /// Parses the parameter of `SITE`.
    ///
    /// # Errors
    /// [`CommandError::Syntax`] if a known command has an invalid parameter.
    pub fn parse(argument: &[u8]) -> Result<Self, CommandError> {
        let (verb, rest) = two(argument);
        let verb = String::from_utf8_lossy(verb).to_ascii_uppercase();
        let syntax = |expected| CommandError::Syntax { verb: "SITE", expected };
        let buffer =
            |which, size: &[u8]| Ok(Self::Buffer(which, number(size).ok_or_else(|| syntax("a number of bytes"))?));
        Ok(match verb.as_str() {
            "HELP" => Self::Help(text(rest).filter(|command| !command.is_empty())),
            "SETNETSTACK" | "SETDCSTACK" => Self::NetStack(text(rest).ok_or_else(|| syntax("drivers"))?),
            "SETDISKSTACK" => Self::DiskStack(text(rest).ok_or_else(|| syntax("drivers"))?),
            "SBUF" | "BUFSIZE" => buffer(Buffer::Both, rest)?,
            "RETRBUFSIZE" | "RBUFSZ" | "RBUFSIZ" => buffer(Buffer::Retrieve, rest)?,
            "STORBUFSIZE" | "SBUFSZ" | "SBUFSIZ" => buffer(Buffer::Store, rest)?,
            "CHMOD" => {
                let (mode, name) = two(rest);
                let mode = text(mode).filter(|mode| mode.bytes().all(|b| matches!(b, b'0'..=b'7')));
                let mode = mode.and_then(|mode| u32::from_str_radix(&mode, 8).ok()).filter(|mode| *mode <= 0o7777);
                Self::Chmod(mode.ok_or_else(|| syntax("a mode in octal and a path"))?, path("SITE", name)?)
            }
            "CHGRP" => {
                let (group, name) = two(rest);
                Self::Chgrp(text(group).ok_or_else(|| syntax("a group and a path"))?, path("SITE", name)?)
            }
            "UTIME" => {
                let (time, name) = two(rest);
                let time = text(time).and_then(|time| Stamp::parse(&time)).map(|time| (time, name));
                let (time, name) = time.or_else(|| utime_of_five(rest)).ok_or_else(|| syntax("a time and a path"))?;
                Self::Utime(time, path("SITE", name)?)
            }
            "SYMLINKFROM" => Self::SymlinkFrom(path("SITE", rest)?),
            "SYMLINKTO" => Self::SymlinkTo(path("SITE", rest)?),
            "RDEL" => Self::Rdel(path("SITE", rest)?),
            "TRNC" => {
                let (length, name) = two(rest);
                Self::Truncate(number(length).ok_or_else(|| syntax("a length and a path"))?, path("SITE", name)?)
            }
            "TASKID" => Self::TaskId(text(rest).ok_or_else(|| syntax("a task"))?),
            "CLIENTINFO" => Self::ClientInfo(text(rest).ok_or_else(|| syntax("information about the client"))?),
            "DRAFTS" if rest.is_empty() => Self::Drafts(None),
            "DRAFTS" => Self::Drafts(Some(path("SITE", rest)?)),
            "SYNC" => Self::Sync,
            "WANT" => {
                // Two slashes: no path from the root contains them.
                let paths = rest.split(|byte| *byte == b'/').collect::<Vec<_>>();
                let paths = paths.split(|part| part.is_empty()).map(|parts| [b"/", &parts.join(&b'/')[..]].concat());
                let paths: Vec<Path> = paths.collect();
                if paths.iter().any(|path| path.len() < 2) {
                    return Err(syntax("paths from the root without their first slash, with // between them"));
                }
                Self::Want(paths)
            }
            "MGET" => Self::GetBatch,
            "MPUT" => Self::PutBatch,
            "WHOAMI" => Self::WhoAmI,
            "VERSION" => Self::Version,
            "" => return Err(syntax("a command of this site")),
            _ => Self::Other(verb, rest.to_vec()),
        })
    }

    /// The parameter of `SITE`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let with = |verb: &str, rest: &[u8]| [verb.as_bytes(), rest].join(&b' ');
        let both = |verb: &str, first: &str, name: &Path| [verb.as_bytes(), first.as_bytes(), name].join(&b' ');
        match self {
            Self::Help(None) => b"HELP".to_vec(),
            Self::Help(Some(command)) => with("HELP", command.as_bytes()),
            Self::NetStack(stack) => with("SETNETSTACK", stack.as_bytes()),
            Self::DiskStack(stack) => with("SETDISKSTACK", stack.as_bytes()),
            Self::Buffer(which, size) => {
                let verb = match which {
                    Buffer::Both => "SBUF",
                    Buffer::Retrieve => "RETRBUFSIZE",
                    Buffer::Store => "STORBUFSIZE",
                };
                with(verb, size.to_string().as_bytes())
            }
            Self::Chmod(mode, name) => both("CHMOD", &format!("{mode:04o}"), name),
            Self::Chgrp(group, name) => both("CHGRP", group, name),
            Self::Utime(time, name) => both("UTIME", &time.to_string(), name),
            Self::SymlinkFrom(name) => with("SYMLINKFROM", name),
            Self::SymlinkTo(name) => with("SYMLINKTO", name),
            Self::Rdel(name) => with("RDEL", name),
            Self::Truncate(length, name) => both("TRNC", &length.to_string(), name),
            Self::TaskId(task) => with("TASKID", task.as_bytes()),
            Self::ClientInfo(info) => with("CLIENTINFO", info.as_bytes()),
            Self::Sync => b"SYNC".to_vec(),
            Self::Drafts(None) => b"DRAFTS".to_vec(),
            Self::Drafts(Some(name)) => with("DRAFTS", name),
            Self::Want(paths) => {
                let paths: Vec<&[u8]> = paths.iter().map(|path| path.strip_prefix(b"/").unwrap_or(path)).collect();
                with("WANT", &paths.join(&b"//"[..]))
            }
            Self::GetBatch => b"MGET".to_vec(),
            Self::PutBatch => b"MPUT".to_vec(),
            Self::WhoAmI => b"WHOAMI".to_vec(),
            Self::Version => b"VERSION".to_vec(),
            Self::Other(verb, rest) if rest.is_empty() => verb.as_bytes().to_vec(),
            Self::Other(verb, rest) => with(verb, rest),
        }
    }
}

/// The other form of UTIME, which lftp sends and ProFTPD and Pure-FTPd accept: a path, the times of access,
/// modification and change, and `UTC`. Like those servers, this one ignores the times of access and change.
fn utime_of_five(rest: &[u8]) -> Option<(Stamp, &[u8])> {
    let mut words = rest.rsplitn(5, |&b| b == b' ');
    let [zone, changed, modified, accessed, name] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let time = |word: &[u8]| str::from_utf8(word).ok().and_then(Stamp::parse);
    let (time, ..) = (time(modified)?, time(accessed)?, time(changed)?);
    (zone.eq_ignore_ascii_case(b"UTC") && !name.is_empty()).then_some((time, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_paths_are_split_at_two_slashes() {
        let parse = |text: &str| Site::parse(text.as_bytes());
        let wanted = Site::Want(vec![b"/a b/c".to_vec(), b"/d".to_vec()]);
        assert_eq!(parse("WANT a b/c//d"), Ok(wanted.clone()));
        assert_eq!(wanted.encode(), b"WANT a b/c//d");
        for wrong in ["WANT", "WANT /a", "WANT a//", "WANT a///b", "WANT //"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn utime_is_parsed_in_both_forms() {
        let time = Stamp::parse("20200102030405").unwrap();
        let parse = |text: &str| Site::parse(text.as_bytes());
        assert_eq!(parse("UTIME 20200102030405 a b"), Ok(Site::Utime(time, b"a b".to_vec())));
        let five = "UTIME a b 20260101000000 20200102030405 20260101000000";
        assert_eq!(parse(&format!("{five} UTC")), Ok(Site::Utime(time, b"a b".to_vec())));
        for wrong in [five, "UTIME a", "UTIME 20200102030405", "UTIME 1 2 3 4 UTC", &format!("{five} CET")] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
