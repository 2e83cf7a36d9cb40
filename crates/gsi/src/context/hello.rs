//! Hides invalid server names from rustls.
//!
//! GCT puts the last common name of the expected peer into the server_name extension of its ClientHello:
//! `Jane Doe`, on every data channel. rustls rejects a ClientHello with an invalid server name. This crate
//! ignores server names, so it hides the extension: before rustls reads the ClientHello, it changes the
//! extension's number to an unknown one, which rustls skips. The handshake still authenticates the bytes that
//! the client sent: the transcript hash, and the messages that a TLS 1.2 client signs, are computed with the
//! number restored.
//!
//! This module becomes superfluous once rustls lets a server ignore such names (its `InvalidSniPolicy`, not
//! in 0.23).

use std::ops::Range;
use std::sync::LazyLock;

use rustls::crypto::CryptoProvider;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::ring::cipher_suite as ring;
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};

/// The extension `server_name` (RFC 6066, §3).
const SERVER_NAME: [u8; 2] = [0, 0];
/// An unassigned extension number. A client that sends it cannot complete its handshake.
const HIDDEN: [u8; 2] = [0xfe, 0x5a];

/// Changes the number in the records of a token that contains a whole ClientHello.
pub(super) fn hide(token: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = token.get(at..at + 5) {
        let body = at + 5;
        let end = body + usize::from(u16::from_be_bytes([header[3], header[4]]));
        let is_handshake = header[0] == 22;
        if let Some(message) = token.get_mut(body..end).filter(|_| is_handshake) {
            exchange(message, SERVER_NAME, HIDDEN);
        }
        at = end;
    }
}

/// Restores the number in a ClientHello; `None` for other messages.
fn show(messages: &[u8]) -> Option<Vec<u8>> {
    find(messages, HIDDEN)?;
    let mut shown = messages.to_vec();
    exchange(&mut shown, HIDDEN, SERVER_NAME);
    Some(shown)
}

/// The bytes that the client signed, from those that rustls recorded of the handshake.
pub(super) fn signed(messages: &[u8]) -> Vec<u8> {
    show(messages).unwrap_or_else(|| messages.to_vec())
}

fn exchange(message: &mut [u8], old: [u8; 2], new: [u8; 2]) {
    if let Some(place) = find(message, old) {
        message[place].copy_from_slice(&new);
    }
}

/// The position of the extension's number in the ClientHello at the start of `message`.
fn find(message: &[u8], number: [u8; 2]) -> Option<Range<usize>> {
    let mut reader = Reader { bytes: message, at: 0 };
    let kind = reader.length(1)?;
    let length = reader.length(3)?;
    let end = reader.at.checked_add(length)?;
    reader.bytes = message.get(..end).filter(|_| kind == 1)?;
    reader.take(2 + 32)?; // version, random
    for width in [1, 2, 1] {
        // session, cipher suites, compression
        let length = reader.length(width)?;
        reader.take(length)?;
    }
    let length = reader.length(2)?;
    let extensions = reader.at.checked_add(length)?;
    if extensions != end {
        return None;
    }
    while reader.at < end {
        let place = reader.take(2)?;
        let length = reader.length(2)?;
        reader.take(length)?;
        if reader.bytes[place.clone()] == number {
            return Some(place);
        }
    }
    None
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Skips `count` bytes and returns their position.
    fn take(&mut self, count: usize) -> Option<Range<usize>> {
        let place = self.at..self.at.checked_add(count)?;
        self.bytes.get(place.clone())?;
        self.at = place.end;
        Some(place)
    }

    /// Reads a number of `width` bytes.
    fn length(&mut self, width: usize) -> Option<usize> {
        let place = self.take(width)?;
        Some(self.bytes[place].iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
    }
}

/// A provider with the same algorithms, whose hashes restore the hidden number. Cipher suites are limited to
/// those of *ring*.
pub(super) fn restoring(provider: &CryptoProvider) -> CryptoProvider {
    static RESTORING: LazyLock<Vec<SupportedCipherSuite>> =
        LazyLock::new(|| ring_suites().into_iter().map(restoring_suite).collect());
    let wanted = |suite: &SupportedCipherSuite| RESTORING.iter().find(|known| known.suite() == suite.suite()).copied();
    CryptoProvider { cipher_suites: provider.cipher_suites.iter().filter_map(wanted).collect(), ..provider.clone() }
}

fn ring_suites() -> [SupportedCipherSuite; 9] {
    [
        ring::TLS13_AES_256_GCM_SHA384,
        ring::TLS13_AES_128_GCM_SHA256,
        ring::TLS13_CHACHA20_POLY1305_SHA256,
        ring::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ring::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ring::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ring::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ring::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ring::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ]
}

/// Wraps a cipher suite. rustls requires suites with a static lifetime; each is leaked once.
fn restoring_suite(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let common = |old: &CipherSuiteCommon| CipherSuiteCommon {
        suite: old.suite,
        hash_provider: Box::leak(Box::new(RestoringHash(old.hash_provider))),
        confidentiality_limit: old.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls13(old) => SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
            common: common(&old.common),
            hkdf_provider: old.hkdf_provider,
            aead_alg: old.aead_alg,
            quic: None,
        }))),
        SupportedCipherSuite::Tls12(old) => SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
            common: common(&old.common),
            prf_provider: old.prf_provider,
            kx: old.kx,
            sign: old.sign,
            aead_alg: old.aead_alg,
        }))),
    }
}

