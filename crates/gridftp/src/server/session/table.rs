//! All commands of the server: what each needs, how it is used, and which feature it is. What is not here is answered 502.

use phoebus_proto::gridftp::site::Site;

/// What a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nobody has to be logged in.
    Nothing,
    /// Somebody has.
    Login,
    /// Somebody has who may change things.
    Writing,
}

/// A command.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) verb: &'static str,
    /// What follows it.
    pub(super) usage: &'static str,
    pub(super) needs: Needs,
    /// As it is in FEAT: as itself, or with these parameters.
    pub(super) feature: Feature,
}

/// How a command is listed by FEAT (RFC 2389 lists what RFC 959 does not have).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// It is not.
    No,
    /// By these words.
    Is(&'static str),
    /// By the facts of MLST, which the session knows.
    Facts,
    /// By the checksums that there are.
    Checksums,
    /// By what clients may ask for, a line each.
    Mechanisms,
}

use Feature::{Checksums, Facts, Is, Mechanisms, No};
use Needs::{Login, Nothing, Writing};

const fn entry(verb: &'static str, usage: &'static str, needs: Needs, feature: Feature) -> Entry {
    Entry { verb, usage, needs, feature }
}

/// All of them, as HELP lists them.
pub(super) const COMMANDS: &[Entry] = &[
    entry("USER", "name", Nothing, No),
    entry("PASS", "password", Nothing, No),
    entry("REIN", "", Nothing, No),
    entry("QUIT", "", Nothing, No),
    entry("NOOP", "", Nothing, No),
    entry("SYST", "", Nothing, No),
    entry("FEAT", "", Nothing, No),
    entry("HELP", "[command]", Nothing, No),
    entry("LANG", "[EN]", Nothing, Is("LANG EN*")),
    entry("CLNT", "name", Nothing, No),
    entry("OPTS", "command options", Nothing, No),
    entry("STAT", "[path]", Login, No),
    entry("ABOR", "", Login, No),
    entry("TYPE", "A|I", Login, No),
    entry("MODE", "S|E|X", Login, Is("PARALLEL")),
    entry("STRU", "F", Login, No),
    entry("SBUF", "bytes", Login, Is("SBUF")),
    entry("PORT", "h1,h2,h3,h4,p1,p2", Login, No),
    entry("EPRT", "|family|address|port|", Login, Is("EPRT")),
    entry("SPOR", "address ...", Login, Is("SPOR")),
    entry("PASV", "", Login, No),
    entry("EPSV", "[1|2|ALL]", Login, Is("EPSV")),
    entry("SPAS", "", Login, Is("SPAS")),
    entry("CWD", "path", Login, No),
    entry("CDUP", "", Login, No),
    entry("PWD", "", Login, No),
    entry("XPWD", "", Login, No),
    entry("MKD", "path", Writing, No),
    entry("RMD", "path", Writing, No),
    entry("DELE", "path", Writing, No),
    entry("RNFR", "path", Writing, No),
    entry("RNTO", "path", Writing, No),
    entry("SIZE", "path", Login, Is("SIZE")),
    entry("MDTM", "path", Login, Is("MDTM")),
    entry("MFMT", "YYYYMMDDHHMMSS path", Writing, Is("MFMT")),
    entry("CKSM", "algorithm offset length path", Login, Checksums),
    entry("MLST", "[path]", Login, Facts),
    entry("MLSD", "[path]", Login, No),
    entry("MLSR", "[path]", Login, Is("MLSR")),
    entry("MLSC", "[path]", Login, Is("MLSC")),
    entry("LIST", "[path]", Login, No),
    entry("NLST", "[path]", Login, No),
    entry("REST", "offset|ranges", Login, Is("REST STREAM")),
    entry("ALLO", "bytes", Login, No),
    entry("RETR", "path", Login, No),
    entry("ERET", "P offset length path", Login, Is("ERET")),
    entry("STOR", "path", Writing, No),
    entry("STOU", "", Writing, No),
    entry("APPE", "path", Writing, No),
    entry("ESTO", "A offset path", Writing, Is("ESTO")),
    entry("GET", "path=...;[pasv;|port=...;][mode=S|E|X;]", Login, No),
    entry("PUT", "path=...;[pasv;|port=...;][mode=S|E|X;]", Writing, No),
    entry("SITE", "command ...", Nothing, No),
];

/// Those that protect.
pub(super) const SECURE: &[Entry] = &[
    entry("AUTH", "TLS|GSSAPI", Nothing, Mechanisms),
    entry("PBSZ", "bytes", Nothing, Is("PBSZ")),
    entry("PROT", "C|S|P", Nothing, Is("PROT")),
];

/// Those of GSSAPI.
pub(super) const TOKENS: &[Entry] = &[entry("ADAT", "token", Nothing, No)];

/// Those that are for clients with certificates.
pub(super) const GSI: &[Entry] = &[entry("DCAU", "N|A|S subject", Nothing, Is("DCAU"))];

/// Features that are no command. MODEX is by what dCache's server says that it has MODE X. XDRAFTS is this server's own: what is stored has no name before it is complete, and what REST
/// says is there of it is refused if it is not.
pub(super) const FEATURES: &[&str] = &["UTF8", "TVFS", "MODEX", "XDRAFTS"];

/// Those after SITE, as `SITE HELP` lists them beside the others.
pub(super) const SITE: &[Entry] = &[
    entry("HELP", "[command]", Nothing, No),
    entry("SETNETSTACK", "driver[:name=value;...][,driver...]|default", Login, No),
    entry("SBUF", "bytes", Login, No),
    entry("RETRBUFSIZE", "bytes", Login, No),
    entry("STORBUFSIZE", "bytes", Login, No),
    entry("CHMOD", "mode path", Writing, No),
    entry("UTIME", "YYYYMMDDHHMMSS path", Writing, No),
    entry("TASKID", "task", Login, No),
    entry("CLIENTINFO", "name=value;...", Nothing, No),
    entry("DRAFTS", "[path]", Login, No),
    entry("WHOAMI", "", Login, No),
    entry("VERSION", "", Login, No),
];

/// What a command after SITE needs; those that are not known need nothing, and are refused.
/// Whether this is one line that begins with a command of this server's.
#[cfg(feature = "kerberos")]
pub(super) fn is_command(line: &[u8]) -> bool {
    let verb = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    let mut known = [COMMANDS, SECURE, TOKENS, GSI].into_iter().flatten();
    !line.contains(&b'\n') && known.any(|entry| entry.verb.as_bytes().eq_ignore_ascii_case(verb))
}

pub(super) fn needs_of_site(site: &Site) -> Needs {
    match site {
        Site::Chmod(..) | Site::Utime(..) => Writing,
        Site::NetStack(_) | Site::Buffer(..) | Site::TaskId(_) => Login,
        Site::Drafts(_) | Site::WhoAmI | Site::Version => Login,
        _ => Nothing,
    }
}
