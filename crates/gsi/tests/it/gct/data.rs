//! Data channels with a real server: `DCAU A`, `S` and `N`; `PROT C`, `S` and `P`; both directions, and
//! either side connecting.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use phoebus_gsi::channel::{Channel, DataAuth, MAX_RECORD, Protection};
use phoebus_gsi::context::{Delegation, Endpoint, Expect};

use crate::gct::control::{Client, login};
use crate::gct::lab::{Lab, PATIENCE, Server, USER, now};

/// A data connection, secured or not.
struct Data {
    stream: TcpStream,
    channel: Option<Channel>,
    /// Received bytes that were not used yet.
    come: Vec<u8>,
}

impl Data {
    fn secure(
        mut stream: TcpStream,
        endpoint: &Endpoint,
        expect: Option<Expect>,
        protection: Protection,
        connected: bool,
    ) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let Some(expect) = expect else { return Self { stream, channel: None, come: Vec::new() } };
        let mut out = Vec::new();
        let mut channel = match connected {
            true => Channel::connect(endpoint, expect, protection, now(), &mut out).unwrap(),
            false => Channel::accept(endpoint, expect, protection, now()).unwrap(),
        };
        let mut come = Vec::new();
        loop {
            stream.write_all(&out).unwrap();
            out.clear();
            let progress = channel.handshake(&come, &mut out).unwrap_or_else(|error| panic!("{error}"));
            come.drain(..progress.used);
            if progress.open {
                stream.write_all(&out).unwrap();
                return Self { stream, channel: Some(channel), come };
            }
            if out.is_empty() {
                read(&mut stream, &mut come);
            }
        }
    }

    fn receive(mut self) -> Vec<u8> {
        let mut plain = Vec::new();
        loop {
            let used = match &mut self.channel {
                Some(channel) => channel.open(&self.come, &mut plain).unwrap(),
                None => {
                    plain.extend_from_slice(&self.come);
                    self.come.len()
                }
            };
            self.come.drain(..used);
            if read(&mut self.stream, &mut self.come) == 0 {
                assert!(self.come.is_empty(), "the connection ended within a record");
                return plain;
            }
        }
    }

    fn send(mut self, plain: &[u8]) {
        let mut out = Vec::new();
        match &mut self.channel {
            Some(channel) => plain.chunks(100_000).for_each(|part| channel.seal(part, &mut out).unwrap()),
            None => out.extend_from_slice(plain),
        }
        self.stream.write_all(&out).unwrap();
    }
}

fn read(stream: &mut TcpStream, come: &mut Vec<u8>) -> usize {
    let mut buffer = [0; MAX_RECORD];
    let count = loop {
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other.unwrap(),
        }
    };
    come.extend_from_slice(&buffer[..count]);
    count
}

fn enter(lab: &Lab, server: &Server) -> Client {
    let localhost = Expect::Host("localhost".into());
    let mut client = login(lab, server.port, lab.credential("proxy"), localhost, Delegation::Full).unwrap();
    client.enter();
    assert!(client.command("TYPE I").starts_with("200 "));
    client
}

fn passive(client: &mut Client) -> TcpStream {
    let reply = client.command("PASV");
    let numbers = reply.split(['(', ')']).nth(1).unwrap_or_else(|| panic!("{reply}"));
    let numbers: Vec<u16> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
    TcpStream::connect(("127.0.0.1", numbers[4] * 256 + numbers[5])).unwrap()
}

fn active(client: &mut Client) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reply = client.command(&format!("PORT 127,0,0,1,{},{}", port / 256, port % 256));
    assert!(reply.starts_with("200 "), "{reply}");
    listener
}

fn settings() -> Vec<(DataAuth, Protection)> {
    let mut all = vec![(DataAuth::None, Protection::Clear)];
    for auth in [DataAuth::Own, DataAuth::Subject(USER.into())] {
        all.extend([Protection::Clear, Protection::Safe, Protection::Private].map(|level| (auth.clone(), level)));
    }
    all
}

fn content() -> Vec<u8> {
    (0..1_000_003_u32).map(|at| (at * 7 + at / 256) as u8).collect()
}

#[test]
fn data_from_gct_server_arrives_unchanged() {
    let lab = Lab::new();
    let server = lab.server();
    lab.user_proxy("proxy", &["-rfc"]);
    fs::write(lab.path("file"), content()).unwrap();
    let endpoint = lab.endpoint(lab.credential("proxy"));
    let mut client = enter(&lab, &server);
    for (auth, protection) in settings() {
        set(&mut client, &auth, protection);
        let retrieve = format!("RETR {}", lab.path("file").display());

        let stream = passive(&mut client);
        let line = client.protected.command(&retrieve).unwrap();
        client.lines.send(&line);
        let data = Data::secure(stream, &endpoint, auth.expect(USER), protection, true);
        assert!(client.reply().starts_with("150 "));
        assert!(data.receive() == content(), "{auth:?} {protection:?} passive");
        assert!(client.reply().starts_with("226 "), "{auth:?} {protection:?}");

        let listener = active(&mut client);
        let line = client.protected.command(&retrieve).unwrap();
        client.lines.send(&line);
        let (stream, _) = listener.accept().unwrap();
        let data = Data::secure(stream, &endpoint, auth.expect(USER), protection, false);
        assert!(client.reply().starts_with("150 "));
        assert!(data.receive() == content(), "{auth:?} {protection:?} active");
        assert!(client.reply().starts_with("226 "), "{auth:?} {protection:?}");
    }
}

#[test]
fn data_reaches_gct_server_unchanged() {
    let lab = Lab::new();
    let server = lab.server();
    lab.user_proxy("proxy", &["-rfc"]);
    let endpoint = lab.endpoint(lab.credential("proxy"));
    let mut client = enter(&lab, &server);
    for (auth, protection) in settings() {
        set(&mut client, &auth, protection);
        for connected in [true, false] {
            let target = lab.path("stored");
            let line = format!("STOR {}", target.display());
            let stream = if connected {
                let stream = passive(&mut client);
                let line = client.protected.command(&line).unwrap();
                client.lines.send(&line);
                stream
            } else {
                let listener = active(&mut client);
                let line = client.protected.command(&line).unwrap();
                client.lines.send(&line);
                listener.accept().unwrap().0
            };
            let data = Data::secure(stream, &endpoint, auth.expect(USER), protection, connected);
            assert!(client.reply().starts_with("150 "));
            data.send(&content());
            let reply = client.reply();
            assert!(reply.starts_with("226 "), "{auth:?} {protection:?}: {reply}\n{}", server.log());
            assert!(fs::read(&target).unwrap() == content(), "{auth:?} {protection:?}");
            fs::remove_file(&target).unwrap();
        }
    }
}

fn set(client: &mut Client, auth: &DataAuth, protection: Protection) {
    for command in
        [format!("DCAU {}", auth.argument()), "PBSZ 1048576".into(), format!("PROT {}", protection.argument())]
    {
        let reply = client.command(&command);
        assert!(reply.starts_with("200 "), "{command}: {reply}");
    }
}
