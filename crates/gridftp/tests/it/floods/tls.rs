//! Floods under TLS (RFC 4217) and under GSSAPI (RFC 2228): of handshakes that do not end, and of what may be sent after them.

use super::*;
use phoebus_gridftp::client::trusting;
use phoebus_gridftp::server::config::Tls;
use rustls::ClientConnection;
use support::lab::Lab;

/// A server whose certificate is signed by the lab's authority.
fn serve(lab: &Lab) -> Serve {
    let serve = Serve::to_grid_with(lab, |config| {
        let root = config.users[0].root.clone();
        config.anonymous =
            Some(Anonymous { root, read_only: false, quota: Quota::default(), account: None, third_party: false });
        impatient(config);
        let (certificate, key) = (lab.path("host.pem"), lab.path("host.key"));
        config.tls = Some(Tls { certificate, key, required: false, data_must_resume: false });
    });
    fill(&serve);
    serve
}

/// A client's end of TLS over a TCP connection.
struct Encrypted {
    tls: ClientConnection,
    tcp: TcpStream,
    /// Before each message, the client changes its keys and asks the server to do so as well (RFC 8446, 4.6.3).
    updates_keys: bool,
}

/// Writes as a [`Sender`] sends, so that a peer that closed is noticed.
struct Sending<'a>(&'a mut TcpStream);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Encrypted {
    /// Shakes hands over `tcp`.
    fn begin(lab: &Lab, mut tcp: TcpStream) -> Self {
        let config = trusting(Some(&lab.path("ca.pem")), None).unwrap();
        let mut tls = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        tcp.set_nonblocking(false).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp).unwrap();
        }
        tls.complete_io(&mut tcp).unwrap();
        Self { tls, tcp, updates_keys: false }
    }

    /// Sends a command, whose reply begins with `code`.
    fn command(&mut self, line: &str, code: &str) {
        let Self { tls, tcp, .. } = self;
        let mut stream = BufReader::new(rustls::Stream::new(tls, tcp));
        stream.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_line(&mut reply).unwrap();
        assert!(reply.starts_with(code), "{line}: {reply}");
    }

    /// Opens a data connection from the address of the control connection.
    fn data(&mut self) -> TcpStream {
        let Self { tls, tcp, .. } = self;
        let mut stream = BufReader::new(rustls::Stream::new(tls, tcp));
        stream.get_mut().write_all(b"EPSV\r\n").unwrap();
        let mut reply = String::new();
        stream.read_line(&mut reply).unwrap();
        let port = reply.split('|').nth(3).and_then(|port| port.parse().ok());
        let port: u16 = port.unwrap_or_else(|| panic!("EPSV: {reply}"));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(8192).unwrap();
        socket.bind(&SocketAddr::new(self.tcp.local_addr().unwrap().ip(), 0).into()).unwrap();
        socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        TcpStream::from(socket)
    }
}

impl Sender for Encrypted {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Sending(&mut self.tcp))?;
        }
        if self.updates_keys {
            self.tls.refresh_traffic_keys().map_err(std::io::Error::other)?;
        }
        self.tls.writer().write(&bytes[..bytes.len().min(16 << 10)])
    }
}

/// A control connection in clear that has been told to speak the security mechanism `mechanism`.
fn asked(serve: &Serve, mechanism: &str) -> Control {
    let mut control = Control::greeted(serve);
    control.say(&format!("AUTH {mechanism}"), if mechanism == "TLS" { "234" } else { "334" });
    control
}

/// A control connection under TLS.
fn under_tls(serve: &Serve, lab: &Lab) -> Encrypted {
    Encrypted::begin(lab, asked(serve, "TLS").0.into_inner())
}

/// A control connection under TLS of a user who has logged in, and whose data connections are under TLS.
fn logged_in(serve: &Serve, lab: &Lab) -> Encrypted {
    let mut control = under_tls(serve, lab);
    let lines =
        [("USER anonymous", "331"), ("PASS me@", "230"), ("TYPE I", "200"), ("PBSZ 0", "200"), ("PROT P", "200")];
    for (line, code) in lines {
        control.command(line, code);
    }
    control
}

/// The same, with new keys before each message.
fn updating(mut connection: Encrypted) -> Encrypted {
    connection.updates_keys = true;
    connection
}

