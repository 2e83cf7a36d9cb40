//! The messages inside TLS between the handshake and an open context: whose turn it is, whether rights are
//! delegated, and the delegation itself (steps 4 to 7 of `docs/protocol/gsi.md`).

use super::{Context, Delegation, HandshakeError, MAX_TOKEN, State};
use crate::certificate::Certificate;
use crate::proxy::Rights;
use crate::proxy::issue::{ProxyProfile, issue};
use crate::proxy::request::{self, MAX_REQUEST, Request};
use crate::proxy::verify::verify;
use crate::{der, name};

impl Context {
    pub(super) fn after_handshake(&mut self, initiator: bool) -> Result<(), HandshakeError> {
        if self.delegation.is_none() {
            self.state = State::Open;
            return Ok(());
        }
        match (initiator, self.records.has_output()) {
            (true, true) => self.state = State::InitiatorFlag,
            (true, false) => self.send_flag()?,
            (false, pending) => {
                if !pending {
                    self.records.put(b"\0")?;
                }
                self.state = State::AcceptorFlag;
            }
        }
        Ok(())
    }

    /// Sends the delegation flag. The acceptor passes its turn with one NUL byte, or with session tickets
    /// only.
    pub(super) fn send_flag(&mut self) -> Result<(), HandshakeError> {
        let passed = self.records.take();
        if !matches!(passed.as_slice(), [] | [0]) {
            return Err(HandshakeError::Flag(shown(&passed)));
        }
        if self.delegation == Some(Delegation::None) {
            self.records.put(b"0")?;
            self.state = State::Open;
        } else {
            self.records.put(b"D")?;
            self.state = State::InitiatorRequest;
        }
        Ok(())
    }

    pub(super) fn answer_request(&mut self) -> Result<(), HandshakeError> {
        if !self.has_element(MAX_REQUEST, "the request for delegation")? {
            return Ok(());
        }
        let wanted = self.records.take();
        let key = request::read(&wanted, &self.endpoint.provider)?;
        let own = self.endpoint.credential.certificate().kind().proxy();
        let limited =
            self.delegation == Some(Delegation::Limited) || own.is_some_and(|own| own.rights == Rights::Limited);
        let terms = ProxyProfile::delegation(limited);
        let proxy = issue(&self.endpoint.credential, &key, &terms, self.now)?;
        self.records.put(proxy.der())?;
        self.state = State::Open;
        Ok(())
    }

    pub(super) fn read_flag(&mut self) -> Result<(), HandshakeError> {
        match self.records.take().as_slice() {
            // An empty record, which TLS permits.
            [] => {}
            b"0" => self.state = State::Open,
            b"D" => {
                let request = Request::generate(&self.endpoint.provider)?;
                self.records.put(request.der())?;
                self.state = State::AcceptorCertificate(Some(request));
            }
            other => return Err(HandshakeError::Flag(shown(other))),
        }
        Ok(())
    }

    pub(super) fn read_certificate(&mut self) -> Result<(), HandshakeError> {
        if !self.has_element(MAX_TOKEN, "the proxy")? {
            return Ok(());
        }
        let State::AcceptorCertificate(request) = &mut self.state else { return Err(HandshakeError::Over) };
        let (Some(request), Some(peer)) = (request.take(), &self.peer) else { return Err(HandshakeError::Over) };
        let sent = self.records.take();
        // Some peers send the rest of the chain behind the proxy; the handshake has already provided it.
        let length = der::extent(&sent).map_or(sent.len(), |(head, content)| head + content);
        let proxy =
            Certificate::parse(&sent[..length]).map_err(|error| HandshakeError::Delegated(error.to_string()))?;
        let chain: Vec<_> = std::iter::once(proxy).chain(peer.chain().iter().cloned()).collect();
        let verified = verify(chain.clone(), &self.endpoint.trust, &self.endpoint.provider, self.now)
            .map_err(|error| HandshakeError::Delegated(error.to_string()))?;
        if verified.proxies() == 0 || !name::same(verified.identity(), peer.identity()) {
            return Err(HandshakeError::Delegated(format!("it is for {}", verified.identity())));
        }
        self.delegated = Some(request.complete(chain)?);
        self.state = State::Open;
        Ok(())
    }

    /// Whether one whole DER element has arrived. An incomplete one continues in the next token.
    fn has_element(&self, limit: usize, what: &str) -> Result<bool, HandshakeError> {
        let come = self.records.peek();
        if come.first().is_some_and(|&tag| tag != der::SEQUENCE) {
            return Err(HandshakeError::Delegated(format!("{what} is not DER")));
        }
        let Some((head, content)) = der::extent(come) else { return Ok(false) };
        match head.checked_add(content) {
            Some(whole) if whole <= limit => Ok(come.len() >= whole),
            _ => Err(HandshakeError::Delegated(format!("{what} has more than {limit} bytes"))),
        }
    }
}

/// The first bytes from a peer, for an error message.
fn shown(bytes: &[u8]) -> String {
    format!("{} bytes that begin with {:02x?}", bytes.len(), &bytes[..bytes.len().min(8)])
}
