//! TLS interoperability with OpenSSL's client and server: what they negotiate, and how refusals are reported.

use crate::certificates;
use certificates::Place;
use phoebus_net::tls::{Offer, Tls, listener};
use phoebus_net::transport::{Listener, Target, Transport};
use phoebus_net::{Profile, Stream, tcp};
use std::future::Future;
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// Guards against hanging.
const LIMIT: Duration = Duration::from_secs(60);

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("nothing may hang")
}

/// Starts `openssl` in the directory of the certificates.
fn openssl(place: &Place, arguments: &[&str]) -> Child {
    let mut command = Command::new("openssl");
    command.args(arguments).current_dir(place.path("")).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

async fn read(stream: &Stream) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        bounded(stream.readable()).await?;
        match stream.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other.map(|n| buffer[..n].to_vec()),
        }
    }
}

async fn write(stream: &Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                bounded(stream.writable()).await.unwrap();
            }
        }
    }
}

/// A listener of `pg2` for `encrypt`.
fn listening(place: &Place) -> Box<dyn Listener> {
    listening_for(place, Offer { encrypt: true, auth: false, none: false, others: false })
}

fn listening_for(place: &Place, offer: Offer) -> Box<dyn Listener> {
    let under = tcp::listen("127.0.0.1:0".parse().unwrap(), &Profile::default()).unwrap();
    listener(Box::new(under), &place.credentials("pg2"), offer)
}

/// Connects `openssl s_client` to the listener; `extra` selects its certificate.
fn s_client(place: &Place, listener: &dyn Listener, extra: &[&str]) -> Child {
    place.issue("pg1");
    let to = listener.local_addr().unwrap().to_string();
    let mut arguments = vec!["s_client", "-connect", &to, "-CAfile", "ca.pem", "-servername", "pg2"];
    arguments.extend(["-verify_hostname", "pg2", "-verify_return_error"]);
    arguments.extend(extra);
    openssl(place, &arguments)
}

const AS_PG1: [&str; 6] = ["-cert", "pg1.pem", "-key", "pg1-key.pem", "-alpn", "phoebus/1"];

async fn accepted(listener: &dyn Listener) -> io::Result<Stream> {
    bounded(async { listener.accept().await.unwrap().0.handshake().await }).await
}

/// Waits for the program's exit and returns its output.
async fn output_of(mut child: Child) -> String {
    drop(child.stdin.take());
    let output = bounded(child.wait_with_output()).await.unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn openssl_client_is_served() {
    let place = Place::new();
    let listener = listening(&place);
    let mut client = s_client(&place, &*listener, &[&AS_PG1[..], &["-quiet", "-no_ign_eof"]].concat());
    let stream = accepted(&*listener).await.unwrap();
    assert_eq!(stream.identity().unwrap().names, ["pg1"]);
    let mut stdin = client.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(read(&stream).await.unwrap(), b"hello\n");
    write(&stream, b"and so on\n").await;
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(bounded(lines.next_line()).await.unwrap().unwrap(), "and so on");
    drop(stdin);
    assert_eq!(read(&stream).await.unwrap(), b"", "its close_notify is the end of its stream");
}

#[tokio::test]
async fn key_update_of_openssl_is_accepted() {
    let place = Place::new();
    let listener = listening(&place);
    let mut client = s_client(&place, &*listener, &AS_PG1);
    let stream = accepted(&*listener).await.unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let mut said = BufReader::new(client.stderr.take().unwrap()).lines();
    // Requests a key update on both sides; afterwards each end decrypts with the other's new keys.
    stdin.write_all(b"K\n").await.unwrap();
    while bounded(said.next_line()).await.unwrap().unwrap() != "KEYUPDATE" {}
    stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(read(&stream).await.unwrap(), b"hello\n");
    write(&stream, b"with new keys\n").await;
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    while bounded(lines.next_line()).await.unwrap().unwrap() != "with new keys" {}
}

const UNEXPECTED: &str =
    "it sent new keys or a session ticket, which have no place on a hop whose TLS ends once both ends are known";

#[tokio::test]
async fn auth_refuses_key_updates() {
    let place = Place::new();
    let listener = listening_for(&place, Offer { encrypt: false, auth: true, none: false, others: false });
    let as_pg1 = [&AS_PG1[..4], &["-alpn", "phoebus-auth/1"]].concat();
    // `k` updates the client's own keys, `K` those of both ends.
    for update in ["k\n", "K\n"] {
        let mut client = s_client(&place, &*listener, &as_pg1);
        let stream = accepted(&*listener).await.unwrap();
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"hello\n").await.unwrap();
        assert_eq!(read(&stream).await.unwrap(), b"hello\n");
        stdin.write_all(update.as_bytes()).await.unwrap();
        let error = read(&stream).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::InvalidData, UNEXPECTED));
        assert_eq!(read(&stream).await.unwrap_err().to_string(), UNEXPECTED, "it does not pass");
    }
}

