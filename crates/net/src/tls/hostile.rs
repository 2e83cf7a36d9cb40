//! Attacks of a hostile path on TLS connections, for the fuzz target `tls_records` and a test: the path
//! forwards, alters, drops and invents bytes between two honest ends, as the input says.
//!
//! Whatever it does, an end does not panic and keeps its memory bounds; it delivers only a prefix of what the
//! peer wrote, and sees an end of stream only where the peer has closed.

use super::Mode;
use super::buffer::CAPACITY;
use super::engine::{Engine, Intake};
use super::fault::Fault;
use crate::credentials::{Authority, CredentialFiles, Credentials};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// Most memory that an engine may hold, in bytes: both buffers, and the content of one record.
const MEMORY_MAX: usize = 2 * CAPACITY + (1 << 15);

/// Credentials of a client and of the server `pg2`, issued by one authority.
static CREDENTIALS: LazyLock<Option<(Credentials, Credentials)>> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("phoebus-hostile-{}", std::process::id()));
    let made = fs::create_dir(&dir).and_then(|()| make(&dir));
    let _ = fs::remove_dir_all(&dir);
    made.ok()
});

fn make(dir: &std::path::Path) -> io::Result<(Credentials, Credentials)> {
    let now = SystemTime::now();
    let (authority, own) = Authority::create("authority", now).map_err(io::Error::other)?;
    let make = |name: &str| -> io::Result<Credentials> {
        let path = |file: String| dir.join(file);
        let files = CredentialFiles {
            certificate: path(format!("{name}.pem")),
            key: path(format!("{name}-key.pem")),
            authorities: path("ca.pem".to_owned()),
        };
        let issued = authority.issue(name, &[], now, Duration::from_secs(86_400 * 365)).map_err(io::Error::other)?;
        fs::write(&files.authorities, &own.certificate)?;
        fs::write(&files.certificate, issued.certificate)?;
        fs::write(&files.key, issued.key)?;
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600))?;
        Credentials::load(files).map_err(io::Error::other)
    };
    Ok((make("pg1")?, make("pg2")?))
}

/// One end, the bytes on their way to it, and what the test expects of it.
struct End {
    engine: Engine,
    incoming: VecDeque<u8>,
    /// Number of bytes written to this end, and number of bytes that it has read.
    written: u64,
    read: u64,
    fault: Option<Fault>,
}

/// Applies the attack `input` to both ends of a connection.
///
/// # Panics
/// When an end violates one of the properties.
pub fn play(input: &[u8]) {
    let (Some(&mode), Some((client, server))) = (input.first(), &*CREDENTIALS) else { return };
    let protocol = if mode & 1 == 0 { Mode::Encrypt } else { Mode::Auth }.protocol();
    let intake = if mode & 2 == 0 { Intake::Bulk } else { Intake::Exact };
    let Ok(name) = ServerName::try_from("pg2") else { return };
    let engines = [
        Engine::client(client.client_config(&[protocol]), name, intake),
        Engine::server(server.server_config(&[protocol]), intake),
    ];
    let [Ok(near), Ok(far)] = engines else { return };
    let fresh = |engine| End { engine, incoming: VecDeque::new(), written: 0, read: 0, fault: None };
    let mut ends = [fresh(near), fresh(far)];
    if mode & 4 != 0 {
        // The handshake passes unaltered.
        for turn in 0..8 {
            pass(&mut ends, turn % 2, usize::MAX, |_| true);
        }
        assert!(ends.iter().all(|end| !end.engine.is_handshaking()), "an honest handshake fails");
    }
    let mut rest = &input[1..];
    while let Some((&[action, len], more)) = rest.split_first_chunk::<2>() {
        rest = more;
        let to = usize::from(action >> 7);
        let len = usize::from(len);
        match action & 7 {
            0 => pass(&mut ends, 1 - to, len * 64, |_| true),
            1 => pass(&mut ends, 1 - to, len, |_| false),
            2 => pass(&mut ends, 1 - to, usize::MAX, |byte| {
                *byte ^= (len as u8) | 1;
                true
            }),
            3 => {
                let (invented, more) = rest.split_at(rest.len().min(len));
                rest = more;
                ends[to].incoming.extend(invented);
                take(&mut ends[to]);
            }
            4 => read(&mut ends, to, len * 128 + 1),
            5 => write(&mut ends, to, len * 512),
            6 => drop(ends[to].engine.close()),
            _ => ends[to].engine.relax(),
        }
        for end in &ends {
            assert!(end.engine.memory() <= MEMORY_MAX, "{} bytes held", end.engine.memory());
        }
    }
}

/// Takes up to `len` bytes that `from` sends; `alter` may change each, and returns whether to forward it.
fn pass(ends: &mut [End; 2], from: usize, len: usize, mut alter: impl FnMut(&mut u8) -> bool) {
    let sent: Vec<u8> = ends[from].engine.outgoing().iter().copied().take(len).collect();
    ends[from].engine.sent(sent.len());
    for mut byte in sent {
        if alter(&mut byte) {
            ends[1 - from].incoming.push_back(byte);
        }
    }
    take(&mut ends[1 - from]);
}

/// Delivers bytes on their way to an end, as far as it accepts them.
fn take(end: &mut End) {
    while end.fault.is_none() && !end.incoming.is_empty() {
        let space = end.engine.space();
        let n = space.len().min(end.incoming.len());
        if n == 0 {
            return;
        }
        for (to, from) in space.iter_mut().zip(end.incoming.drain(..n)) {
            *to = from;
        }
        end.fault = end.engine.received(n).err();
    }
}

fn read(ends: &mut [End; 2], at: usize, len: usize) {
    let is_closed = ends[1 - at].engine.is_closed();
    let (end, mut buffer) = (&mut ends[at], vec![0; len]);
    match end.engine.read(&mut buffer) {
        Ok(Some(0)) => assert!(is_closed && end.read == end.written, "an end that the other has not made"),
        Ok(Some(n)) => {
            assert!(buffer[..n].iter().all(|byte| {
                end.read += 1;
                *byte == nth(end.read)
            }));
            assert!(end.read <= end.written, "more than was written");
        }
        Ok(None) => {}
        Err(fault) => {
            assert_eq!(end.engine.read(&mut buffer), Err(fault), "a fault that passes");
        }
    }
    take(end);
}

fn write(ends: &mut [End; 2], at: usize, len: usize) {
    if ends[at].engine.is_handshaking() || ends[at].engine.is_closed() {
        return;
    }
    let already = ends[1 - at].written;
    let bytes: Vec<u8> = (1..=len as u64).map(|n| nth(already + n)).collect();
    if let Ok(n) = ends[at].engine.write(&bytes) {
        ends[1 - at].written += n as u64;
    }
}

/// The pattern of written bytes.
fn nth(n: u64) -> u8 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
