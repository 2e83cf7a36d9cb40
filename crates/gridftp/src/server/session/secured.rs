//! What `AUTH GSSAPI` comes to: certificates (GSI) or tickets (Kerberos). Tokens tell which it is: those of GSI are records of TLS, those of
//! Kerberos are framed as GSS-API has it (RFC 2743, section 3.1).

#[cfg(feature = "kerberos")]
use super::table;
use super::task::Identity;
use phoebus_gsi::control::{Level, Protected, ServerLogin};
#[cfg(feature = "kerberos")]
use {
    base64::Engine,
    base64::engine::general_purpose::STANDARD,
    phoebus_krb5::{Accepting, Acceptor, Context, Step as Next},
    std::sync::Arc,
};

/// What a token that is framed as GSS-API has it begins with.
#[cfg(feature = "kerberos")]
const FRAMED: u8 = 0x60;

/// The most bytes of a token, which fit a line: tickets with what Windows says of groups have some tens of kilobytes.
#[cfg(feature = "kerberos")]
const MAX_TOKEN: usize = 48 << 10;

/// Two ends that are about to agree.
pub(super) enum Agreeing {
    /// Nothing has come but that they are to.
    Asked,
    Grid(Box<ServerLogin>),
    #[cfg(feature = "kerberos")]
    Kerberos(Accepting),
}

/// Two ends that have agreed.
pub(super) enum Secured {
    Grid(Box<Protected>),
    #[cfg(feature = "kerberos")]
    Kerberos(Arc<Context>),
}

impl Secured {
    /// Who the client has proved to be.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Grid(protected) => {
                protected.context().peer().map(|peer| Identity::Certificate(peer.identity().to_owned()))
            }
            #[cfg(feature = "kerberos")]
            Self::Kerberos(context) => Some(Identity::Principal(context.principal().to_owned())),
        }
    }

    /// Whether it is by tickets.
    pub(super) fn is_kerberos(&self) -> bool {
        !matches!(self, Self::Grid(_))
    }

    /// What is in a command that has come, and how it was protected; none, if it was not.
    pub(super) fn open(&mut self, verb: &str, token: &str) -> Result<Option<(Vec<u8>, Level)>, String> {
        match self {
            Self::Grid(protected) => {
                let opened = protected.open_command(verb, token).map_err(|error| error.to_string())?;
                Ok(opened.map(|(line, level)| (line.into_bytes(), level)))
            }
            #[cfg(feature = "kerberos")]
            Self::Kerberos(context) => {
                let Some(level) = Level::of_verb(verb) else { return Ok(None) };
                let opened = context.unwrap(&decode(token)?).map_err(|error| error.to_string())?;
                if level != Level::Integrity && !opened.private {
                    return Err(format!("{verb} was expected to be encrypted"));
                }
                let mut line = opened.bytes;
                while line.last().is_some_and(|last| matches!(last, b'\r' | b'\n' | 0)) {
                    line.pop();
                }
                if !table::is_command(&line) {
                    // It may be some of a file's bytes, which are then missing there.
                    context.stray();
                }
                Ok(Some((line, level)))
            }
        }
    }

    /// An answer under protection, without the end of its line.
    pub(super) fn seal(&mut self, level: Level, reply: &[u8]) -> Result<String, String> {
        match self {
            Self::Grid(protected) => {
                protected.reply(level, &String::from_utf8_lossy(reply)).map_err(|error| error.to_string())
            }
            #[cfg(feature = "kerberos")]
            Self::Kerberos(context) => {
                let sealed = context.wrap(reply, level != Level::Integrity).map_err(|error| error.to_string())?;
                Ok(format!("{} {}", level.code(), STANDARD.encode(sealed)))
            }
        }
    }
}

/// What a token of Kerberos came to, and the line that answers it.
#[cfg(feature = "kerberos")]
#[derive(Debug)]
pub(crate) enum Agreed {
    More(Accepting, String),
    Done(Context, String),
    Failed(String),
}

/// Whether a token is Kerberos's.
#[cfg(feature = "kerberos")]
pub(super) fn is_framed(token: &str) -> bool {
    decode(token).is_ok_and(|token| token.first() == Some(&FRAMED))
}

/// A token of Kerberos that is to be looked at, by one who may wait: the library notes tickets on the disk.
#[cfg(feature = "kerberos")]
#[derive(Debug)]
pub(crate) struct Asking {
    pub(super) acceptor: Acceptor,
    /// What came of those before it.
    pub(super) begun: Option<Accepting>,
    pub(super) token: String,
}

/// Takes a token of Kerberos.
#[cfg(feature = "kerberos")]
pub(crate) fn by_kerberos(asking: Asking) -> Agreed {
    let Asking { acceptor, begun, token } = asking;
    let token = match decode(&token) {
        Ok(token) => token,
        Err(why) => return Agreed::Failed(why),
    };
    let adat = |token: Vec<u8>| format!("ADAT={}", STANDARD.encode(token));
    match begun.unwrap_or_else(|| acceptor.begin()).step(&token) {
        Ok(Next::Continue(accepting, token)) => Agreed::More(accepting, adat(token)),
        Ok(Next::Done(context, token)) if token.is_empty() => Agreed::Done(context, "agreed by Kerberos".to_owned()),
        Ok(Next::Done(context, token)) => Agreed::Done(context, adat(token)),
        Err(failure) if failure.is_lacking() => {
            tracing::warn!(%failure, "a ticket was not taken");
            Agreed::Failed(failure.to_string())
        }
        Err(failure) => {
            // The library's words may name files and principals of this host.
            tracing::warn!(%failure, "a ticket was not taken");
            Agreed::Failed("the ticket is not taken; the server's log says why".to_owned())
        }
    }
}

#[cfg(feature = "kerberos")]
fn decode(token: &str) -> Result<Vec<u8>, String> {
    if token.len() > MAX_TOKEN / 3 * 4 + 4 {
        return Err(format!("a token of at most {MAX_TOKEN} bytes was expected"));
    }
    STANDARD.decode(token.trim()).map_err(|_| "the token is not base64".to_owned())
}
