//! Seals of datagrams (`docs/protocol/object.md` §6): AES-128-GCM, with the transmission number as the nonce and the header as
//! associated data. Each end has keys of its own, derived from a secret that the control stream has established, and a
//! new one for each [`KEY_PACKETS`] datagrams.

use phoebus_proto::object::Seal;
use phoebus_proto::object::packet::{HEADER_LEN, Header};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use std::fmt;

/// Length of a seal, in bytes.
pub(super) const SEAL_LEN: usize = 16;

/// Datagrams that one key seals: 2^23, as TLS 1.3 advises for AES-GCM (RFC 8446, section 5.5), a little less.
const KEY_PACKETS: u64 = 1 << 23;

/// The secret of a transfer, from which the keys of both directions are derived.
pub struct Secret(pub [u8; 32]);

/// Whose datagrams a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Sender,
    Receiver,
    /// Checks of the end that has made the control connection.
    Checking,
    /// Answers to these.
    Answering,
}

/// Seals the datagrams of one end, or opens them at the other.
pub(super) enum Sealer {
    Encrypts(Box<Keys>),
    /// For transfers without protection.
    Nothing,
}

/// The keys of one end.
pub(super) struct Keys {
    secret: Prk,
    end: End,
    /// The keys in use, the latest last: packets overtake each other.
    latest: Vec<(u64, LessSafeKey)>,
}

struct KeyLen;

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        AES_128_GCM.key_len()
    }
}

impl Sealer {
    pub(super) fn new(seal: Seal, secret: &Secret, end: End) -> Self {
        match seal {
            Seal::Encrypt => {
                let secret = Prk::new_less_safe(HKDF_SHA256, &secret.0);
                let mut keys = Keys { secret, end, latest: Vec::new() };
                keys.latest.extend(keys.derive(0));
                Self::Encrypts(Box::new(keys))
            }
            Seal::None => Self::Nothing,
        }
    }

    /// Bytes that a seal adds to a datagram.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Encrypts(_) => SEAL_LEN,
            Self::Nothing => 0,
        }
    }

    /// Seals `datagram`: a header, a body, and room for the seal. False if it cannot be sealed, and must not be sent.
    pub(super) fn seal(&mut self, header: &Header, datagram: &mut [u8]) -> bool {
        let Self::Encrypts(keys) = self else { return true };
        let Some(end) = datagram.len().checked_sub(SEAL_LEN).filter(|end| *end >= HEADER_LEN) else { return false };
        let (inside, seal) = datagram.split_at_mut(end);
        let (associated, body) = inside.split_at_mut(HEADER_LEN);
        let Some(key) = keys.of(header.transmission) else { return false };
        let sealed = key.seal_in_place_separate_tag(nonce(header.transmission), Aad::from(&*associated), body);
        sealed.map(|tag| seal.copy_from_slice(tag.as_ref())).is_ok()
    }

    /// Opens the body of a datagram, the seal included. `None` if the seal is broken.
    pub(super) fn open<'a>(&mut self, header: &Header, body: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let Self::Encrypts(keys) = self else { return Some(body) };
        let epoch = header.transmission / KEY_PACKETS;
        let newest = keys.latest.last().map_or(0, |(newest, _)| *newest);
        // Whoever forges datagrams must not choose which keys are derived.
        if epoch > newest + 1 {
            return None;
        }
        let derived;
        let key = match keys.latest.iter().find(|(known, _)| *known == epoch) {
            Some((_, key)) => key,
            None if epoch == newest + 1 => {
                derived = keys.derive(epoch)?.1;
                &derived
            }
            None => return None,
        };
        let opened = key.open_in_place(nonce(header.transmission), Aad::from(header.encode()), body).ok()?;
        if epoch > newest {
            keys.advance(epoch);
        }
        Some(opened)
    }
}

impl Keys {
    /// The key of a transmission to be sent.
    fn of(&mut self, transmission: u64) -> Option<&LessSafeKey> {
        let epoch = transmission / KEY_PACKETS;
        if self.latest.last().is_none_or(|(newest, _)| *newest < epoch) {
            self.advance(epoch);
        }
        self.latest.last().filter(|(newest, _)| *newest == epoch).map(|(_, key)| key)
    }

    /// Makes the key of `epoch` the newest, and forgets all but the one before it.
    fn advance(&mut self, epoch: u64) {
        self.latest.extend(self.derive(epoch));
        let old = self.latest.len().saturating_sub(2);
        self.latest.drain(..old);
    }

    fn derive(&self, epoch: u64) -> Option<(u64, LessSafeKey)> {
        let end: &[u8] = match self.end {
            End::Sender => b"phoebus object sender",
            End::Receiver => b"phoebus object receiver",
            End::Checking => b"phoebus object check",
            End::Answering => b"phoebus object check answer",
        };
        let mut bytes = [0; 16];
        self.secret.expand(&[end, &epoch.to_be_bytes()], KeyLen).ok()?.fill(&mut bytes).ok()?;
        Some((epoch, LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &bytes).ok()?)))
    }
}

fn nonce(transmission: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&transmission.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::object::packet::{Kind, PacketNumber};

    fn header(transmission: u64) -> Header {
        Header { kind: Kind::Data, transfer: 1, transmission, packet: PacketNumber { chunk: 2, index: 3 } }
    }

    fn sealed(sealer: &mut Sealer, header: &Header) -> Vec<u8> {
        let mut datagram = [&header.encode()[..], b"content", &[0; SEAL_LEN]].concat();
        assert!(sealer.seal(header, &mut datagram));
        datagram
    }

    #[test]
    fn only_the_other_end_s_datagrams_open_unaltered_and_under_their_own_number() {
        let sealer = |end| Sealer::new(Seal::Encrypt, &Secret([7; 32]), end);
        let (mut from, mut to, mut back) = (sealer(End::Sender), sealer(End::Sender), sealer(End::Receiver));
        let datagram = sealed(&mut from, &header(5));
        assert!(!datagram.windows(7).any(|part| part == b"content"));
        let open = |sealer: &mut Sealer, header: &Header, body: &[u8]| {
            sealer.open(header, &mut body.to_vec()).map(|opened| opened.to_vec())
        };
        let body = &datagram[HEADER_LEN..];
        assert_eq!(open(&mut to, &header(5), body).as_deref(), Some(&b"content"[..]));
        assert_eq!(open(&mut to, &header(6), body), None);
        assert_eq!(open(&mut back, &header(5), body), None, "reflected");
        for at in 0..body.len() {
            let mut body = body.to_vec();
            body[at] ^= 1;
            assert_eq!(open(&mut to, &header(5), &body), None, "byte {at}");
        }
    }

    #[test]
    fn keys_change_and_packets_around_the_change_may_overtake_each_other() {
        let sealer = || Sealer::new(Seal::Encrypt, &Secret([7; 32]), End::Sender);
        let (mut from, mut to) = (sealer(), sealer());
        let last = sealed(&mut from, &header(KEY_PACKETS - 1));
        let first = sealed(&mut from, &header(KEY_PACKETS));
        let far = sealed(&mut from, &header(3 * KEY_PACKETS));
        let mut opens =
            |header: &Header, datagram: &[u8]| to.open(header, &mut datagram[HEADER_LEN..].to_vec()).is_some();
        assert!(!opens(&header(3 * KEY_PACKETS), &far), "two keys were skipped");
        assert!(opens(&header(KEY_PACKETS), &first));
        assert!(opens(&header(KEY_PACKETS - 1), &last));
    }
}