/// A hash that restores the hidden number in the messages that it gets.
struct RestoringHash(&'static dyn Hash);

struct RestoringContext(Box<dyn Context>);

impl Hash for RestoringHash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(RestoringContext(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(&signed(data))
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }
}

impl Context for RestoringContext {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    fn update(&mut self, data: &[u8]) {
        match show(data) {
            Some(shown) => self.0.update(&shown),
            None => self.0.update(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with the extensions of these numbers.
    fn hello(extensions: &[[u8; 2]]) -> Vec<u8> {
        let list: Vec<u8> = extensions.iter().flat_map(|number| [number[0], number[1], 0, 1, 7]).collect();
        let mut body = vec![3; 34];
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&(list.len() as u16).to_be_bytes());
        body.extend_from_slice(&list);
        let mut message = vec![1, 0];
        message.extend_from_slice(&(body.len() as u16).to_be_bytes());
        message.extend_from_slice(&body);
        message
    }

    fn record(message: &[u8]) -> Vec<u8> {
        let length = (message.len() as u16).to_be_bytes();
        [&[22, 3, 1, length[0], length[1]], message].concat()
    }

    #[test]
    fn hidden_extension_is_restored() {
        let original = hello(&[[0, 10], SERVER_NAME, [0, 43]]);
        let mut token = record(&original);
        hide(&mut token);
        assert_eq!(token, record(&hello(&[[0, 10], HIDDEN, [0, 43]])));
        assert_eq!(signed(&token[5..]), original);
        let more = [token[5..].to_vec(), b"further messages".to_vec()].concat();
        assert_eq!(signed(&more), [original, b"further messages".to_vec()].concat());
    }

    #[test]
    fn other_messages_stay_unchanged() {
        let plain = record(&hello(&[[0, 10]]));
        let mut other = record(&hello(&[SERVER_NAME]));
        other[5] = 2;
        for token in [plain, other, vec![], vec![22, 3], vec![23, 3, 3, 0, 4, 1, 0, 0, 0]] {
            let mut hidden = token.clone();
            hide(&mut hidden);
            assert_eq!(hidden, token);
            assert_eq!(signed(&token), token);
        }
        let whole = record(&hello(&[SERVER_NAME]));
        for cut in 0..whole.len() {
            let mut token = whole[..cut].to_vec();
            hide(&mut token);
            assert_eq!(token, whole[..cut]);
        }
    }
}
