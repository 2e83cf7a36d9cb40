//! The engine without sockets: every split of the input, truncation, corruption, and the first raw bytes
//! after TLS.

mod bulk;
mod damage;
mod exporter;
mod switch;

use super::Mode;
use super::engine::{Engine, Intake};
use super::fault::Fault;
use crate::credentials::{Authority, CredentialFiles, Credentials};
use rustls::pki_types::ServerName;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

/// Credentials of a client and of the server `pg2`, issued by one authority.
static CREDENTIALS: LazyLock<(Credentials, Credentials)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let (authority, own) = Authority::create("authority", SystemTime::now()).unwrap();
    let make = |name: &str| {
        let files = CredentialFiles {
            certificate: dir.path().join(format!("{name}.pem")),
            key: dir.path().join(format!("{name}-key.pem")),
            authorities: dir.path().join("ca.pem"),
        };
        let issued = authority.issue(name, &[], SystemTime::now(), Duration::from_secs(86_400)).unwrap();
        fs::write(&files.authorities, &own.certificate).unwrap();
        fs::write(&files.certificate, issued.certificate).unwrap();
        fs::write(&files.key, issued.key).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        Credentials::load(files).unwrap()
    };
    (make("pg1"), make("pg2"))
});

fn client(intake: Intake, mode: Mode) -> Engine {
    let config = CREDENTIALS.0.client_config(&[mode.protocol()]);
    Engine::client(config, ServerName::try_from("pg2").unwrap(), intake).unwrap()
}

fn server(intake: Intake, mode: Mode) -> Engine {
    Engine::server(CREDENTIALS.1.server_config(&[mode.protocol()]), intake).unwrap()
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 200, failure_persistence: None, ..Default::default() })]

    /// Runs the fuzz target on random inputs.
    #[test]
    fn hostile_path_breaks_no_property(input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        super::hostile::play(&input);
    }
}

/// One direction between two engines. `receive` never returns bytes beyond a cut in one call.
#[derive(Debug, Default, Clone)]
struct Wire {
    bytes: Vec<u8>,
    read: usize,
    cuts: Vec<usize>,
    /// Offset of a byte that arrives with one bit flipped.
    corrupt: Option<usize>,
    /// Offset from which on nothing arrives.
    truncate: Option<usize>,
}

impl Wire {
    fn send(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        if let Some(at) = self.corrupt.filter(|at| (start..self.bytes.len()).contains(at)) {
            self.bytes[at] ^= 1 << (at % 8);
        }
        self.bytes.truncate(self.truncate.unwrap_or(usize::MAX));
    }

    fn receive(&mut self, space: &mut [u8]) -> usize {
        let cut = self.cuts.iter().copied().filter(|cut| *cut > self.read).min().unwrap_or(usize::MAX);
        let end = self.bytes.len().min(cut).min(self.read + space.len());
        let n = end - self.read;
        space[..n].copy_from_slice(&self.bytes[self.read..end]);
        self.read = end;
        n
    }

    fn is_drained(&self) -> bool {
        self.read == self.bytes.len()
    }
}

/// Lets `engine` receive and send until nothing more is possible.
fn exchange(engine: &mut Engine, from: &mut Wire, to: &mut Wire) -> Result<bool, Fault> {
    let mut progress = false;
    loop {
        let n = engine.outgoing().len();
        to.send(engine.outgoing());
        engine.sent(n);
        let received = from.receive(engine.space());
        if received > 0 {
            engine.received(received)?;
        }
        if n + received == 0 {
            return Ok(progress);
        }
        progress = true;
    }
}

/// Two engines that have completed the handshake.
fn connected(intake: Intake, mode: Mode) -> (Engine, Engine) {
    let (mut a, mut b) = (client(intake, mode), server(intake, mode));
    let (mut up, mut down) = (Wire::default(), Wire::default());
    while exchange(&mut a, &mut down, &mut up).unwrap() | exchange(&mut b, &mut up, &mut down).unwrap() {}
    assert!(!a.is_handshaking() && !b.is_handshaking());
    (a, b)
}
