//! The table of all commands: what each needs, its usage, and its line in FEAT. The server answers others with 502.

use phoebus_proto::gridftp::site::Site;

/// What a session needs for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: also before the login.
    Nothing,
    /// A login.
    Login,
    /// A login with the right to write.
    Writing,
}

/// A command.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) verb: &'static str,
    /// Its parameters, for HELP.
    pub(super) usage: &'static str,
    pub(super) needs: Needs,
    /// Its line in FEAT.
    pub(super) feature: Feature,
}

/// How FEAT lists a command (RFC 2389: commands of RFC 959 are not listed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// Not at all.
    No,
    /// With these words.
    Is(&'static str),
    /// With the facts of MLST, which the session knows.
    Facts,
    /// With the checksum algorithms.
    Checksums,
    /// With the mechanisms of AUTH, one line each.
    Mechanisms,
}

use Feature::{Checksums, Facts, Is, Mechanisms, No};
use Needs::{Login, Nothing, Writing};

const fn entry(verb: &'static str, usage: &'static str, needs: Needs, feature: Feature) -> Entry {
    Entry { verb, usage, needs, feature }
}

/// Commands that are always available, in the order of HELP.
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
    entry("MODE", "S|E", Login, Is("PARALLEL")),
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
    entry("GET", "path=...;[pasv;|port=...;][mode=S|E;]", Login, No),
    entry("PUT", "path=...;[pasv;|port=...;][mode=S|E;]", Writing, No),
    entry("SITE", "command ...", Nothing, No),
];

/// Commands of RFC 2228 and RFC 4217.
pub(super) const SECURE: &[Entry] = &[
    entry("AUTH", "TLS|GSSAPI", Nothing, Mechanisms),
    entry("PBSZ", "bytes", Nothing, Is("PBSZ")),
    entry("PROT", "C|S|P", Nothing, Is("PROT")),
];

/// Commands of GSSAPI.
pub(super) const TOKENS: &[Entry] = &[entry("ADAT", "token", Nothing, No)];

/// Commands for clients with certificates.
pub(super) const GSI: &[Entry] = &[entry("DCAU", "N|A|S subject", Nothing, Is("DCAU"))];

/// Features without a command. XDRAFTS is Phoebus's own: an upload has no name before it is complete, and REST at data
/// that the server does not have is refused. XSYNC says that there is SITE SYNC, and
/// XBATCH that there are SITE WANT, MGET and MPUT.
pub(super) const FEATURES: &[&str] = &["UTF8", "TVFS", "XDRAFTS", "XSYNC", "XBATCH"];

/// Subcommands of SITE, in the order of `SITE HELP`.
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
    entry("SYNC", "", Login, No),
    entry("WANT", "path[//path...]", Login, No),
    entry("MGET", "", Login, No),
    entry("MPUT", "", Writing, No),
    entry("WHOAMI", "", Login, No),
    entry("VERSION", "", Login, No),
];

/// Whether this is one line that begins with a command of this server.
#[cfg(feature = "kerberos")]
pub(super) fn is_command(line: &[u8]) -> bool {
    let verb = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    let mut known = [COMMANDS, SECURE, TOKENS, GSI].into_iter().flatten();
    !line.contains(&b'\n') && known.any(|entry| entry.verb.as_bytes().eq_ignore_ascii_case(verb))
}

/// What a subcommand of SITE needs. Unknown ones need nothing, and are refused.
pub(super) fn needs_of_site(site: &Site) -> Needs {
    match site {
        Site::Chmod(..) | Site::Utime(..) | Site::PutBatch => Writing,
        Site::Want(_) | Site::GetBatch => Login,
        Site::NetStack(_) | Site::Buffer(..) | Site::TaskId(_) => Login,
        Site::Drafts(_) | Site::Sync | Site::WhoAmI | Site::Version => Login,
        _ => Nothing,
    }
}
