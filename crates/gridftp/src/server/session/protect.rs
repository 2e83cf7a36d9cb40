//! AUTH, ADAT, PBSZ, PROT, DCAU: identity of the client by certificates or tickets, and protection of commands and data
//! (RFC 2228, RFC 4217, GFD.20, section 3; U1).
//!
//! TLS protects the whole connection. After a GSSAPI handshake, each command comes as ENC, MIC or CONF, and its reply
//! has the same protection. By default, data connections are then authenticated (DCAU A) with the delegated credential,
//! and expect the same subject.

use super::super::authorities::HostIdentity;
use super::super::identity::Identity;
#[cfg(feature = "kerberos")]
use super::gssapi::TokenResult;
use super::gssapi::{Handshake, SecurityContext};
#[cfg(feature = "kerberos")]
use super::task::Task;
use super::{Session, Step};
use crate::data::ChannelSecurity;
#[cfg(feature = "kerberos")]
use crate::data::Mode;
use phoebus_gsi::channel::{DataAuth, Protection};
use phoebus_gsi::control::{Level, ServerLogin};
use phoebus_proto::gridftp::command::{self, Dcau};
use phoebus_proto::gridftp::reply::Reply;
use std::fmt;

/// Protection of the control channel.
pub(super) enum Security {
    /// No protection.
    Clear,
    /// The GSSAPI handshake is in progress.
    Handshaking(Handshake),
    /// The GSSAPI handshake is complete; the reply that says so still goes in clear.
    Established(SecurityContext),
    /// GSSAPI protects commands and replies; the last command had this level.
    Active(SecurityContext, Level),
    /// TLS protects the whole connection.
    Tls,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "clear",
            Self::Handshaking(_) => "handshaking",
            Self::Established(_) | Self::Active(..) | Self::Tls => "protected",
        })
    }
}

