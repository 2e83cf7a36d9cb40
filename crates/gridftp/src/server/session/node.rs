//! XNODE, XPROVE, XBEGIN, XLEND, XRECV, XSEND: what a front end says to a data node (`stripes`). They are this server's own, and known to
//! nodes only, which know no other way to log in.
//!
//! - `XNODE user client number key` (in hexadecimal, but for the client's address): for whom the front end speaks; answered 334 with
//!   a number, the node's key and its proof. `XPROVE proof`: the front end's own, answered 234; TLS between these keys follows.
//!   `XBEGIN`, under it: answered 230.
//! - `XLEND sealed`: with whose rights data connections are made, and how they are protected; nothing takes them back.
//! - `XRECV from inode path`: what is received goes into a file that is there, `from` bytes further on than blocks say. What is
//!   synced is told by range markers.
//! - `XSEND index count unit offset length inode senders place path`: of a part of a file, every `count`th `unit` is sent. So many
//!   nodes send to the same address, each over as many connections, and the one whose place is 0 announces the ends of all.

use super::super::hex::{hex, unhex};
use super::super::stripes::link::{PROTOCOL, TLS};
use super::super::stripes::proof::{Talk, Whose, random};
use super::protect::Security;
use super::task::{Stripe, Task, What};
use super::{Session, Step};
use crate::data::pinned::{Own, Pinned};
use crate::data::{Guard, Mode, Protection, Sharing};
use phoebus_gsi::context::Expect;
use phoebus_gsi::credential::Credential;
use phoebus_proto::gridftp::reply::Reply;
use rustls::ServerConfig;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The most pieces that what one node sends is made of.
const PIECES: u64 = 1 << 20;

/// What has been said to this node, and what it may do.
#[derive(Debug, Default)]
pub(super) struct Front {
    talk: Option<Talk>,
    /// The other end has proved to have the secret; TLS between the keys of the talk is next.
    known: bool,
    /// It speaks under TLS, and nobody but it.
    proved: bool,
    /// How often rights were lent.
    lent: u64,
}

/// How data connections are protected, as the front end says.
#[derive(Clone)]
pub(super) enum Lent {
    /// With rights that a client has lent to it.
    Grid { credential: Credential, subject: String, protection: Protection },
    /// By TLS, with this node's own certificate.
    Tls(Arc<ServerConfig>),
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grid { subject, .. } => write!(f, "Lent({subject})"),
            Self::Tls(_) => f.write_str("Lent(TLS)"),
        }
    }
}

impl Session {
    /// Whether this is a front end's at a data node.
    pub(super) fn is_node(&self) -> bool {
        self.front.proved
    }

