//! Measures how fast one connection carries bytes over loopback, and the CPU time of each end: to compare
//! transports and to find the encryption rate of a processor. `cargo run --release -p phoebus-net --example
//! throughput -- [tcp|tls|tls-auth] [SECONDS]`
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use phoebus_net::credentials::{Authority, CredentialFiles, Credentials};
use phoebus_net::tls::Tls;
use phoebus_net::transport::{Target, Transport};
use phoebus_net::{Profile, Stream, tcp::Tcp};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const PIECE: usize = 128 * 1024;
const LIMIT: Duration = Duration::from_secs(10);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "tls".to_owned());
    let seconds = arguments.next().map_or(5, |seconds| seconds.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let credentials = credentials(dir.path());
    let make = || -> Box<dyn Transport> {
        match name.as_str() {
            "tcp" => Box::new(Tcp),
            "tls" => Box::new(Tls::encrypt(credentials.clone())),
            "tls-auth" => Box::new(Tls::auth(credentials.clone())),
            other => panic!("\"{other}\" is not tcp, tls or tls-auth"),
        }
    };
    let (tell, told) = std::sync::mpsc::channel();
    let transport = make();
    let server = std::thread::spawn(move || {
        on_a_thread(async {
            let listener = transport.listen("127.0.0.1:0".parse().unwrap(), &Profile::default()).unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().await.unwrap().0.handshake().await.unwrap();
            stream.unprotect().unwrap();
            receive(&stream).await
        })
    });
    let to = Target { addr: told.recv().unwrap(), name: "localhost".into(), early: false };
    let transport = make();
    let (sent, sending) = on_a_thread(async {
        let stream = transport.connect(&to, &Profile::default(), LIMIT).await.unwrap();
        stream.unprotect().unwrap();
        send(&stream, Duration::from_secs(seconds)).await
    });
    let ((received, took), receiving) = server.join().unwrap();
    assert_eq!(sent, received);
    let gigabytes = received as f64 / 1e9;
    println!(
        "{name}: {:.2} Gbit/s; CPU seconds per GB: {:.3} sending, {:.3} receiving",
        gigabytes * 8.0 / took.as_secs_f64(),
        sending.as_secs_f64() / gigabytes,
        receiving.as_secs_f64() / gigabytes,
    );
}

/// Runs `work` on this thread, and returns its result and the thread's CPU time.
fn on_a_thread<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(work);
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (result, Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap()))
}

async fn send(stream: &Stream, during: Duration) -> u64 {
    let (start, piece, mut sent) = (Instant::now(), vec![7; PIECE], 0);
    while start.elapsed() < during {
        match stream.try_write(&piece, false) {
            Ok(n) => sent += n as u64,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                stream.writable().await.unwrap();
            }
        }
    }
    stream.shutdown_write().unwrap();
    stream.delivered(LIMIT).await.unwrap();
    sent
}

async fn receive(stream: &Stream) -> (u64, Duration) {
    let (start, mut piece, mut received) = (Instant::now(), vec![0; PIECE], 0);
    loop {
        match stream.try_read(&mut piece) {
            Ok(0) => {
                stream.disarm();
                return (received, start.elapsed());
            }
            Ok(n) => received += n as u64,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                stream.readable().await.unwrap();
            }
        }
    }
}

fn credentials(dir: &Path) -> Credentials {
    let now = SystemTime::now();
    let (authority, own) = Authority::create("throughput", now).unwrap();
    let issued = authority.issue("localhost", &[], now, Duration::from_secs(3600)).unwrap();
    let files = CredentialFiles {
        certificate: dir.join("localhost.pem"),
        key: dir.join("localhost-key.pem"),
        authorities: dir.join("ca.pem"),
    };
    fs::write(&files.authorities, own.certificate).unwrap();
    fs::write(&files.certificate, issued.certificate).unwrap();
    fs::write(&files.key, issued.key).unwrap();
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    Credentials::load(files).unwrap()
}
