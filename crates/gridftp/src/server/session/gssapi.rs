//! The security context behind `AUTH GSSAPI`: certificates (GSI) or tickets (Kerberos). The first token shows which:
//! GSI tokens are TLS records, Kerberos tokens have GSS-API framing (RFC 2743, section 3.1).

use super::super::identity::Identity;
#[cfg(feature = "kerberos")]
use super::commands;
use phoebus_gsi::control::{Level, Protected, ServerLogin};
#[cfg(feature = "kerberos")]
use {
    base64::Engine,
    base64::engine::general_purpose::STANDARD,
    phoebus_krb5::{Accepting, Acceptor, Context, Opened, Step as Next},
    std::sync::Arc,
};

/// First byte of a token with GSS-API framing.
#[cfg(feature = "kerberos")]
const FRAMED: u8 = 0x60;

/// Largest token, in bytes. It fits a line; tickets with the group data of Windows have some tens of kilobytes.
#[cfg(feature = "kerberos")]
const MAX_TOKEN: usize = 48 << 10;

/// A command without the end of its line, which some clients add.
#[cfg(feature = "kerberos")]
fn line_of(message: &[u8]) -> &[u8] {
    let end = message.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n' | 0)).map_or(0, |last| last + 1);
    &message[..end]
}

/// A GSSAPI handshake in progress.
pub(super) enum Handshake {
    /// The client has sent AUTH GSSAPI, and no token yet.
    Requested,
    Grid(Box<ServerLogin>),
    #[cfg(feature = "kerberos")]
    Kerberos(Accepting),
}

/// What a complete handshake leaves.
pub(super) enum SecurityContext {
    Grid(Box<Protected>),
    #[cfg(feature = "kerberos")]
    Kerberos(Arc<Context>),
}

impl SecurityContext {
    /// The identity that the client has proved.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Grid(protected) => {
                protected.context().peer().map(|peer| Identity::Certificate(peer.identity().to_owned()))
            }
            #[cfg(feature = "kerberos")]
            Self::Kerberos(context) => Some(Identity::Principal(context.principal().to_owned())),
        }
    }

    /// Whether the client used a Kerberos ticket.
    pub(super) fn is_kerberos(&self) -> bool {
        !matches!(self, Self::Grid(_))
    }

    /// Opens a protected command: its text and protection level, or `None` if `verb` is no protected command.
    pub(super) fn open(&mut self, verb: &str, token: &str) -> Result<Option<(Vec<u8>, Level)>, String> {
        match self {
            Self::Grid(protected) => {
                let opened = protected.open_command(verb, token).map_err(|error| error.to_string())?;
                Ok(opened.map(|(line, level)| (line.into_bytes(), level)))
            }
            #[cfg(feature = "kerberos")]
            Self::Kerberos(context) => {
                let Some(level) = Level::of_verb(verb) else { return Ok(None) };
                let is_encrypted = |opened: &Opened| level == Level::Integrity || opened.private;
                // What is no command may be a data message that an attacker moved here: the file would lack it.
                let is_meant = |opened: &Opened| is_encrypted(opened) && commands::is_command(line_of(&opened.bytes));
                let opened = context.unwrap_meant(&decode(token)?, is_meant).map_err(|error| error.to_string())?;
                if !is_encrypted(&opened) {
                    return Err(format!("{verb} was expected to be encrypted"));
                }
                let line = line_of(&opened.bytes).to_vec();
                Ok(Some((line, level)))
            }
        }
    }

    /// Protects a reply. The result lacks the end of the line.
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

/// The result of a Kerberos token, with the text of the reply.
#[cfg(feature = "kerberos")]
#[derive(Debug)]
pub(crate) enum TokenResult {
    More(Accepting, String),
    Done(Context, String),
    Failed(String),
}

/// Whether a token is framed as Kerberos tokens are.
#[cfg(feature = "kerberos")]
pub(super) fn is_framed(token: &str) -> bool {
    decode(token).is_ok_and(|token| token.first() == Some(&FRAMED))
}

/// A Kerberos token to check. Checking may block, because the library records tickets on disk against replay.
#[cfg(feature = "kerberos")]
#[derive(Debug)]
pub(crate) struct KerberosToken {
    pub(super) acceptor: Acceptor,
    /// The handshake so far, after earlier tokens.
    pub(super) begun: Option<Accepting>,
    pub(super) token: String,
}

/// Checks a Kerberos token. Blocks.
#[cfg(feature = "kerberos")]
pub(crate) fn check_kerberos_token(asking: KerberosToken) -> TokenResult {
    let KerberosToken { acceptor, begun, token } = asking;
    let token = match decode(&token) {
        Ok(token) => token,
        Err(why) => return TokenResult::Failed(why),
    };
    let adat = |token: Vec<u8>| format!("ADAT={}", STANDARD.encode(token));
    match begun.unwrap_or_else(|| acceptor.begin()).step(&token) {
        Ok(Next::Continue(accepting, token)) => TokenResult::More(accepting, adat(token)),
        Ok(Next::Done(context, token)) if token.is_empty() => {
            TokenResult::Done(context, "agreed by Kerberos".to_owned())
        }
        Ok(Next::Done(context, token)) => TokenResult::Done(context, adat(token)),
        Err(failure) if failure.is_insufficient_request() => {
            tracing::warn!(%failure, "a ticket was not taken");
            TokenResult::Failed(failure.to_string())
        }
        Err(failure) => {
            // The library's words may name files and principals of this host.
            tracing::warn!(%failure, "a ticket was not taken");
            TokenResult::Failed("the ticket is not taken; the server's log says why".to_owned())
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
