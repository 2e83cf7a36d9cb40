//! XNODE, XPROVE, XBEGIN, XLEND, XRECV, XSEND: commands of a front end to a data node (`stripes`). They are Phoebus's
//! own. Only data nodes know them, and data nodes know no other login.
//!
//! - `XNODE user client number key` (hexadecimal but for the client's address) names the user that the front end acts
//!   for. The reply 334 has a number, the node's key and its proof. `XPROVE proof` has the front end's proof; the reply
//!   234 begins TLS between the two keys. `XBEGIN` under TLS completes the login (230).
//! - `XLEND sealed` delegates the credential of data connections, and says how they are protected. Nothing revokes it.
//! - `XRECV from inode path` receives into an existing file, `from` bytes further on than blocks say. Range markers
//!   report what is synced.
//! - `XSEND index count unit offset length inode senders place path` sends every `count`th `unit` of a part of a file.
//!   `senders` nodes send to the same address, each over as many connections, and the one with `place` 0 announces the
//!   ends of all.

use super::super::node_auth::{PROTOCOL, Purpose, Secret, TLS, Transcript, random};
use super::protect::Security;
use super::task::{Operation, Stripe, Task};
use super::{Session, Step};
use crate::data::pinned::{OwnKey, Pinned};
use crate::data::{ChannelSecurity, Mode, Protection, Sharing};
use phoebus_gsi::context::Expect;
use phoebus_gsi::credential::Credential;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::hex::{hex, unhex};
use rustls::ServerConfig;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Most pieces that one XSEND may consist of.
const PIECES: u64 = 1 << 20;

/// The state of the front end's login.
#[derive(Debug, Default)]
pub(super) struct Front {
    transcript: Option<Transcript>,
    /// The front end has proved that it knows the secret. TLS between the two keys follows.
    known: bool,
    /// The front end has completed its login under TLS.
    proved: bool,
    /// Number of XLEND commands so far: the sequence number that each is sealed with.
    delegations: u64,
}

/// What a front end has delegated for data connections.
#[derive(Clone)]
pub(super) enum Delegated {
    /// A client's credential.
    Grid { credential: Credential, subject: String, protection: Protection },
    /// TLS with the node's own certificate.
    Tls(Arc<ServerConfig>),
}

impl fmt::Debug for Delegated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grid { subject, .. } => write!(f, "Delegated({subject})"),
            Self::Tls(_) => f.write_str("Delegated(TLS)"),
        }
    }
}

impl Session {
    /// Whether this session is a front end's at a data node.
    pub(super) fn is_node(&self) -> bool {
        self.front.proved
    }

    /// Handles a front end's command. `None` for any other command.
    pub(super) fn front_line(&mut self, line: &[u8]) -> Option<Step> {
        let secret = self.rules.node.clone()?;
        let (verb, rest) = match line.iter().position(|&b| b == b' ') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let text = || String::from_utf8_lossy(rest).into_owned();
        let known = self.front.proved && self.account().is_some();
        Some(match verb {
            b"USER" | b"PASS" | b"AUTH" | b"ADAT" | b"REIN" => {
                Step::say(530, "a data node works for its front end only")
            }
            b"XNODE" => match (self.front.transcript.is_none(), transcript_of(&text())) {
                (true, Some((transcript, own))) => {
                    let (number, key) = (hex(&transcript.of_node), transcript.node_key);
                    let said = format!("{number} {key} {}", secret.proof(Purpose::Node, &transcript));
                    self.front.transcript = Some(transcript);
                    self.own_key = Some(own);
                    Step::Say(Reply::new(334, said))
                }
                _ => Step::say(501, "one user, client, number and key were expected"),
            },
            b"XPROVE" => match self.front.transcript.clone() {
                Some(transcript) if !self.front.known && secret.is_proof(Purpose::Front, &transcript, &text()) => {
                    self.front.known = true;
                    let Some(own) = &self.own_key else { return Some(Step::say(451, "there is no key")) };
                    let config = Pinned::new(own, transcript.front_key).server(PROTOCOL);
                    Step::Secure(Reply::new(234, "TLS begins"), config)
                }
                _ => Step::Close(Reply::new(530, "this is not the front end of this data node")),
            },
            b"XBEGIN" => match self.front.transcript.clone() {
                // TLS succeeds only with the key that the proof covers.
                Some(transcript)
                    if self.front.known && !self.front.proved && matches!(self.security, Security::Tls) =>
                {
                    self.front.proved = true;
                    self.peer = transcript.client.to_canonical();
                    Step::task(Task::LoginByFront { user: transcript.user, client: transcript.client })
                }
                _ => Step::Close(Reply::new(530, "the front end has to prove that it is one")),
            },
            b"XLEND" if known => match self.delegated_by(&text(), &secret) {
                Ok(lent) => {
                    self.delegated = lent;
                    self.forget_data_endpoint();
                    Step::say(200, "noted")
                }
                Err(why) => Step::say(501, why),
            },
            b"XRECV" if known => match fields::<2>(rest) {
                Some(([from, inode], path)) => self.stripe(path, |key| Operation::Stripe { key, from, inode }),
                None => Step::say(501, "a number, an inode and a path were expected"),
            },
            b"XSEND" if known => match fields::<8>(rest) {
                Some(([index, count, unit, offset, length, inode, senders, place], path))
                    if index < count && unit > 0 && length / unit < PIECES && place < senders && senders <= count =>
                {
                    let sharing = Sharing { senders, place };
                    let stripe = Some(Stripe { index, count, unit, inode, sharing });
                    self.stripe(path, |key| Operation::Send { key, part: Some((offset, length)), stripe })
                }
                _ => Step::say(501, "a stripe, a part, an inode and a path were expected"),
            },
            b"XLEND" | b"XRECV" | b"XSEND" => Step::say(530, "the front end has to prove that it is one"),
            _ => return None,
        })
    }