    /// Takes a line of a front end's; none, if it is none of these.
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
            b"XNODE" => match (self.front.talk.is_none(), talk_of(&text())) {
                (true, Some((talk, own))) => {
                    let (number, key) = (hex(&talk.of_node), talk.node_key);
                    let said = format!("{number} {key} {}", secret.proof(Whose::Node, &talk));
                    self.front.talk = Some(talk);
                    self.own_key = Some(own);
                    Step::Say(Reply::new(334, said))
                }
                _ => Step::say(501, "one user, client, number and key were expected"),
            },
            b"XPROVE" => match self.front.talk.clone() {
                Some(talk) if !self.front.known && secret.is_proof(Whose::Front, &talk, &text()) => {
                    self.front.known = true;
                    let Some(own) = &self.own_key else { return Some(Step::say(451, "there is no key")) };
                    let config = Pinned::new(own, talk.front_key).server(PROTOCOL);
                    Step::Secure(Reply::new(234, "TLS begins"), config)
                }
                _ => Step::Close(Reply::new(530, "this is not the front end of this data node")),
            },
            b"XBEGIN" => match self.front.talk.clone() {
                // Whoever speaks under TLS has the key of which the proof was.
                Some(talk) if self.front.known && !self.front.proved && matches!(self.security, Security::Tls) => {
                    self.front.proved = true;
                    self.peer = talk.client.to_canonical();
                    Step::task(Task::Vouched { user: talk.user, client: talk.client })
                }
                _ => Step::Close(Reply::new(530, "the front end has to prove that it is one")),
            },
            b"XLEND" if known => match self.lent_by(&text(), &secret) {
                Ok(lent) => {
                    self.lent = lent;
                    self.aim_at_nothing();
                    Step::say(200, "noted")
                }
                Err(why) => Step::say(501, why),
            },
            b"XRECV" if known => match fields::<2>(rest) {
                Some(([from, inode], path)) => self.stripe(path, |key| What::Stripe { key, from, inode }),
                None => Step::say(501, "a number, an inode and a path were expected"),
            },
            b"XSEND" if known => match fields::<8>(rest) {
                Some(([index, count, unit, offset, length, inode, senders, place], path))
                    if index < count && unit > 0 && length / unit < PIECES && place < senders && senders <= count =>
                {
                    let sharing = Sharing { senders, place };
                    let stripe = Some(Stripe { index, count, unit, inode, sharing });
                    self.stripe(path, |key| What::Send { key, part: Some((offset, length)), stripe })
                }
                _ => Step::say(501, "a stripe, a part, an inode and a path were expected"),
            },
            b"XLEND" | b"XRECV" | b"XSEND" => Step::say(530, "the front end has to prove that it is one"),
            _ => return None,
        })
    }

    fn stripe(&mut self, path: &[u8], what: impl FnOnce(phoebus_files::key::Key) -> What) -> Step {
        match self.settings.mode {
            Mode::Extended => self.transfer(path, what),
            Mode::Stream | Mode::ExtendedBoth => Step::say(504, "stripes are of MODE E"),
        }
    }

    fn lent_by(
        &mut self,
        sealed: &str,
        secret: &super::super::stripes::proof::Secret,
    ) -> Result<Option<Lent>, &'static str> {
        let talk = self.front.talk.as_ref().ok_or("XNODE has to come first")?;
        let text = secret.open(talk, self.front.lent, sealed).ok_or("what was lent cannot be opened")?;
        self.front.lent += 1;
        if text.is_empty() {
            return Ok(None);
        }
        if text.as_str() == TLS {
            let shown = self.rules.tls.as_ref().ok_or("this data node has no [tls], and cannot protect data so")?;
            return Ok(Some(Lent::Tls(shown.data.clone())));
        }
        let own =
            self.rules.gsi.as_ref().ok_or("this data node has no [gsi], and cannot authenticate data connections")?;
        let mut parts = text.splitn(3, '\n');
        let [protection, subject, pem] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        let protection = Protection::parse(protection).map_err(|_| "a protection was expected")?;
        let credential = Credential::from_pem(pem.as_bytes(), "what was lent", &own.provider);
        let credential = credential.map_err(|_| "what was lent is no credential")?;
        Ok(Some(Lent::Grid { credential, subject: subject.to_owned(), protection }))
    }

    /// How data connections are protected whose rights came from a front end.
    pub(super) fn guard_of_front(&self) -> Option<Guard> {
        match self.lent.as_ref()? {
            Lent::Grid { credential, subject, protection } => {
                let endpoint = self.rules.gsi.as_ref()?.endpoint_with(credential);
                let (peer, protection) = (Expect::Subject(subject.clone()), *protection);
                Some(Guard::Gsi { endpoint, peer, protection })
            }
            // The session of the control connection is the front end's, and nothing here knows it.
            Lent::Tls(config) => Some(Guard::TlsServer { config: config.clone(), resumes: false }),
        }
    }

    /// Whether the front end has lent rights by which the other ends of data connections have to prove who they are.
    pub(super) fn has_lent_rights(&self) -> bool {
        matches!(self.lent, Some(Lent::Grid { .. }))
    }

    /// Whether it says that data goes under TLS.
    pub(super) fn has_lent_tls(&self) -> bool {
        matches!(self.lent, Some(Lent::Tls(_)))
    }
}

/// What a front end says, with this end's part, and this end's key.
fn talk_of(text: &str) -> Option<(Talk, Own)> {
    let [user, client, number, key] = text.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let client: IpAddr = client.parse().ok()?;
    let user = String::from_utf8(unhex(user)?).ok()?;
    let own = Own::new().ok()?;
    let (of_front, of_node) = (unhex(number)?.try_into().ok()?, random()?);
    let talk = Talk { user, client, of_front, of_node, front_key: key.parse().ok()?, node_key: own.pin() };
    Some((talk, own))
}

/// So many numbers, and what follows them.
fn fields<const N: usize>(text: &[u8]) -> Option<([u64; N], &[u8])> {
    let (mut numbers, mut rest) = ([0; N], text);
    for number in &mut numbers {
        let at = rest.iter().position(|&b| b == b' ')?;
        *number = str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
        rest = &rest[at + 1..];
    }
    (!rest.is_empty()).then_some((numbers, rest))
}
