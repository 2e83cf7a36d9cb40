//! Authorities, connected ends, and helpers to read and write streams.

use phoebus_net::credentials::{Authority, CredentialFiles, Credentials, Issued};
use phoebus_net::quic::{Options, Quic};
use phoebus_net::transport::{Listener, Target, Transport};
use phoebus_net::{Error, Profile, Stream};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longer than any test needs on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with an authority and the certificates it has issued.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    authority: Authority,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::create("test authority", SystemTime::now()).unwrap();
        fs::write(dir.path().join("ca.pem"), &own.certificate).unwrap();
        Self { dir, authority }
    }

    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        self.credentials_of(name, &[])
    }

    /// Credentials for `name` that carry further names.
    pub(crate) fn credentials_of(&self, name: &str, also: &[&str]) -> Credentials {
        let also: Vec<String> = also.iter().map(|name| (*name).to_owned()).collect();
        let issued = self.authority.issue(name, &also, SystemTime::now(), PATIENCE * 60).unwrap();
        Credentials::load(write(self.dir.path(), name, &issued)).unwrap()
    }

    pub(crate) fn quic(&self, name: &str) -> Quic {
        Quic::new(self.credentials(name), Options::default()).unwrap()
    }
}

/// Writes a certificate and its key next to the authority's.
fn write(dir: &Path, name: &str, issued: &Issued) -> CredentialFiles {
    let files = CredentialFiles {
        certificate: dir.join(format!("{name}.pem")),
        key: dir.join(format!("{name}-key.pem")),
        authorities: dir.join("ca.pem"),
    };
    fs::write(&files.certificate, &issued.certificate).unwrap();
    fs::write(&files.key, &issued.key).unwrap();
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    files
}

/// Two transports that trust each other; the second, `pg2.test`, listens.
pub(crate) struct Pair {
    pub(crate) client: Quic,
    pub(crate) listener: Arc<dyn Listener>,
    pub(crate) profile: Profile,
    pub(crate) server: Quic,
    pub(crate) place: Place,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(Profile::default())
    }

    pub(crate) fn with(profile: Profile) -> Self {
        let place = Place::new();
        let (client, server) = (place.quic("pg1.test"), place.quic("pg2.test"));
        let listener = server.listen(loopback(), &profile).unwrap().into();
        Self { client, listener, profile, server, place }
    }

    pub(crate) fn target(&self) -> Target {
        target(self.listener.local_addr().unwrap(), "pg2.test")
    }

    pub(crate) async fn connect(&self) -> Stream {
        self.client.connect(&self.target(), &self.profile, PATIENCE).await.unwrap()
    }

    pub(crate) async fn accept(&self) -> Stream {
        let stream = soon(accept(&*self.listener)).await.unwrap();
        // The handshake has authenticated the peer.
        stream.widen();
        stream
    }

    /// Both ends of a new stream. The accepting end learns of a stream with its first byte, which is consumed
    /// here.
    pub(crate) async fn streams(&self) -> (Stream, Stream) {
        let near = self.connect().await;
        write_all(&near, b"!").await.unwrap();
        let far = self.accept().await;
        assert_eq!(read_exactly(&far, 1).await.unwrap(), b"!");
        (near, far)
    }
}

pub(crate) async fn accept(listener: &dyn Listener) -> io::Result<Stream> {
    let (pending, _) = listener.accept().await?;
    pending.handshake().await
}

pub(crate) fn target(addr: SocketAddr, name: &str) -> Target {
    Target { addr, name: name.into(), early: false }
}

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Waits for `what`, and panics if it hangs.
#[track_caller]
pub(crate) fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let here = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, what).await {
            Ok(result) => result,
            Err(_) => panic!("it hangs: {here}"),
        }
    }
}

pub(crate) async fn read(stream: &Stream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        soon(stream.readable()).await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

pub(crate) async fn read_exactly(stream: &Stream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut got = 0;
    while got < len {
        match read(stream, &mut bytes[got..]).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => got += n,
        }
    }
    Ok(bytes)
}

pub(crate) async fn read_to_end(stream: &Stream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match read(stream, &mut buffer).await? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}

pub(crate) async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        soon(stream.writable()).await?;
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Pseudorandom bytes, in which a shifted or repeated part shows.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    (0..len).map(|_| random.next() as u8).collect()
}

/// A xorshift generator: the same seed gives the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 32
    }
}

pub(crate) fn untrusted(error: &Error) -> &str {
    match error {
        Error::Untrusted { reason, .. } => reason,
        other => panic!("not a matter of trust: {other}"),
    }
}