    fn stripe(&mut self, path: &[u8], what: impl FnOnce(phoebus_files::key::Key) -> Operation) -> Step {
        match self.settings.mode {
            Mode::Extended => self.transfer(path, what),
            Mode::Stream => Step::say(504, "stripes are of MODE E"),
        }
    }

    fn delegated_by(&mut self, sealed: &str, secret: &Secret) -> Result<Option<Delegated>, &'static str> {
        let transcript = self.front.transcript.as_ref().ok_or("XNODE has to come first")?;
        let text = secret
            .open(transcript, self.front.delegations, sealed)
            .ok_or("the delegated credential cannot be decrypted")?;
        self.front.delegations += 1;
        if text.is_empty() {
            return Ok(None);
        }
        if text.as_str() == TLS {
            let shown = self.rules.tls.as_ref().ok_or("this data node has no [tls], and cannot protect data so")?;
            return Ok(Some(Delegated::Tls(shown.data.clone())));
        }
        let own =
            self.rules.gsi.as_ref().ok_or("this data node has no [gsi], and cannot authenticate data connections")?;
        let mut parts = text.splitn(3, '\n');
        let [protection, subject, pem] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        let protection = Protection::parse(protection).map_err(|_| "a protection was expected")?;
        let credential = Credential::from_pem(pem.as_bytes(), "the delegated credential", &own.provider);
        let credential = credential.map_err(|_| "the delegated credential is not valid")?;
        Ok(Some(Delegated::Grid { credential, subject: subject.to_owned(), protection }))
    }

    /// How data connections are protected, as the front end has delegated.
    pub(super) fn security_from_front(&self) -> Option<ChannelSecurity> {
        match self.delegated.as_ref()? {
            Delegated::Grid { credential, subject, protection } => {
                let endpoint = self.rules.gsi.as_ref()?.endpoint_with(credential);
                let (peer, protection) = (Expect::Subject(subject.clone()), *protection);
                Some(ChannelSecurity::Gsi { endpoint, peer, protection })
            }
            // The TLS session of the control connection belongs to the front end, so it cannot be resumed here.
            Delegated::Tls(config) => Some(ChannelSecurity::TlsServer { config: config.clone(), resumes: false }),
        }
    }

    /// Whether the front end has delegated a credential, which authenticates data connections.
    pub(super) fn has_delegated_credential(&self) -> bool {
        matches!(self.delegated, Some(Delegated::Grid { .. }))
    }

    /// Whether the front end has said that data goes under TLS.
    pub(super) fn has_delegated_tls(&self) -> bool {
        matches!(self.delegated, Some(Delegated::Tls(_)))
    }
}

/// Parses XNODE, and adds this end's part and key.
fn transcript_of(text: &str) -> Option<(Transcript, OwnKey)> {
    let [user, client, number, key] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let client: IpAddr = client.parse().ok()?;
    let user = String::from_utf8(unhex(user)?).ok()?;
    let own = OwnKey::new().ok()?;
    let (of_front, of_node) = (unhex(number)?.try_into().ok()?, random()?);
    let transcript = Transcript { user, client, of_front, of_node, front_key: key.parse().ok()?, node_key: own.pin() };
    Some((transcript, own))
}

/// Parses `N` numbers. Returns them and the rest of the line.
fn fields<const N: usize>(text: &[u8]) -> Option<([u64; N], &[u8])> {
    let (mut numbers, mut rest) = ([0; N], text);
    for number in &mut numbers {
        let at = rest.iter().position(|&b| b == b' ')?;
        *number = str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
        rest = &rest[at + 1..];
    }
    (!rest.is_empty()).then_some((numbers, rest))
}
