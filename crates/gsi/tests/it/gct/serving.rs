//! This crate as the server of a real `globus-url-copy`: login, delegation, and the transfer of a file over
//! protected data channels with the delegated rights.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use phoebus_gsi::channel::{Channel, DataAuth, MAX_RECORD, Protection};
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::control::{Level, Protected, ServerLogin};
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::proxy::verify::verify;

use crate::gct::lab::{Lab, Lines, PATIENCE, USER, attempt, now};

/// Observations about a client.
struct Seen {
    identity: String,
    limited: bool,
    delegated: Option<Credential>,
    protection: String,
    commands: Vec<String>,
}

const CONTENT: &[u8] = b"what the server has to give\n";

/// The part of an FTP server that `globus-url-copy` needs for one file.
struct Session {
    lines: Lines,
    protected: Protected,
    endpoint: Endpoint,
    commands: Vec<String>,
    auth: DataAuth,
    protection: Protection,
}

fn serve(endpoint: Endpoint, stream: TcpStream) -> Result<Seen, String> {
    let mut lines = Lines::new(stream);
    lines.send("220 phoebus test server");
    let mut login = ServerLogin::new(&endpoint);
    loop {
        let Some(line) = lines.line() else { return Err("the client left during the login".into()) };
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = login.command(verb, argument, now());
        lines.send(&answer.line);
        if let Some(error) = answer.error {
            return Err(error.to_string());
        }
        if answer.done {
            break;
        }
    }
    let protected = login.finish().unwrap();
    let peer = protected.context().peer().unwrap();
    let mut seen = Seen {
        identity: peer.identity().to_owned(),
        limited: peer.is_limited(),
        delegated: protected.context().delegated().cloned(),
        protection: protected.context().protection(),
        commands: Vec::new(),
    };
    let mut session = Session {
        lines,
        protected,
        endpoint: match &seen.delegated {
            Some(credential) => Endpoint { credential: credential.clone(), ..endpoint },
            None => endpoint,
        },
        commands: Vec::new(),
        auth: DataAuth::Own,
        protection: Protection::Clear,
    };
    while session.one() {}
    seen.commands = session.commands;
    Ok(seen)
}

impl Session {
    fn say(&mut self, reply: &str) {
        let line = self.protected.reply(Level::Privacy, reply).unwrap();
        self.lines.send(&line);
    }

    /// Handles one command; returns whether another may follow.
    fn one(&mut self) -> bool {
        let Some(line) = self.lines.line() else { return false };
        let (verb, argument) = line.split_once(' ').unwrap();
        let (command, level) = self.protected.open_command(verb, argument).unwrap().unwrap();
        assert_eq!(level, Level::Privacy);
        self.commands.push(command.clone());
        let (verb, argument) = command.split_once(' ').unwrap_or((&command, ""));
        match verb {
            "USER" => self.say("331 Password required."),
            "PASS" => self.say("230 User logged in."),
            "SITE" if argument == "HELP" => self.say("214 Nothing."),
            "FEAT" => self.say("211-Extensions\r\n DCAU\r\n SIZE\r\n211 End."),
            "DCAU" => {
                self.auth = DataAuth::parse(argument).unwrap();
                self.say("200 DCAU set.");
            }
            "PROT" => {
                self.protection = Protection::parse(argument).unwrap();
                self.say("200 PROT set.");
            }
            "PASV" => self.transfer(),
            "QUIT" => {
                self.say("221 Goodbye.");
                return false;
            }
            "SIZE" => self.say(&format!("213 {}", CONTENT.len())),
            "TYPE" | "MODE" | "PBSZ" | "OPTS" => self.say("200 Fine."),
            _ => self.say("500 Not here."),
        }
        true
    }

    /// Handles everything from PASV to the end of RETR, in stream mode.
    fn transfer(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        self.say(&format!("227 Entering Passive Mode (127,0,0,1,{},{})", port / 256, port % 256));
        let line = self.lines.line().unwrap();
        let (verb, argument) = line.split_once(' ').unwrap();
        let (command, _) = self.protected.open_command(verb, argument).unwrap().unwrap();
        assert!(command.starts_with("RETR "), "{command}");
        self.commands.push(command);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.say("150 Beginning transfer.");
        let mut out = Vec::new();
        if let Some(expect) = self.auth.expect(USER) {
            let mut channel = Channel::accept(&self.endpoint, expect, self.protection, now()).unwrap();
            let (mut come, mut buffer) = (Vec::new(), [0; MAX_RECORD]);
            loop {
                let progress = channel.handshake(&come, &mut out).unwrap_or_else(|error| panic!("{error}"));
                come.drain(..progress.used);
                stream.write_all(&out).unwrap();
                out.clear();
                if progress.open {
                    break;
                }
                let count = stream.read(&mut buffer).unwrap();
                assert_ne!(count, 0, "the client left during the handshake of the data channel");
                come.extend_from_slice(&buffer[..count]);
            }
            channel.seal(CONTENT, &mut out).unwrap();
        } else {
            out.extend_from_slice(CONTENT);
        }
        stream.write_all(&out).unwrap();
        drop(stream);
        self.say("226 Transfer complete.");
    }
}

