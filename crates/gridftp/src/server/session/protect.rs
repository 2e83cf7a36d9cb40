//! AUTH, ADAT, PBSZ, PROT, DCAU: who the client is by certificates or tickets, and what protects commands and data (RFC 2228, RFC 4217,
//! GFD.20, section 3; U1).
//!
//! By TLS all of the connection is protected. By GSSAPI, once the two ends agree, every command has to come as ENC, MIC or CONF, and is answered as it came. Data connections are
//! then authenticated (DCAU A) unless the client says otherwise: with the rights that it has lent (delegation), and to the same
//! subject.

use super::super::authorities::Own;
#[cfg(feature = "kerberos")]
use super::secured::Agreed;
use super::secured::{Agreeing, Secured};
use super::task::Identity;
#[cfg(feature = "kerberos")]
use super::task::Task;
use super::{Session, Step};
use crate::data::Guard;
#[cfg(feature = "kerberos")]
use crate::data::Mode;
use phoebus_gsi::channel::{DataAuth, Protection};
use phoebus_gsi::control::{Level, ServerLogin};
use phoebus_proto::gridftp::command::{self, Dcau};
use phoebus_proto::gridftp::reply::Reply;
use std::fmt;

/// What protects the control channel.
pub(super) enum Security {
    /// Nothing.
    Clear,
    /// They have begun to agree.
    Agreeing(Agreeing),
    /// They have agreed, and the answer that says so is still to go in clear.
    Agreed(Secured),
    /// All is protected; the last command was at this level.
    On(Secured, Level),
    /// All is protected by the connection itself.
    Tls,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "clear",
            Self::Agreeing(_) => "agreeing",
            Self::Agreed(_) | Self::On(..) | Self::Tls => "protected",
        })
    }
}

impl Session {
    /// What a line says that came, protected or not.
    ///
    /// # Errors
    /// The answer to one that is not protected as it has to be, or cannot be opened.
    pub(crate) fn open(&mut self, line: Vec<u8>) -> Result<Vec<u8>, Reply> {
        let security = std::mem::replace(&mut self.security, Security::Clear);
        let (mut protected, level) = match security {
            Security::Agreed(protected) => (protected, Level::Privacy),
            Security::On(protected, level) => (protected, level),
            other => {
                self.security = other;
                return Ok(line);
            }
        };
        let text = String::from_utf8_lossy(&line);
        let (verb, token) = text.split_once(' ').unwrap_or((&text, ""));
        let opened = protected.open(verb, token);
        let (line, level) = match opened {
            Ok(Some((line, level))) => (Ok(line), level),
            Ok(None) => (Err(Reply::new(533, "commands have to be protected from here on: ENC, MIC or CONF")), level),
            Err(error) => (Err(Reply::new(535, error)), level),
        };
        self.security = Security::On(protected, level);
        line
    }

    /// An answer as it is sent.
    pub(crate) fn seal(&mut self, reply: &Reply) -> Vec<u8> {
        let mut plain = reply.encode();
        let Security::On(protected, level) = &mut self.security else {
            if self.is_curls() && plain.ends_with(b"\r\n") {
                plain.truncate(plain.len() - 2);
                plain.push(b'\n');
            }
            return plain;
        };
        let end: &[u8] = if protected.is_kerberos() { b"\n" } else { b"\r\n" };
        match protected.seal(*level, &plain) {
            Ok(line) => [line.as_bytes(), end].concat(),
            // Whoever cannot be answered under protection is not answered in clear.
            Err(_) => Vec::new(),
        }
    }

    /// Whether a token of Kerberos is about to be said. Lines with such end with LF alone: curl takes a CR for a part of the token, and
    /// refuses it, and others read lines up to the LF.
    fn is_curls(&self) -> bool {
        match &self.security {
            #[cfg(feature = "kerberos")]
            Security::Agreeing(Agreeing::Kerberos(_)) => true,
            Security::Agreed(secured) => secured.is_kerberos(),
            _ => false,
        }
    }

    /// Who the client has proved to be.
    pub(super) fn identity(&self) -> Option<Identity> {
        match &self.security {
            Security::Agreed(secured) | Security::On(secured, _) => secured.identity(),
            _ => None,
        }
    }

    /// Of which certificate the client has proved to be the subject.
    fn subject(&self) -> Option<String> {
        self.identity().and_then(|identity| match identity {
            Identity::Certificate(subject) => Some(subject),
            #[cfg(feature = "kerberos")]
            Identity::Principal(_) => None,
        })
    }

    /// Whether clients may prove who they are by tokens.
    pub(super) fn has_gssapi(&self) -> bool {
        #[cfg(feature = "kerberos")]
        if self.rules.kerberos.is_some() {
            return true;
        }
        self.rules.gsi.is_some()
    }

