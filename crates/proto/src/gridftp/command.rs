//! Commands of clients (RFC 959, 2228, 2389, 2428, 3659, GFD.20): a verb, and after a blank its parameter.
//!
//! Parsing produces typed parameters, so that the code that executes a command handles no text. Errors distinguish
//! invalid parameters from unknown commands, because servers answer them with different codes (501, 500).

pub use super::parameter::{Cksm, CommandError, Dcau, Epsv, Eret, Esto, Mode, Path, Protection, Secret};

use super::line::is_line;
use super::marker::Restart;
use super::parameter::{self, two};
use super::site::Site;
use super::time::Stamp;
use std::net::SocketAddr;

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident $(($kind:ident $($of:ty)?))? = $verb:literal,)*) => {
        /// A command.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Command {
            $($(#[$doc])* $name $(($($of)?))?,)*
            /// A site-specific command.
            Site(Site),
        }

        impl Command {
            /// Parses a line without its line end.
            ///
            /// # Errors
            /// [`CommandError::Unknown`] for an unknown verb, [`CommandError::Syntax`] for an invalid parameter.
            pub fn parse(line: &[u8]) -> Result<Self, CommandError> {
                let (verb, rest) = two(line);
                let verb = String::from_utf8_lossy(verb).to_ascii_uppercase();
                match verb.as_str() {
                    $($verb => commands!(@parse $name $verb rest $($kind)?),)*
                    "SITE" => Site::parse(rest).map(Self::Site),
                    _ => Err(CommandError::Unknown(verb.chars().take(32).collect())),
                }
            }

            /// The verb.
            pub fn verb(&self) -> &'static str {
                match self {
                    $(commands!(@pattern $name _value $($kind)?) => $verb,)*
                    Self::Site(_) => "SITE",
                }
            }

            fn argument(&self) -> Vec<u8> {
                match self {
                    $(commands!(@pattern $name value $($kind)?) => commands!(@print value $($kind)?),)*
                    Self::Site(site) => site.encode(),
                }
            }
        }
    };
    (@pattern $name:ident $value:ident) => { Self::$name };
    (@pattern $name:ident $value:ident $kind:ident) => { Self::$name($value) };
    (@parse $name:ident $verb:literal $rest:ident) => { Ok(Self::$name) };
    (@parse $name:ident $verb:literal $rest:ident $kind:ident) => { parameter::$kind::parse($verb, $rest).map(Self::$name) };
    (@print $value:ident) => { Vec::new() };
    (@print $value:ident $kind:ident) => { parameter::$kind::print($value) };
}