#[tokio::test]
async fn auth_refuses_session_tickets() {
    let place = Place::new();
    // OpenSSL's server sends two tickets after each handshake.
    let (_child, _stdout, to) = s_server(&place, &["-alpn", "phoebus-auth/1"]).await;
    let transport = Tls::auth(place.credentials("pg1"));
    let stream = bounded(transport.connect(&to, &Profile::default(), LIMIT)).await.unwrap();
    assert_eq!(read(&stream).await.unwrap_err().to_string(), UNEXPECTED);
}

/// A resumable session of `pg2` with early data, issued by another server of that name.
async fn session(place: &Place) -> String {
    let more = ["-alpn", "phoebus/1", "-early_data", "-max_early_data", "16384"];
    let (_server, _stdout, to) = s_server(place, &more).await;
    let to = to.addr.to_string();
    let mut arguments = vec!["s_client", "-connect", &to, "-CAfile", "ca.pem", "-sess_out", "session.pem"];
    arguments.extend(AS_PG1);
    let client = openssl(place, &arguments);
    // The client writes the file when the ticket comes, and prints its content when it exits.
    let written = async {
        while !place.path("session.pem").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    bounded(written).await;
    let said = output_of(client).await;
    assert!(said.contains("Max Early Data: 16384"), "{said}");
    "session.pem".to_owned()
}

#[tokio::test]
async fn server_issues_no_tickets_and_accepts_no_resumption() {
    let place = Place::new();
    let listener = listening(&place);
    let serve = async || {
        let stream = accepted(&*listener).await.unwrap();
        assert_eq!(read(&stream).await.unwrap(), b"hello\n", "nothing comes before it");
        write(&stream, b"and so on\n").await;
        assert_eq!(read(&stream).await.unwrap(), b"");
        stream.shutdown_write().unwrap();
        stream.delivered(LIMIT).await.unwrap();
        stream.close();
    };
    let talk = async |mut client: Child| {
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"hello\n").await.unwrap();
        let mut stdout = BufReader::new(client.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("and so on\n") {
            assert_ne!(bounded(stdout.read_line(&mut said)).await.unwrap(), 0, "{said}");
        }
        drop(stdin);
        bounded(stdout.read_to_string(&mut said)).await.unwrap();
        said
    };
    // A client that asks for a ticket gets none.
    let client = s_client(&place, &*listener, &[&AS_PG1[..], &["-sess_out", "kept.pem"]].concat());
    let (said, ()) = tokio::join!(talk(client), serve());
    assert!(said.contains("New, TLSv1.3") && !said.contains("New Session Ticket arrived"), "{said}");
    assert!(!place.path("kept.pem").exists(), "a session was given out");
    // A client with a ticket must make a full handshake, and its early data is rejected.
    let session = session(&place).await;
    std::fs::write(place.path("early"), "early\n").unwrap();
    let more = ["-sess_in", &session, "-early_data", "early"];
    let client = s_client(&place, &*listener, &[&AS_PG1[..], &more].concat());
    let (said, ()) = tokio::join!(talk(client), serve());
    assert!(said.contains("New, TLSv1.3") && !said.contains("Reused"), "{said}");
    assert!(said.contains("Early data was rejected"), "{said}");
}

#[tokio::test]
async fn insufficient_clients_are_refused() {
    let place = Place::new();
    let listener = listening(&place);
    let cases: [(&[&str], &str, &str); 4] = [
        (
            &["-alpn", "phoebus/1"],
            "it showed no certificate; expected one of a trusted authority",
            "certificate required",
        ),
        (
            &[&AS_PG1[..], &["-tls1_2"]].concat(),
            "it does not offer what this hop needs, which is TLS 1.3",
            "protocol version",
        ),
        (&AS_PG1[..4], "it does not offer the kind of security that this hop is configured for", "Verification: OK"),
        (&["-alpn", "h2"], "it asks for a kind of security that is not offered here", "no application protocol"),
    ];
    for (extra, ours, theirs) in cases {
        let client = s_client(&place, &*listener, extra);
        let error = accepted(&*listener).await.unwrap_err();
        assert!(error.to_string().starts_with(ours), "{extra:?}: {error}");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let said = output_of(client).await;
        assert!(said.contains(theirs), "{extra:?}: {said}");
    }
    // A certificate of another authority, although it carries the name pg1.
    let elsewhere = Place::new();
    let files = elsewhere.issue("pg1");
    let extra =
        ["-cert", files.certificate.to_str().unwrap(), "-key", files.key.to_str().unwrap(), "-alpn", "phoebus/1"];
    let client = s_client(&place, &*listener, &extra);
    let error = accepted(&*listener).await.unwrap_err();
    assert_eq!(error.to_string(), "its certificate is not signed by an authority that is trusted here");
    let said = output_of(client).await;
    assert!(said.contains("alert"), "{said}");
}

/// Starts `openssl s_server` as `pg2`, and returns its address.
async fn s_server(place: &Place, extra: &[&str]) -> (Child, BufReader<ChildStdout>, Target) {
    place.issue("pg2");
    let mut arguments =
        vec!["s_server", "-accept", "127.0.0.1:0", "-naccept", "1", "-cert", "pg2.pem", "-key", "pg2-key.pem"];
    arguments.extend(["-CAfile", "ca.pem", "-Verify", "1", "-verify_return_error"]);
    arguments.extend(extra);
    let mut child = openssl(place, &arguments);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("ACCEPT ") {
        line.clear();
        assert_ne!(bounded(stdout.read_line(&mut line)).await.unwrap(), 0, "it ended");
    }
    let addr = line.trim_start_matches("ACCEPT ").trim().parse().unwrap();
    (child, stdout, Target { addr, name: "pg2".into(), early: false })
}

#[tokio::test]
async fn openssl_server_receives_all_bytes() {
    let place = Place::new();
    let (_child, mut stdout, to) = s_server(&place, &["-alpn", "phoebus/1"]).await;
    let stream =
        bounded(Tls::encrypt(place.credentials("pg1")).connect(&to, &Profile::default(), LIMIT)).await.unwrap();
    assert_eq!(stream.identity().unwrap().names, ["pg2"]);
    let sent: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    let send = async {
        write(&stream, sent.as_bytes()).await;
        stream.shutdown_write().unwrap();
    };
    let mut got = Vec::new();
    let ((), read) = bounded(async { tokio::join!(send, stdout.read_to_end(&mut got)) }).await;
    read.unwrap();
    let got = String::from_utf8_lossy(&got);
    // The server's output also contains its report of the handshake.
    assert!(got.contains(&sent), "{} bytes of {}", got.len(), sent.len());
    assert!(got.contains("CN=pg1") || got.contains("CN = pg1"), "it saw our certificate");
}

#[tokio::test]
async fn wrong_servers_are_refused() {
    let place = Place::new();
    let transport = Tls::encrypt(place.credentials("pg1"));
    let cases: [(&[&str], &str, &str); 4] = [
        (&["-alpn", "phoebus/1"], "pg3", "it showed a certificate for pg2; expected one for pg3"),
        (&["-alpn", "phoebus/1", "-tls1_2"], "pg2", "it does not speak TLS 1.3"),
        (&["-alpn", "h2"], "pg2", "it does not offer the kind of security that this hop is configured for"),
        (&[], "pg2", "it does not offer the kind of security that this hop is configured for"),
    ];
    for (extra, name, expected) in cases {
        let (_child, _stdout, mut to) = s_server(&place, extra).await;
        to.name = name.into();
        let error = bounded(transport.connect(&to, &Profile::default(), LIMIT)).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot trust {name} at 127.0.0.1:")) && error.ends_with(expected),
            "{error}"
        );
    }
    // A server that does not trust this end says so after it has seen the certificate.
    let elsewhere = Place::new();
    let (_child, _stdout, to) = s_server(&place, &["-alpn", "phoebus/1"]).await;
    let transport = Tls::encrypt(elsewhere.credentials_that_trust("pg1", &place));
    let stream = bounded(transport.connect(&to, &Profile::default(), LIMIT)).await.unwrap();
    let error = read(&stream).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().starts_with("it does not accept this end's certificate"), "{error}");
}