    /// What clients may ask for.
    pub(super) fn mechanisms(&self) -> impl Iterator<Item = &'static str> {
        let tls = self.rules.tls.as_ref().map(|_| "TLS");
        tls.into_iter().chain(self.has_gssapi().then_some("GSSAPI"))
    }

    pub(super) fn auth(&mut self, mechanism: &str, now: i64) -> Step {
        if self.is_protected() || self.account().is_some() {
            return Step::say(503, "it is too late for AUTH");
        }
        match (mechanism.to_ascii_uppercase().as_str(), &self.rules.tls) {
            ("TLS" | "TLS-C", Some(shown)) => {
                let own = shown.of_one_client();
                let config = own.control.clone();
                self.shown = Some(own);
                Step::Secure(Reply::new(234, "TLS begins"), config)
            }
            ("GSSAPI", _) if self.has_gssapi() => self.agree("AUTH", mechanism, now),
            _ => {
                Step::say(504, format!("AUTH is possible with {}", self.mechanisms().collect::<Vec<_>>().join(" and ")))
            }
        }
    }

    /// Who the server is, where this line begins something in which clients, or those whom they connect to, prove who they are by
    /// certificates: what was taken back by then is to be known.
    pub(crate) fn needs_authorities(&self, line: &[u8]) -> Option<&Own> {
        let verb = line.split(|&b| b == b' ').next().unwrap_or_default();
        let lends = || verb == b"XLEND" && self.rules.node.is_some();
        let begins = (verb.eq_ignore_ascii_case(b"AUTH") && !self.is_protected()) || lends();
        self.rules.gsi.as_ref().filter(|_| begins)
    }

    /// TLS has begun.
    pub(crate) fn secured(&mut self) {
        self.security = Security::Tls;
    }

    /// Whether nobody on the way can read what is said.
    pub(super) fn is_protected(&self) -> bool {
        matches!(self.security, Security::Agreed(_) | Security::On(..) | Security::Tls)
    }

    /// AUTH GSSAPI, or ADAT.
    pub(super) fn agree(&mut self, verb: &str, argument: &str, now: i64) -> Step {
        if self.is_protected() || self.account().is_some() {
            return Step::say(503, "who the client is has been agreed on already");
        }
        #[cfg(feature = "kerberos")]
        if verb == "ADAT"
            && let Some(step) = self.agree_by_kerberos(argument)
        {
            return step;
        }
        let Some(own) = &self.rules.gsi else {
            if verb == "AUTH" {
                self.security = Security::Agreeing(Agreeing::Asked);
                return Step::say(334, "ADAT has to follow, with a ticket");
            }
            return Step::say(535, "a ticket of Kerberos was expected");
        };
        let mut login = match std::mem::replace(&mut self.security, Security::Clear) {
            Security::Agreeing(Agreeing::Grid(login)) => login,
            _ => Box::new(ServerLogin::new(&own.endpoint())),
        };
        let answer = login.command(verb, argument, now);
        if let Some(error) = &answer.error {
            tracing::warn!(peer = %self.peer, %error, "a client was not believed");
            self.failures += 1;
        }
        let (code, text) = answer.line.split_at_checked(3).unwrap_or(("535", " not agreed"));
        let reply = Reply::new(code.parse().unwrap_or(535), text.trim_start());
        self.security = Security::Agreeing(Agreeing::Grid(login));
        if answer.done {
            let Security::Agreeing(Agreeing::Grid(login)) = std::mem::replace(&mut self.security, Security::Clear)
            else {
                return Step::say(535, "not agreed");
            };
            match login.finish() {
                Ok(protected) => {
                    self.security = Security::Agreed(Secured::Grid(Box::new(protected)));
                    self.data_auth = DataAuth::Own;
                }
                Err(error) => return Step::say(535, error.to_string()),
            }
        }
        if self.failures >= self.rules.attempts { Step::Close(reply) } else { Step::Say(reply) }
    }

    /// ADAT with a token of Kerberos; none, if it is not one.
    #[cfg(feature = "kerberos")]
    fn agree_by_kerberos(&mut self, token: &str) -> Option<Step> {
        use super::secured::{Asking, is_framed};
        let acceptor = self.rules.kerberos.clone()?;
        let begun = match &self.security {
            Security::Agreeing(Agreeing::Kerberos(_)) => true,
            Security::Agreeing(_) if is_framed(token) => false,
            Security::Clear if is_framed(token) => return Some(Step::say(503, "ADAT has to follow AUTH GSSAPI")),
            _ => return None,
        };
        let begun = match std::mem::replace(&mut self.security, Security::Clear) {
            Security::Agreeing(Agreeing::Kerberos(accepting)) if begun => Some(accepting),
            _ => None,
        };
        // Meanwhile nothing is agreed on, and what comes in clear is for nobody.
        Some(Step::task(Task::Agree(Box::new(Asking { acceptor, begun, token: token.to_owned() }))))
    }

    /// Takes what a token of Kerberos came to.
    #[cfg(feature = "kerberos")]
    pub(super) fn agreed(&mut self, agreed: Agreed) -> Step {
        match agreed {
            Agreed::More(accepting, said) => {
                self.security = Security::Agreeing(Agreeing::Kerberos(accepting));
                Step::say(335, said)
            }
            Agreed::Done(context, said) => {
                self.security = Security::Agreed(Secured::Kerberos(context.into()));
                Step::say(235, said)
            }
            Agreed::Failed(why) => {
                self.failures += 1;
                let refusal = Reply::new(535, why);
                if self.failures >= self.rules.attempts { Step::Close(refusal) } else { Step::Say(refusal) }
            }
        }
    }

    pub(super) fn pbsz(&self, bytes: u64) -> Step {
        match &self.security {
            #[cfg(feature = "kerberos")]
            Security::On(Secured::Kerberos(_), _) => {
                use crate::data::kerberos::{MAX_MESSAGE, MIN_MESSAGE};
                match bytes {
                    _ if bytes < MIN_MESSAGE as u64 => {
                        Step::say(501, format!("at least {MIN_MESSAGE} bytes were expected"))
                    }
                    _ => Step::say(200, format!("PBSZ={}", bytes.min(MAX_MESSAGE as u64))),
                }
            }
            Security::On(..) => Step::say(200, format!("PBSZ={bytes}")),
            // TLS has blocks of its own (RFC 4217, section 8).
            Security::Tls => Step::say(200, "PBSZ=0"),
            _ => Step::say(503, "AUTH has to come first"),
        }
    }

    pub(super) fn prot(&mut self, protection: command::Protection) -> Step {
        if !self.is_protected() {
            return Step::say(503, "AUTH has to come first");
        }
        let tls = matches!(self.security, Security::Tls);
        let (protection, letter) = match protection {
            command::Protection::Clear => (Protection::Clear, 'C'),
            command::Protection::Safe | command::Protection::Confidential if tls => {
                return Step::say(536, "with TLS there are PROT C and PROT P");
            }
            command::Protection::Safe => (Protection::Safe, 'S'),
            command::Protection::Private => (Protection::Private, 'P'),
            command::Protection::Confidential => return Step::say(536, "PROT E is not to be had with GSSAPI"),
        };
        #[cfg(feature = "kerberos")]
        if let Security::On(Secured::Kerberos(context), _) = &self.security
            && protection == Protection::Private
            && !context.is_private()
        {
            return Step::say(536, "the client's context lacks confidentiality of messages; PROT S does without");
        }
        if self.protection != protection {
            self.aim_at_nothing();
        }
        self.protection = protection;
        Step::say(200, format!("protection set to {letter}"))
    }

    pub(super) fn dcau(&mut self, dcau: Dcau) -> Step {
        let auth = match dcau {
            Dcau::None => DataAuth::None,
            Dcau::Own => DataAuth::Own,
            Dcau::Subject(subject) => DataAuth::Subject(subject),
        };
        if self.subject().is_none() && auth != DataAuth::None {
            return Step::say(503, "AUTH has to come first, and by certificates");
        }
        if self.data_auth != auth {
            self.aim_at_nothing();
        }
        self.data_auth = auth;
        Step::say(200, format!("DCAU {}", self.data_auth.argument()))
    }

    /// How data connections are authenticated and protected.
    ///
    /// # Errors
    /// The answer, where what the client asked for is not to be had.
    pub(super) fn guard(&self) -> Result<Option<Guard>, Step> {
        if self.lent.is_some() {
            return Ok(self.guard_of_front());
        }
        self.asked_guard().and_then(|guard| self.guard_with_stack(guard))
    }

    /// What DCAU and PROT ask for.
    fn asked_guard(&self) -> Result<Option<Guard>, Step> {
        let protected = match (&self.security, &self.rules.tls) {
            (Security::On(Secured::Grid(protected), _), _) => protected,
            #[cfg(feature = "kerberos")]
            (Security::On(Secured::Kerberos(context), _), _) => {
                let (context, private) = (context.clone(), self.protection == Protection::Private);
                if self.protection != Protection::Clear && self.settings.mode != Mode::Stream {
                    return Err(Step::say(504, "PROT S and P go with MODE S under Kerberos"));
                }
                let guard = Guard::Kerberos { context, private };
                return Ok((self.protection != Protection::Clear).then_some(guard));
            }
            (Security::Tls, Some(shown)) if self.protection == Protection::Private => {
                let shown = self.shown.as_ref().unwrap_or(shown);
                return Ok(Some(Guard::TlsServer { config: shown.data.clone(), resumes: shown.resumes }));
            }
            _ => return Ok(None),
        };
        let Some(peer) = self.data_auth.expect(&self.subject().unwrap_or_default()) else {
            return match self.protection {
                Protection::Clear => Ok(None),
                _ => Err(Step::say(536, "data can be protected only if data connections are authenticated (DCAU)")),
            };
        };
        let Some(own) = &self.rules.gsi else { return Ok(None) };
        let Some(lent) = protected.context().delegated() else {
            return Err(Step::say(
                425,
                "data connections cannot be authenticated, since the client has lent no rights; DCAU N does without",
            ));
        };
        Ok(Some(Guard::Gsi { endpoint: own.endpoint_with(lent), peer, protection: self.protection }))
    }

    /// Whether the other ends of data connections have to prove who they are.
    pub(super) fn is_guarded(&self) -> bool {
        self.has_lent_rights() || matches!(self.security, Security::On(..)) && self.data_auth != DataAuth::None
    }
}
