//! Moves bytes over one QUIC stream, to measure the transport alone on a path:
//!
//! ```text
//! quic serve DIR 127.0.0.1:4433                        # makes credentials in DIR, takes what comes
//! quic send DIR 127.0.0.1:4433 1GB [model|cubic|bbr|reno] [500mbit]
//! ```

use phoebus_net::credentials::{Authority, CredentialFiles, Credentials, Issued};
use phoebus_net::quic::{Options, Quic};
use phoebus_net::transport::{Target, Transport};
use phoebus_net::{Profile, Stream};
use phoebus_proto::units::ByteSize;
use std::error::Error;
use std::fs;
use std::io::ErrorKind::WouldBlock;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

type Outcome<T> = Result<T, Box<dyn Error>>;

const LIMIT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", dir, addr] => serve(Path::new(dir), addr.parse()?).await,
        ["send", dir, addr, size, ref rest @ ..] => {
            let mut profile = Profile::default();
            for word in rest {
                match word.parse() {
                    Ok(control) => profile.congestion_control = control,
                    Err(_) => profile.rate = Some(word.parse()?),
                }
            }
            send(Path::new(dir), addr.parse()?, size.parse()?, &profile).await
        }
        _ => Err("usage: quic serve DIR ADDR | quic send DIR ADDR SIZE [CONTROL] [RATE]".into()),
    }
}

async fn serve(dir: &Path, addr: SocketAddr) -> Outcome<()> {
    let (authority, own) = Authority::create("quic example", SystemTime::now())?;
    fs::write(dir.join("ca.pem"), own.certificate)?;
    for name in ["server.test", "client.test"] {
        write(dir, name, &authority.issue(name, &[], SystemTime::now(), DAY)?)?;
    }
    let quic = Quic::new(credentials(dir, "server.test")?, Options::default())?;
    let listener = quic.listen(addr, &Profile::default())?;
    if let Some(note) = listener.note() {
        eprintln!("{note}");
    }
    loop {
        let (pending, from) = listener.accept().await?;
        match pending.handshake().await {
            Ok(stream) => {
                // The handshake has authenticated the client.
                stream.widen();
                match take(&stream).await {
                    Ok(bytes) => println!("{bytes} bytes from {from}"),
                    Err(error) => eprintln!("{from}: {error}"),
                }
            }
            Err(error) => eprintln!("{from}: {error}"),
        }
    }
}

/// Reads to the end of the stream, and then ends the own side.
async fn take(stream: &Stream) -> Outcome<u64> {
    let (mut buffer, mut sum) = (vec![0; 128 << 10], 0);
    loop {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => sum += n as u64,
            Err(error) if error.kind() == WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    stream.shutdown_write()?;
    stream.delivered(LIMIT).await?;
    stream.disarm();
    Ok(sum)
}

async fn send(dir: &Path, addr: SocketAddr, ByteSize(size): ByteSize, profile: &Profile) -> Outcome<()> {
    let quic = Quic::new(credentials(dir, "client.test")?, Options::default())?;
    let target = Target { addr, name: "server.test".into(), early: false };
    let stream = quic.connect(&target, profile, LIMIT).await?;
    let (begin, buffer, mut sent) = (Instant::now(), vec![0; 128 << 10], 0);
    while sent < size {
        stream.writable().await?;
        let most = buffer.len().min(usize::try_from(size - sent).unwrap_or(usize::MAX));
        match stream.try_write(&buffer[..most], true) {
            Ok(n) => sent += n as u64,
            Err(error) if error.kind() == WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    stream.shutdown_write()?;
    // The server ends its stream once it has received all of this one.
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 1]) {
            Ok(0) => break,
            Ok(_) => return Err("the server sent something".into()),
            Err(error) if error.kind() == WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let passed = begin.elapsed().as_secs_f64();
    let stats = stream.stats()?;
    stream.disarm();
    println!(
        "{size} bytes in {passed:.3} s: {:.1} Mbit/s; {} packets of up to {} bytes, {} lost; rtt {} us, at least {} us",
        size as f64 * 8e-6 / passed,
        stats.segments_sent,
        stats.segment_size,
        stats.retransmits,
        stats.rtt_us,
        stats.min_rtt_us,
    );
    drop(stream);
    quic.close().await;
    Ok(())
}

fn write(dir: &Path, name: &str, issued: &Issued) -> Outcome<()> {
    let files = files(dir, name);
    fs::write(&files.certificate, &issued.certificate)?;
    fs::write(&files.key, &issued.key)?;
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn credentials(dir: &Path, name: &str) -> Outcome<Credentials> {
    Ok(Credentials::load(files(dir, name))?)
}

fn files(dir: &Path, name: &str) -> CredentialFiles {
    CredentialFiles {
        certificate: dir.join(format!("{name}.pem")),
        key: dir.join(format!("{name}-key.pem")),
        authorities: dir.join("ca.pem"),
    }
}