/// Records that a handshake may begin with, and ones that it may not (RFC 8446, 5.1).
fn records(lab: &Lab) -> Vec<(&'static str, Vec<u8>)> {
    let config = trusting(Some(&lab.path("ca.pem")), None).unwrap();
    let mut hello = Vec::new();
    let mut tls = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    tls.write_tls(&mut hello).unwrap();
    // The head of a ClientHello of 2^24-1 bytes, which go on for ever, a byte in each record.
    let endless = [b"\x16\x03\x01\x00\x04\x01\xff\xff\xff".to_vec(), b"\x16\x03\x01\x00\x01\x00".repeat(2000)].concat();
    vec![
        ("ClientHello", hello),
        ("ClientHello without an end", endless),
        ("empty handshake records", b"\x16\x03\x03\x00\x00".to_vec()),
        ("empty data records", b"\x17\x03\x03\x00\x00".to_vec()),
        ("change_cipher_spec", b"\x14\x03\x03\x00\x01\x01".to_vec()),
        ("warnings", b"\x15\x03\x03\x00\x02\x01\x5a".to_vec()),
        ("a record that is too long", b"\x17\x03\x03\xff\xff".repeat(10)),
    ]
}

/// The messages with these names.
fn some(names: &[&str]) -> Vec<(&'static str, Vec<u8>)> {
    messages().into_iter().filter(|(name, _)| names.contains(name)).collect()
}

#[test]
fn endless_tls_handshakes_on_control_connections_are_ended() {
    let _turn = alone();
    let lab = Lab::new();
    let serve = serve(&lab);
    let all = || [records(&lab), messages()].concat();
    let mut floods = each("after AUTH TLS", all(), || asked(&serve, "TLS"));
    let slow = || Slow(asked(&serve, "TLS"), Instant::now());
    floods.extend(each("slowly after AUTH TLS", records(&lab), slow));
    let tokens = [
        ("ADAT with no token", b"ADAT AAAA\r\n".to_vec()),
        ("ADAT with no end", [b"ADAT ".to_vec(), vec![b'A'; 1000]].concat()),
        ("ADAT", b"ADAT\r\n".to_vec()),
        ("AUTH GSSAPI", b"AUTH GSSAPI\r\n".to_vec()),
        ("MIC", b"MIC AAAA\r\n".to_vec()),
        ("ENC", b"ENC AAAA\r\n".to_vec()),
    ];
    let after_gssapi = [tokens.to_vec(), messages()].concat();
    floods.extend(each("after AUTH GSSAPI", after_gssapi, || asked(&serve, "GSSAPI")));
    flood(floods, BOUNDS, || other(&serve));
}

#[test]
fn endless_control_connections_under_tls_are_ended() {
    let _turn = alone();
    let lab = Lab::new();
    let serve = serve(&lab);
    let mut floods = each("under TLS", messages(), || under_tls(&serve, &lab));
    floods.extend(each("under TLS with new keys", some(&["NOOP", "", "XYZZY"]), || updating(under_tls(&serve, &lab))));
    floods.extend(each("slowly under TLS", some(&["NOOP", "NUL bytes"]), || {
        Slow(under_tls(&serve, &lab), Instant::now())
    }));
    // Records in clear after the handshake.
    floods.extend(each("in clear under TLS", records(&lab), || under_tls(&serve, &lab).tcp));
    flood(floods, BOUNDS, || other(&serve));
    let of_user = some(&["NOOP", "STAT", "XYZZY", "RETR large", "CWD /many", "a line without end"]);
    let mut floods = each("of a user under TLS", of_user, || logged_in(&serve, &lab));
    let keys = || updating(logged_in(&serve, &lab));
    floods.extend(each("of a user under TLS with new keys", some(&["NOOP", "", "XYZZY"]), keys));
    flood(floods, BOUNDS, || other(&serve));
}

#[test]
fn endless_data_connections_under_tls_are_ended() {
    let _turn = alone();
    let lab = Lab::new();
    let serve = serve(&lab);
    // A transfer that has begun, of which nobody says any more on the control connection.
    let begun = |line: &str| {
        let mut control = logged_in(&serve, &lab);
        let data = control.data();
        control.command(line, "150");
        (control, data)
    };
    let raw = |line: &'static str| {
        let (control, data) = begun(line);
        Among { sends: data, _kept: vec![control] }
    };
    let encrypted = |line: &'static str, updates_keys| {
        let (control, data) = begun(line);
        let data = Encrypted { updates_keys, ..Encrypted::begin(&lab, data) };
        Among { sends: data, _kept: vec![control] }
    };
    let garbage = || [records(&lab), vec![("NUL bytes", vec![0; 1700])]].concat();
    let mut floods = each("instead of a handshake to store", garbage(), || raw("STOU"));
    floods.extend(each("instead of a handshake to read", garbage(), || raw("RETR large")));
    let bytes = || vec![("bytes", vec![1; 100])];
    floods.extend(each("to one who only sends", bytes(), || encrypted("RETR large", false)));
    floods.extend(each("with new keys to one who only sends", bytes(), || encrypted("RETR large", true)));
    floods.extend(each("with new keys to one who lists", bytes(), || encrypted("MLSD /many", true)));
    flood(floods, BOUNDS, || other(&serve));
}
