//! The client-side agent (S1, S12): a gateway bound to loopback that gives a user's programs a first hop over QUIC, UDT or TLS.
//!
//! This module is the agreement between an agent and its users: how to ask for a first hop
//! ([`FirstHop`](crate::first_hop::FirstHop)), where to find a running agent ([`directory`], [`AgentFileNames`]), and what its
//! file contains ([`Running`]). The file is closed to other users and holds a secret ([`Secret`]). Without it the agent carries
//! nothing, because all users of a host can use loopback.

use crate::settings::Settings;
use phoebus_proto::hex::hex;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name of every agent, which no gateway may have.
pub const AGENT: &str = "agent";
/// Most bytes read of an agent's file, which has a few lines.
pub const FILE_MAX: usize = 512;
/// The file's first line: its kind and version.
const FIRST_LINE: &str = "phoebus-agent 1";

/// The secret that an agent's clients have to know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// Whether `bytes` are this secret, compared in constant time.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.0.len() && self.0.iter().zip(bytes).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A running agent, as its file describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Its listening addresses on loopback: at most one of each family.
    pub addresses: [Option<SocketAddr>; 2],
    /// The secret that it requires.
    pub secret: Secret,
}

impl Running {
    /// The file's contents.
    pub fn text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for address in self.addresses.iter().flatten() {
            text.push_str(&format!("listen {address}\n"));
        }
        text.push_str(&format!("secret {}\n", hex(&self.secret.0)));
        text
    }

    /// Parses `text`; `None` if it is no such file. Addresses other than loopback are refused: no agent has one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == FIRST_LINE)?;
        let (mut addresses, mut secret) = ([None; 2], None);
        for line in lines {
            match line.split_once(' ') {
                Some(("listen", address)) => {
                    let address: SocketAddr = address.parse().ok()?;
                    let own = address.ip().is_loopback() && address.port() != 0;
                    *addresses.iter_mut().find(|slot| slot.is_none() && own)? = Some(address);
                }
                Some(("secret", hex)) => secret = Some(Secret(bytes(hex)?)),
                _ => {}
            }
        }
        addresses[0]?;
        Some(Self { addresses, secret: secret? })
    }
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let (hex, mut bytes) = (hex.as_bytes(), [0; 32]);
    if hex.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Names of the agents' files in [`directory`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentFileNames {
    /// Of the agent for the first gateway of these settings that was started last, whatever its transport.
    pub any: String,
    /// Of the one agent with exactly these settings.
    pub own: String,
}

impl AgentFileNames {
    /// The names for the first gateway of `settings`, in the network namespace with this number: loopback differs between
    /// namespaces. `None` without a gateway.
    /// `token` tells where the user's token is ([`BearerPlaces::source`](crate::bearer::BearerPlaces::source)).
    pub fn of(settings: &Settings, namespace: u64, token: &str) -> Option<Self> {
        let gateway = settings.path.first()?;
        let text = |file: &Option<PathBuf>| file.as_deref().map_or(Vec::new(), bytes_of);
        let mut hash = Hash::new();
        // Programs with different users, tokens or congestion controls do not share an agent.
        hash.add(gateway.to_string().as_bytes());
        hash.add(settings.user.as_deref().unwrap_or_default().as_bytes());
        hash.add(settings.congestion_control.as_deref().unwrap_or_default().as_bytes());
        if !token.is_empty() {
            hash.add(token.as_bytes());
        }
        let any = format!("{namespace:x}-{:016x}", hash.0);
        hash.add(settings.first_hop.map(|hop| hop.to_string()).unwrap_or_default().as_bytes());
        // Not the Grid proxy: Grid servers set its variable to what was delegated to them, and use the agent of their host.
        for file in [&settings.certificate, &settings.key, &settings.authorities] {
            hash.add(&text(file));
        }
        let own = format!("{any}-{:016x}", hash.0);
        Some(Self { any, own })
    }
}

fn bytes_of(file: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    file.as_os_str().as_bytes().to_vec()
}

/// FNV-1a, 64 bits. It names files for a handful of settings of one user, so nobody gains from a collision.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        // A zero byte separates the fields.
        for byte in bytes.iter().chain(&[0]) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The directory of agents' files of the user with this number: `phoebus/agents` in `$XDG_RUNTIME_DIR`, otherwise
/// `/tmp/phoebus-UID/agents`.
pub fn directory(lookup: impl Fn(&str) -> Option<String>, uid: u32) -> PathBuf {
    match lookup("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(runtime) => runtime.join("phoebus/agents"),
        None => format!("/tmp/phoebus-{uid}/agents").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Endpoint;

    #[test]
    fn only_well_formed_agent_files_are_read() {
        let running = Running {
            addresses: [Some("127.0.0.1:4711".parse().unwrap()), Some("[::1]:4712".parse().unwrap())],
            secret: Secret(std::array::from_fn(|i| i as u8 * 7)),
        };
        let text = running.text();
        assert_eq!(Running::parse(&text), Some(running));
        assert!(text.len() <= FILE_MAX);
        assert_eq!(Running::parse(&format!("{text}later versions say more\n")), Some(running));
        for wrong in [
            "",
            "phoebus-agent 2\n",
            "phoebus-agent 1\nlisten 127.0.0.1:1\n",
            &text.replace("127.0.0.1", "192.0.2.1"),
            &text.replace(":4711", ":0"),
            &text.replace("secret 00", "secret 0"),
            &text.replace("secret 00", "secret +1"),
            &format!("{text}listen 127.0.0.1:1\n"),
        ] {
            assert_eq!(Running::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn secret_is_compared_whole_and_never_shown() {
        let secret = Secret([7; 32]);
        assert!(secret.is(&[7; 32]));
        assert!(!secret.is(&[7; 31]) && !secret.is(&[]) && !secret.is(&[8; 32]));
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn agents_are_told_apart_by_what_matters() {
        let base = Settings { path: Endpoint::parse_path("pg1,pg2").unwrap(), ..Settings::default() };
        let place = |settings: &Settings| AgentFileNames::of(settings, 7, "").unwrap();
        let same = Settings { path: Endpoint::parse_path("pg1,pg3").unwrap(), verbose: true, ..base.clone() };
        assert_eq!(place(&base), place(&same));
        assert_ne!(place(&base).any, AgentFileNames::of(&base, 8, "").unwrap().any);
        assert_ne!(place(&base).any, AgentFileNames::of(&base, 7, "file /t").unwrap().any);
        let user = Settings { user: Some("ada@example.org".into()), ..base.clone() };
        assert_ne!(place(&base).any, place(&user).any);
        let quic = Settings { first_hop: Some("quic".parse().unwrap()), ..base.clone() };
        assert_eq!(place(&base).any, place(&quic).any);
        assert_ne!(place(&base).own, place(&quic).own);
        assert_eq!(AgentFileNames::of(&Settings::default(), 7, ""), None);
    }

    #[test]
    fn agent_directory_belongs_to_the_user() {
        assert_eq!(directory(|_| None, 1000), PathBuf::from("/tmp/phoebus-1000/agents"));
        let given = |value: &'static str| directory(move |_| Some(value.to_owned()), 1000);
        assert_eq!(given("/run/user/1000"), PathBuf::from("/run/user/1000/phoebus/agents"));
        assert_eq!(given("relative"), PathBuf::from("/tmp/phoebus-1000/agents"));
    }
}