impl Session {
    /// Opens a line, protected or not.
    ///
    /// # Errors
    /// The reply to a line that lacks the required protection or cannot be opened.
    pub(crate) fn open(&mut self, line: Vec<u8>) -> Result<Vec<u8>, Reply> {
        let security = std::mem::replace(&mut self.security, Security::Clear);
        let (mut protected, level) = match security {
            Security::Established(protected) => (protected, Level::Privacy),
            Security::Active(protected, level) => (protected, level),
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
        self.security = Security::Active(protected, level);
        line
    }

    /// Protects a reply as the session requires, ready to be sent.
    pub(crate) fn seal(&mut self, reply: &Reply) -> Vec<u8> {
        let mut plain = reply.encode();
        let Security::Active(protected, level) = &mut self.security else {
            if self.is_curls() && plain.ends_with(b"\r\n") {
                plain.truncate(plain.len() - 2);
                plain.push(b'\n');
            }
            return plain;
        };
        let end: &[u8] = if protected.is_kerberos() { b"\n" } else { b"\r\n" };
        match protected.seal(*level, &plain) {
            Ok(line) => [line.as_bytes(), end].concat(),
            // A reply that cannot be protected is not sent in clear.
            Err(_) => Vec::new(),
        }
    }

    /// Whether the next reply has a Kerberos token. Its line ends with LF alone, because curl takes a CR as part of the
    /// token and refuses it. Other clients accept LF.
    fn is_curls(&self) -> bool {
        match &self.security {
            #[cfg(feature = "kerberos")]
            Security::Handshaking(Handshake::Kerberos(_)) => true,
            Security::Established(secured) => secured.is_kerberos(),
            _ => false,
        }
    }

    /// The identity that the client has proved.
    pub(super) fn identity(&self) -> Option<Identity> {
        match &self.security {
            Security::Established(secured) | Security::Active(secured, _) => secured.identity(),
            _ => None,
        }
    }

    /// The subject of the client's certificate.
    fn subject(&self) -> Option<String> {
        match self.identity()? {
            Identity::Certificate(subject) => Some(subject),
            #[cfg(feature = "kerberos")]
            Identity::Principal(_) => None,
        }
    }

    /// Whether clients may log in by GSSAPI tokens.
    pub(super) fn has_gssapi(&self) -> bool {
        #[cfg(feature = "kerberos")]
        if self.rules.kerberos.is_some() {
            return true;
        }
        self.rules.gsi.is_some()
    }

    /// The mechanisms of AUTH.
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

    /// The GSI identity, if `line` begins an authentication by certificates. Its revocation lists are to be refreshed
    /// before.
    pub(crate) fn needs_authorities(&self, line: &[u8]) -> Option<&HostIdentity> {
        let verb = line.split(|&b| b == b' ').next().unwrap_or_default();
        let lends = || verb == b"XLEND" && self.rules.node.is_some();
        let begins = (verb.eq_ignore_ascii_case(b"AUTH") && !self.is_protected()) || lends();
        self.rules.gsi.as_ref().filter(|_| begins)
    }

    /// Records that TLS has begun.
    pub(crate) fn secured(&mut self) {
        self.security = Security::Tls;
    }

    /// Whether the control channel is encrypted.
    pub(super) fn is_protected(&self) -> bool {
        matches!(self.security, Security::Established(_) | Security::Active(..) | Security::Tls)
    }

    /// Handles AUTH GSSAPI and ADAT.
    pub(super) fn agree(&mut self, verb: &str, argument: &str, now: i64) -> Step {
        if self.is_protected() || self.account().is_some() {
            return Step::say(503, "who the client is has been agreed on already");
        }
        #[cfg(feature = "kerberos")]
        if verb == "ADAT"
            && let Some(step) = self.kerberos_token(argument)
        {
            return step;
        }
        let Some(own) = &self.rules.gsi else {
            if verb == "AUTH" {
                self.security = Security::Handshaking(Handshake::Requested);
                return Step::say(334, "ADAT has to follow, with a ticket");
            }
            return Step::say(535, "a ticket of Kerberos was expected");
        };
        let mut login = match std::mem::replace(&mut self.security, Security::Clear) {
            Security::Handshaking(Handshake::Grid(login)) => login,
            _ => Box::new(ServerLogin::new(&own.endpoint())),
        };
        let answer = login.command(verb, argument, now);
        if let Some(error) = &answer.error {
            tracing::warn!(peer = %self.peer, %error, "a client was not believed");
            self.failures += 1;
        }
        let (code, text) = answer.line.split_at_checked(3).unwrap_or(("535", " not agreed"));
        let reply = Reply::new(code.parse().unwrap_or(535), text.trim_start());
        self.security = Security::Handshaking(Handshake::Grid(login));
        if answer.done {
            let Security::Handshaking(Handshake::Grid(login)) = std::mem::replace(&mut self.security, Security::Clear)
            else {
                return Step::say(535, "not agreed");
            };
            match login.finish() {
                Ok(protected) => {
                    self.security = Security::Established(SecurityContext::Grid(Box::new(protected)));
                    self.data_auth = DataAuth::Own;
                }
                Err(error) => return Step::say(535, error.to_string()),
            }
        }
        if self.failures >= self.rules.attempts { Step::Close(reply) } else { Step::Say(reply) }
    }

    /// Handles ADAT with a Kerberos token. `None` for other tokens.
    #[cfg(feature = "kerberos")]
    fn kerberos_token(&mut self, token: &str) -> Option<Step> {
        use super::gssapi::{KerberosToken, is_framed};
        let acceptor = self.rules.kerberos.clone()?;
        let begun = match &self.security {
            Security::Handshaking(Handshake::Kerberos(_)) => true,
            Security::Handshaking(_) if is_framed(token) => false,
            Security::Clear if is_framed(token) => return Some(Step::say(503, "ADAT has to follow AUTH GSSAPI")),
            _ => return None,
        };
        let begun = match std::mem::replace(&mut self.security, Security::Clear) {
            Security::Handshaking(Handshake::Kerberos(accepting)) if begun => Some(accepting),
            _ => None,
        };
        // While the token is checked the state is `Clear`, so no command counts as protected.
        Some(Step::task(Task::CheckToken(Box::new(KerberosToken { acceptor, begun, token: token.to_owned() }))))
    }

    /// Handles the result of a Kerberos token.
    #[cfg(feature = "kerberos")]
    pub(super) fn agreed(&mut self, agreed: TokenResult) -> Step {
        match agreed {
            TokenResult::More(accepting, said) => {
                self.security = Security::Handshaking(Handshake::Kerberos(accepting));
                Step::say(335, said)
            }
            TokenResult::Done(context, said) => {
                self.security = Security::Established(SecurityContext::Kerberos(context.into()));
                Step::say(235, said)
            }
            TokenResult::Failed(why) => {
                self.failures += 1;
                let refusal = Reply::new(535, why);
                if self.failures >= self.rules.attempts { Step::Close(refusal) } else { Step::Say(refusal) }
            }
        }
    }

    pub(super) fn pbsz(&self, bytes: u64) -> Step {
        match &self.security {
            #[cfg(feature = "kerberos")]
            Security::Active(SecurityContext::Kerberos(_), _) => {
                use crate::data::kerberos::{MAX_MESSAGE, MIN_MESSAGE};
                match bytes {
                    _ if bytes < MIN_MESSAGE as u64 => {
                        Step::say(501, format!("at least {MIN_MESSAGE} bytes were expected"))
                    }
                    _ => Step::say(200, format!("PBSZ={}", bytes.min(MAX_MESSAGE as u64))),
                }
            }
            Security::Active(..) => Step::say(200, format!("PBSZ={bytes}")),
            // TLS has its own blocks (RFC 4217, section 8).
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
            command::Protection::Confidential => return Step::say(536, "PROT E is not available with GSSAPI"),
        };
        #[cfg(feature = "kerberos")]
        if let Security::Active(SecurityContext::Kerberos(context), _) = &self.security
            && protection == Protection::Private
            && !context.is_private()
        {
            return Step::say(536, "the client's context lacks confidentiality of messages; PROT S does without");
        }
        if self.protection != protection {
            self.forget_data_endpoint();
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
            self.forget_data_endpoint();
        }
        self.data_auth = auth;
        Step::say(200, format!("DCAU {}", self.data_auth.argument()))
    }

    /// How data connections are authenticated and protected.
    ///
    /// # Errors
    /// The reply, if the client's settings cannot be met.
    pub(super) fn channel_security(&self) -> Result<Option<ChannelSecurity>, Step> {
        if self.delegated.is_some() {
            return Ok(self.security_from_front());
        }
        self.requested_security().and_then(|security| self.with_stack_security(security))
    }

    /// The security that DCAU and PROT ask for.
    fn requested_security(&self) -> Result<Option<ChannelSecurity>, Step> {
        let protected = match (&self.security, &self.rules.tls) {
            (Security::Active(SecurityContext::Grid(protected), _), _) => protected,
            #[cfg(feature = "kerberos")]
            (Security::Active(SecurityContext::Kerberos(context), _), _) => {
                let (context, private) = (context.clone(), self.protection == Protection::Private);
                if self.protection != Protection::Clear && self.settings.mode != Mode::Stream {
                    return Err(Step::say(504, "PROT S and P go with MODE S under Kerberos"));
                }
                let security = ChannelSecurity::Kerberos { context, private, before: Default::default() };
                return Ok((self.protection != Protection::Clear).then_some(security));
            }
            (Security::Tls, Some(shown)) if self.protection == Protection::Private => {
                let shown = self.shown.as_ref().unwrap_or(shown);
                return Ok(Some(ChannelSecurity::TlsServer { config: shown.data.clone(), resumes: shown.resumes }));
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
        Ok(Some(ChannelSecurity::Gsi { endpoint: own.endpoint_with(lent), peer, protection: self.protection }))
    }

    /// Whether the peers of data connections are authenticated.
    pub(super) fn authenticates_data(&self) -> bool {
        self.has_delegated_credential()
            || matches!(self.security, Security::Active(..)) && self.data_auth != DataAuth::None
    }
}