commands! {
    /// The user name.
    User(name String) = "USER",
    /// The password.
    Pass(secret Secret) = "PASS",
    /// The account, a further credential.
    Acct(secret Secret) = "ACCT",
    /// Selects the security mechanism: `GSSAPI`, `TLS`.
    Auth(word String) = "AUTH",
    /// A token of the security mechanism, in base64.
    Adat(secret Secret) = "ADAT",
    /// A command with integrity protection, in base64.
    Mic(secret Secret) = "MIC",
    /// A command that is encrypted without integrity protection.
    Conf(secret Secret) = "CONF",
    /// A command that is encrypted with integrity protection.
    Enc(secret Secret) = "ENC",
    /// Ends the protection of commands.
    Ccc = "CCC",
    /// The longest protected block, in bytes.
    Pbsz(count u64) = "PBSZ",
    /// The protection level of data connections.
    Prot(protection Protection) = "PROT",
    /// The authentication of data connections.
    Dcau(dcau Dcau) = "DCAU",
    /// Closes the control connection.
    Quit = "QUIT",
    /// Resets the control connection to its initial state.
    Rein = "REIN",
    /// Does nothing.
    Noop = "NOOP",
    /// Requests the server's operating system.
    Syst = "SYST",
    /// Requests the server's features.
    Feat = "FEAT",
    /// Requests help, optionally about a command.
    Help(maybe_name Option<String>) = "HELP",
    /// The language of replies.
    Lang(maybe_name Option<String>) = "LANG",
    /// The client's software, sent by some clients.
    Clnt(name String) = "CLNT",
    /// Options of a command.
    Opts(opts (String, String)) = "OPTS",
    /// Changes the working directory.
    Cwd(place Path) = "CWD",
    /// Changes to the parent directory.
    Cdup = "CDUP",
    /// Requests the working directory.
    Pwd = "PWD",
    /// The older name of PWD.
    Xpwd = "XPWD",
    /// Creates a directory.
    Mkd(place Path) = "MKD",
    /// Removes a directory.
    Rmd(place Path) = "RMD",
    /// Removes a file.
    Dele(place Path) = "DELE",
    /// The old name of a rename.
    Rnfr(place Path) = "RNFR",
    /// The new name of a rename.
    Rnto(place Path) = "RNTO",
    /// Requests the size of a file.
    Size(place Path) = "SIZE",
    /// Requests the modification time.
    Mdtm(place Path) = "MDTM",
    /// Sets the modification time.
    Mfmt(dated (Stamp, Path)) = "MFMT",
    /// Requests the status, or a listing on the control channel.
    Stat(maybe_place Option<Path>) = "STAT",
    /// Requests a listing for people.
    List(maybe_place Option<Path>) = "LIST",
    /// Requests a list of names.
    Nlst(maybe_place Option<Path>) = "NLST",
    /// Requests the facts of one file.
    Mlst(maybe_place Option<Path>) = "MLST",
    /// Requests the facts of the entries of a directory.
    Mlsd(maybe_place Option<Path>) = "MLSD",
    /// Like MLSD, recursively.
    Mlsr(maybe_place Option<Path>) = "MLSR",
    /// Like MLSD, on the control channel.
    Mlsc(maybe_place Option<Path>) = "MLSC",
    /// Requests a checksum.
    Cksm(cksm Cksm) = "CKSM",
    /// The checksum that the next uploaded file must have.
    Scks(pair (String, String)) = "SCKS",
    /// The representation type.
    Type(word String) = "TYPE",
    /// The transfer mode.
    Mode(mode Mode) = "MODE",
    /// The file structure.
    Stru(word String) = "STRU",
    /// The IPv4 address on which the client listens.
    Port(port SocketAddr) = "PORT",
    /// The address of any family on which the client listens.
    Eprt(eprt SocketAddr) = "EPRT",
    /// Asks the server to listen on an IPv4 address.
    Pasv = "PASV",
    /// Asks the server to listen on an address of any family.
    Epsv(epsv Epsv) = "EPSV",
    /// Asks all stripes of the server to listen.
    Spas = "SPAS",
    /// The addresses on which the stripes of the other server listen.
    Spor(stripes Vec<SocketAddr>) = "SPOR",
    /// The restart position, or the ranges that need no transfer.
    Rest(restart Restart) = "REST",
    /// The number of bytes of the next upload.
    Allo(count u64) = "ALLO",
    /// Downloads a file.
    Retr(place Path) = "RETR",
    /// Uploads a file.
    Stor(place Path) = "STOR",
    /// Appends to a file.
    Appe(place Path) = "APPE",
    /// Uploads a file under a name that the server chooses.
    Stou = "STOU",
    /// Downloads the output of a server module for a file: `P offset length path`.
    Eret(eret Eret) = "ERET",
    /// Uploads a file as the input of a server module: `A offset path`.
    Esto(esto Esto) = "ESTO",
    /// Size of the socket buffers, in bytes.
    Sbuf(count u64) = "SBUF",
    /// The events to report, and their interval.
    Trev(name String) = "TREV",
    /// A credential for data connections.
    Dcsc(secret Secret) = "DCSC",
    /// Aborts the transfer.
    Abor = "ABOR",
}

impl Command {
    /// The line, with its line end.
    ///
    /// # Errors
    /// [`CommandError::Line`] if the parameter contains a line end.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let argument = self.argument();
        if !is_line(&argument) {
            return Err(CommandError::Line(self.verb().to_owned()));
        }
        let mut line = self.verb().as_bytes().to_vec();
        if !argument.is_empty() {
            line.push(b' ');
            line.extend(argument);
        }
        line.extend(b"\r\n");
        Ok(line)
    }
}

#[cfg(test)]
mod tests;
