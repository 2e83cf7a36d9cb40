//! Datagrams beside a session (`docs/protocol/session.md` §6.8): what precedes each of them on a hop.
//!
//! ```text
//!  flow 64 │ tag 64 │ the datagram
//! ```
//!
//! The flow finds the session at the gateway. The tag shows that a neighbour has sent the datagram. It covers the datagram's first
//! [`COVERED`] bytes and its length: what the datagram holds is protected between its two ends, which a gateway does not read.

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

/// Bytes before a datagram on a hop.
pub const PREFIX_LEN: usize = 16;
/// Bytes of a flow's key.
pub const KEY_LEN: usize = 16;
/// The first bytes of a datagram that its tag covers: the header of an object's datagram, and some of what is sealed.
pub const COVERED: usize = 32;

/// How the note of a hop without datagrams begins, though they were asked for.
pub const NO_DATAGRAMS: &str = "no datagrams beside the session: ";

/// What a gateway tells the neighbour that may send it datagrams of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DatagramGrant {
    /// The gateway's UDP port for datagrams, on the host of the session's connection.
    pub port: u16,
    /// Finds the session. Random, since it keeps those out who do not know it.
    pub flow: u64,
    /// The key of the tags; never printed.
    pub key: [u8; KEY_LEN],
    /// Longest datagram that the gateway and those behind it pass on, in bytes without the prefix, as far as is known.
    pub longest: u16,
}

/// Where a datagram goes. Tags of the two ways differ, so that none can be reflected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// From the client to the destination.
    Destination,
    /// From the destination to the client.
    Client,
}

impl DatagramGrant {
    /// The prefix of `datagram`.
    pub fn prefix(&self, towards: Towards, datagram: &[u8]) -> [u8; PREFIX_LEN] {
        let mut prefix = [0; PREFIX_LEN];
        prefix[..8].copy_from_slice(&self.flow.to_be_bytes());
        prefix[8..].copy_from_slice(&self.tag(towards, datagram).to_be_bytes());
        prefix
    }

    /// The datagram behind its prefix in `bytes`. `None` if the prefix is not right.
    pub fn open<'a>(&self, towards: Towards, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (prefix, datagram) = bytes.split_first_chunk::<PREFIX_LEN>()?;
        let (flow, tag) = prefix.split_at(8);
        // Takes the same time wherever they differ.
        let differs = tag.iter().zip(self.tag(towards, datagram).to_be_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        (flow == self.flow.to_be_bytes() && differs == 0).then_some(datagram)
    }

    fn tag(&self, towards: Towards, datagram: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        let mut head = [0; 3];
        head[0] = u8::from(towards == Towards::Client);
        head[1..].copy_from_slice(&u16::try_from(datagram.len()).unwrap_or(u16::MAX).to_be_bytes());
        hasher.write(&head);
        hasher.write(&datagram[..datagram.len().min(COVERED)]);
        hasher.finish()
    }
}

/// The flow of which `bytes` claim to be.
pub fn flow_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|flow| u64::from_be_bytes(*flow)).filter(|_| bytes.len() > PREFIX_LEN)
}

impl fmt::Debug for DatagramGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramGrant")
            .field("port", &self.port)
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_datagrams_of_the_neighbour_open() {
        let grant = DatagramGrant { port: 5007, flow: 0x0102_0304_0506_0708, key: [7; KEY_LEN], longest: 1444 };
        let datagram: Vec<u8> = (0..200).collect();
        let mut bytes = grant.prefix(Towards::Destination, &datagram).to_vec();
        bytes.extend_from_slice(&datagram);
        assert_eq!(flow_of(&bytes), Some(grant.flow));
        assert_eq!(grant.open(Towards::Destination, &bytes), Some(&datagram[..]));
        assert_eq!(grant.open(Towards::Client, &bytes), None, "reflected");
        let other = DatagramGrant { key: [8; KEY_LEN], ..grant };
        assert_eq!(other.open(Towards::Destination, &bytes), None, "another key");
        assert_eq!(grant.open(Towards::Destination, &bytes[..199]), None, "cut");
        for at in 0..PREFIX_LEN + COVERED {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            assert_eq!(grant.open(Towards::Destination, &forged), None, "byte {at} was altered");
        }
        for len in 0..=PREFIX_LEN {
            assert_eq!(flow_of(&bytes[..len]), None, "{len} bytes hold no datagram");
        }
        assert!(!format!("{grant:?}").contains("7, 7"), "the key is printed");
    }
}
