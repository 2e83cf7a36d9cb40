//! Sets the wall clock forward and back by years while connections are open. Open connections do not depend
//! on it; new ones are refused with a reason while it is outside the validity of the certificates, and
//! succeed again once it is right.

use crate::certificates;
use crate::support;
use certificates::Place;
use phoebus_net::quic::{Options, Quic};
use phoebus_net::tls::Tls;
use phoebus_net::transport::{Listener, Target, Transport};
use phoebus_net::udt::Udt;
use phoebus_net::{Error, Profile, Stream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;
use support::{PATIENCE, Workshop, loopback, receive, send};

const YEAR: i64 = 365 * 86_400;

#[test]
fn connections_survive_a_clock_change_and_new_ones_report_the_dates() {
    let workshop = Workshop::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/clock_step.c");
    let library = workshop.compile("cc", &source, "clock_step.so", &["-shared", "-fPIC"]);
    let file = workshop.0.path().join("step");
    std::fs::write(&file, 0i64.to_ne_bytes()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "clock::under_a_clock_that_is_set", "--ignored", "--nocapture"]);
    let output = command.env("LD_PRELOAD", library).env("CLOCK_STEP_FILE", file).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    print!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Offsets the clock by `years`, and checks the offset.
fn set_clock(years: i64) {
    use std::os::unix::fs::FileExt;
    let file = std::env::var("CLOCK_STEP_FILE").unwrap();
    let before = SystemTime::now();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut old = [0; 8];
    file.read_exact_at(&mut old, 0).unwrap();
    file.write_all_at(&(years * YEAR).to_ne_bytes(), 0).unwrap();
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let moved = seconds(SystemTime::now()) - seconds(before);
    let expected = years * YEAR - i64::from_ne_bytes(old);
    assert!((moved - expected).abs() < 60, "the clock moved by {moved} s instead of {expected}");
}

/// Creates a new transport of `pg1`, so that its connection performs a handshake.
type Fresh<'a> = Box<dyn Fn() -> Arc<dyn Transport> + 'a>;

struct Way<'a> {
    fresh: Fresh<'a>,
    listener: Box<dyn Listener>,
    /// Keeps the listener's transport alive.
    _server: Arc<dyn Transport>,
}

impl Way<'_> {
    /// Makes a new connection, if both ends accept the handshake.
    async fn connect(&self) -> Result<(Stream, Stream), String> {
        let to = Target { addr: self.listener.local_addr().unwrap(), name: "pg2".into(), early: false };
        let transport = (self.fresh)();
        let near = async {
            let near = transport.connect(&to, &Profile::default(), PATIENCE).await.map_err(|error| match error {
                Error::Untrusted { reason, .. } => reason,
                other => other.to_string(),
            })?;
            send(&near, 1).await.map_err(|error| error.to_string())?;
            Ok(near)
        };
        // The client sees a certificate first, and reports the reason. The server skips refused connections.
        let far = async {
            loop {
                let (pending, _) = self.listener.accept().await.unwrap();
                if let Ok(far) = pending.handshake().await
                    && receive(&far, 0, 1).await.is_ok_and(|got| got == 1)
                {
                    return Ok(far);
                }
            }
        };
        tokio::time::timeout(PATIENCE, async { tokio::try_join!(near, far) }).await.expect("it hangs")
    }
}

async fn goes_on((near, far): &(Stream, Stream)) {
    let len = 300_000;
    for (writer, reader) in [(near, far), (far, near)] {
        let (sent, got) = tokio::join!(send(writer, len), receive(reader, 0, len));
        sent.unwrap();
        assert_eq!(got.unwrap(), len);
    }
}

/// Started by the test above in a process whose clock can be set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by another test"]
async fn under_a_clock_that_is_set() {
    let place = Place::new();
    let credentials = |name| place.credentials(name);
    let (near, far) = (credentials("pg1"), credentials("pg2"));
    let tls = |own| -> Arc<dyn Transport> { Arc::new(Tls::encrypt(own)) };
    let udt = |own| -> Arc<dyn Transport> { Arc::new(Tls::encrypt(own).over(Arc::new(Udt::default()), "udt")) };
    let quic = |own| -> Arc<dyn Transport> { Arc::new(Quic::new(own, Options::default()).unwrap()) };
    let way = |make: fn(_) -> Arc<dyn Transport>| {
        let server = make(far.clone());
        let listener = server.listen(loopback(), &Profile::default()).unwrap();
        let near = near.clone();
        Way { fresh: Box::new(move || make(near.clone())), listener, _server: server }
    };
    // quinn forwards rustls's messages.
    let (ours, rustls) = (
        ["its certificate expired on ", "its certificate is not valid before "],
        ["certificate expired", "certificate not valid yet"],
    );
    for (name, way, words) in [("tls", way(tls), ours), ("udt", way(udt), ours), ("quic", way(quic), rustls)] {
        let open = way.connect().await.unwrap();
        goes_on(&open).await;
        for (years, expected) in [30, -30].into_iter().zip(words) {
            set_clock(years);
            goes_on(&open).await;
            let why = way.connect().await.unwrap_err();
            println!("{name}, {years} years off: {why}");
            assert!(why.contains(expected), "{name}, {years} years off: {why}");
            goes_on(&open).await;
            set_clock(0);
            let again = way.connect().await.unwrap();
            goes_on(&again).await;
        }
        goes_on(&open).await;
    }
}
