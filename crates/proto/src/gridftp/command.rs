//! What clients ask (RFC 959, 2228, 2389, 2428, 3659, GFD.20): a verb of letters, and after a blank what belongs to it.
//!
//! A command is read into what it means, so that who carries it out meets no text. What cannot be understood is told apart
//! from what is not known, since servers answer the two differently (501, 500).

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
            /// Sets buffers and the like.
            Site(Site),
        }

        impl Command {
            /// Reads a line, without its end.
            ///
            /// # Errors
            /// It is not a command that is known, or not said as it should be.
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
    /// Who the client is.
    User(name String) = "USER",
    /// The password.
    Pass(secret Secret) = "PASS",
    /// A further name for accounting.
    Acct(secret Secret) = "ACCT",
    /// The mechanism of security that follows: `GSSAPI`, `TLS`.
    Auth(word String) = "AUTH",
    /// A token of it, in base64.
    Adat(secret Secret) = "ADAT",
    /// A command with its integrity protected, in base64.
    Mic(secret Secret) = "MIC",
    /// One that is encrypted, and no more than that.
    Conf(secret Secret) = "CONF",
    /// One that is encrypted.
    Enc(secret Secret) = "ENC",
    /// No more protection of commands.
    Ccc = "CCC",
    /// The longest protected block, in bytes.
    Pbsz(count u64) = "PBSZ",
    /// How data is protected.
    Prot(protection Protection) = "PROT",
    /// How data connections are authenticated.
    Dcau(dcau Dcau) = "DCAU",
    /// The end.
    Quit = "QUIT",
    /// As if just connected.
    Rein = "REIN",
    /// Nothing.
    Noop = "NOOP",
    /// What system this is.
    Syst = "SYST",
    /// What the server can do.
    Feat = "FEAT",
    /// Help, about a command perhaps.
    Help(maybe_name Option<String>) = "HELP",
    /// The language of answers.
    Lang(maybe_name Option<String>) = "LANG",
    /// What program the client is, as some say it.
    Clnt(name String) = "CLNT",
    /// Options of a command.
    Opts(opts (String, String)) = "OPTS",
    /// Goes to a directory.
    Cwd(place Path) = "CWD",
    /// Goes up.
    Cdup = "CDUP",
    /// Where the client is.
    Pwd = "PWD",
    /// The same, by its older name.
    Xpwd = "XPWD",
    /// Makes a directory.
    Mkd(place Path) = "MKD",
    /// Removes one.
    Rmd(place Path) = "RMD",
    /// Removes a file.
    Dele(place Path) = "DELE",
    /// What will be renamed.
    Rnfr(place Path) = "RNFR",
    /// To what.
    Rnto(place Path) = "RNTO",
    /// How many bytes there are.
    Size(place Path) = "SIZE",
    /// When it was modified.
    Mdtm(place Path) = "MDTM",
    /// Sets that.
    Mfmt(dated (Stamp, Path)) = "MFMT",
    /// How things are, or a listing on the control channel.
    Stat(maybe_place Option<Path>) = "STAT",
    /// A listing for people.
    List(maybe_place Option<Path>) = "LIST",
    /// Names.
    Nlst(maybe_place Option<Path>) = "NLST",
    /// Facts of one file.
    Mlst(maybe_place Option<Path>) = "MLST",
    /// Facts of what is in a directory.
    Mlsd(maybe_place Option<Path>) = "MLSD",
    /// The same of all below it.
    Mlsr(maybe_place Option<Path>) = "MLSR",
    /// The same as MLSD, on the control channel.
    Mlsc(maybe_place Option<Path>) = "MLSC",
    /// A checksum.
    Cksm(cksm Cksm) = "CKSM",
    /// The checksum that the next file must have.
    Scks(pair (String, String)) = "SCKS",
    /// How data is represented.
    Type(word String) = "TYPE",
    /// How it is transmitted.
    Mode(mode Mode) = "MODE",
    /// What structure files have.
    Stru(word String) = "STRU",
    /// Where the client listens.
    Port(port SocketAddr) = "PORT",
    /// The same in any family.
    Eprt(eprt SocketAddr) = "EPRT",
    /// Asks the server to listen.
    Pasv = "PASV",
    /// The same in any family.
    Epsv(epsv Epsv) = "EPSV",
    /// Asks all its stripes to.
    Spas = "SPAS",
    /// Where all stripes listen.
    Spor(stripes Vec<SocketAddr>) = "SPOR",
    /// What need not be sent.
    Rest(restart Restart) = "REST",
    /// How many bytes will come.
    Allo(count u64) = "ALLO",
    /// Sends a file.
    Retr(place Path) = "RETR",
    /// Receives one.
    Stor(place Path) = "STOR",
    /// Receives what follows a file's end.
    Appe(place Path) = "APPE",
    /// Receives one, and gives it a name.
    Stou = "STOU",
    /// Sends what a module makes of a file: `P offset length path`.
    Eret(eret Eret) = "ERET",
    /// Receives what a module makes a file of: `A offset path`.
    Esto(esto Esto) = "ESTO",
    /// The buffers of sockets, in bytes.
    Sbuf(count u64) = "SBUF",
    /// What events to tell of, and how often.
    Trev(name String) = "TREV",
    /// A credential for data connections.
    Dcsc(secret Secret) = "DCSC",
    /// Stops the transfer.
    Abor = "ABOR",
}

impl Command {
    /// The line, with its end.
    ///
    /// # Errors
    /// [`CommandError::Line`].
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