/// Copies one file with `globus-url-copy` from this server; returns the server's observations, the program's
/// output, and the file.
fn copy(
    lab: &Lab,
    proxy: &str,
    options: &[&str],
    environment: &[(&str, &str)],
) -> (Result<Seen, String>, String, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = lab.endpoint(lab.credential_of("host"));
    let server = thread::spawn(move || serve(endpoint, listener.accept().unwrap().0));
    let target = lab.path("fetched");
    // Removed first, so that the file of an earlier copy cannot be mistaken for this one's.
    let _ = fs::remove_file(&target);
    let mut command = lab.command("timeout", Some(proxy));
    command.args(["60", "globus-url-copy", "-dbg"]).args(options).envs(environment.iter().copied());
    let (ok, text) =
        attempt(command.arg(format!("gsiftp://localhost:{port}/file")).arg(format!("file://{}", target.display())));
    let seen = server.join().unwrap();
    (seen, if ok { String::new() } else { text }, fs::read(&target).unwrap_or_default())
}

#[test]
fn gct_client_logs_in_delegates_and_fetches() {
    let lab = Lab::new();
    lab.user_proxy("rfc", &["-rfc"]);
    lab.user_proxy("limited", &["-rfc", "-limited"]);
    lab.user_proxy("draft", &["-draft"]);
    lab.user_proxy("legacy", &["-old"]);
    for (proxy, limited) in [("rfc", false), ("limited", true), ("draft", false), ("legacy", false)] {
        let (seen, said, content) = copy(&lab, proxy, &[], &[]);
        let seen = seen.unwrap_or_else(|error| panic!("{proxy}: {error}\n{said}"));
        assert_eq!((seen.identity.as_str(), seen.limited), (USER, limited), "{proxy}");
        let delegated = seen.delegated.unwrap_or_else(|| panic!("{proxy}: nothing was lent"));
        let lent = verify(delegated.chain().to_vec(), &lab.trust(), &provider(), now()).unwrap();
        // globus-url-copy always delegates limited rights.
        assert_eq!((lent.identity(), lent.proxies(), lent.is_limited()), (USER, 2, true), "{proxy}");
        assert!(seen.protection.starts_with("TLSv1_3"), "{}", seen.protection);
        assert!(said.is_empty(), "{proxy}: {said}\n{:?}", seen.commands);
        assert_eq!(content, CONTENT, "{proxy}: {:?}", seen.commands);
    }
}

#[test]
fn server_provides_every_requested_data_protection() {
    let lab = Lab::new();
    lab.user_proxy("rfc", &["-rfc"]);
    for (option, command) in [("-nodcau", "DCAU N"), ("-dcsafe", "PROT S"), ("-dcpriv", "PROT P")] {
        let (seen, said, content) = copy(&lab, "rfc", &[option], &[]);
        let seen = seen.unwrap_or_else(|error| panic!("{option}: {error}\n{said}"));
        assert!(seen.commands.iter().any(|one| one == command), "{option}: {:?}", seen.commands);
        assert!(said.is_empty(), "{option}: {said}\n{:?}", seen.commands);
        assert_eq!(content, CONTENT, "{option}");
    }
}

#[test]
fn gct_client_over_tls_1_2_is_served() {
    let lab = Lab::new();
    lab.user_proxy("rfc", &["-rfc"]);
    let old =
        [("GLOBUS_GSSAPI_MIN_TLS_PROTOCOL", "TLS1_2_VERSION"), ("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", "TLS1_2_VERSION")];
    let (seen, said, content) = copy(&lab, "rfc", &["-dcpriv"], &old);
    let seen = seen.unwrap_or_else(|error| panic!("{error}\n{said}"));
    assert!(seen.protection.starts_with("TLSv1_2"), "{}", seen.protection);
    assert!(seen.delegated.is_some());
    assert_eq!((said.as_str(), content.as_slice()), ("", CONTENT));
}

#[test]
fn untrusted_client_is_refused_with_the_reason() {
    let lab = Lab::new();
    lab.user_proxy("rfc", &["-rfc"]);
    lab.policy("ca", crate::gct::lab::CA, "/O=Grid/OU=Lab/CN=localhost");
    let (seen, said, _) = copy(&lab, "rfc", &[], &[]);
    let error = seen.err().unwrap();
    assert!(error.contains(USER) && error.contains("signing policy"), "{error}");
    assert!(said.contains("535") && said.contains("signing policy"), "{said}");
}
