//! Passwords that programs send as they are.

use super::{ALL, By, No, connect, http_answer, http_request, socks_answer, socks_request};
use crate::support::{Pg, destination, exchange, expect};
use phoebus_accounts::password::scram_keys;
use phoebus_gateway::config::Config;
use phoebus_proto::session::auth::scram::Salting;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Writes a users file, and returns the table that names it.
fn users(dir: &Path, all: &[(&str, &str)]) -> String {
    let line = |(name, password): &(&str, &str)| {
        let salting = Salting::new(name.as_bytes(), 4096).unwrap();
        format!("{name} {} lab\n", scram_keys(password.as_bytes(), salting).verifier())
    };
    let file = dir.join("users");
    fs::write(&file, all.iter().map(line).collect::<String>()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    format!("[users]\nfile = \"{}\"\n", file.display())
}

struct Site {
    dir: TempDir,
    pg: Pg,
    listener: std::net::TcpListener,
}

const AUTH: &str = "auth = \"scram\"\nraw_password = true\n";
const ALLOW: &str = "[[allow]]\nfrom = [\"group:lab\"]\nto = [\"127.0.0.0/8\"]\n";

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path(), &[("ada", "s:cret"), ("bob", "other")]);
        let pg = Pg::start("pg1", &format!("{ALL}{AUTH}{users}{ALLOW}"));
        Self { dir, pg, listener: destination().0 }
    }

    fn ask(&self, by: By, user: &str, password: &str) -> Result<TcpStream, No> {
        let to = self.listener.local_addr().unwrap();
        let mut stream = connect(&self.pg);
        match by {
            By::Socks => {
                stream.write_all(&[5, 2, 0, 2]).unwrap();
                expect(&mut stream, &[5, 2]);
                let part = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
                stream.write_all(&[&[1][..], &part(user), &part(password)].concat()).unwrap();
                let mut verdict = [0; 2];
                std::io::Read::read_exact(&mut stream, &mut verdict).unwrap();
                if verdict != [1, 0] {
                    return Err(No::Socks(verdict[1]));
                }
                stream.write_all(&socks_request(&to.ip().to_string(), to.port())).unwrap();
                socks_answer(stream)
            }
            By::Http => {
                let given = base64(format!("{user}:{password}").as_bytes());
                let field = format!("Proxy-Authorization: Basic {given}\r\n");
                stream.write_all(http_request(&to.ip().to_string(), to.port(), &field).as_bytes()).unwrap();
                http_answer(stream)
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]);
            text.push(if at <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[test]
fn users_come_by_their_passwords() {
    let site = Site::new();
    for by in [By::Socks, By::Http, By::Socks] {
        let client = site.ask(by, "ada", "s:cret").unwrap();
        let principal = site.pg.status().sessions[0].principal.clone();
        assert_eq!((&*principal.text, &principal.groups[..]), ("ada (password)", &["lab".to_owned()][..]));
        exchange(client, site.listener.accept().unwrap().0, b"up", b"down");
        site.pg.quiet();
    }
    // Without one, programs are told what there is.
    assert_eq!(By::Socks.ask_without(&site), No::Socks(0xff));
    assert!(matches!(By::Http.ask_without(&site), No::Http(407, _)));
}

impl By {
    fn ask_without(self, site: &Site) -> No {
        let mut stream = connect(&site.pg);
        match self {
            Self::Socks => {
                stream.write_all(&[5, 1, 0]).unwrap();
                expect(&mut stream, &[5, 0xff]);
                No::Socks(0xff)
            }
            Self::Http => {
                stream.write_all(http_request("127.0.0.1", 1, "").as_bytes()).unwrap();
                http_answer(stream).unwrap_err()
            }
        }
    }
}

#[test]
fn wrong_passwords_and_unknown_users_look_alike_and_have_to_wait() {
    let site = Site::new();
    // It is known from now on, which must not help who guesses.
    site.ask(By::Http, "ada", "s:cret").unwrap();
    for (user, password) in [("ada", "wrong"), ("nobody", "wrong"), ("", "wrong"), ("ada", "")] {
        let no = No::Http(407, "the user or the password is wrong".to_owned());
        assert_eq!(site.ask(By::Http, user, password).unwrap_err(), no, "{user}");
    }
    for user in ["bob", "no\u{7f}name"] {
        assert_eq!(site.ask(By::Socks, user, "wrong").unwrap_err(), No::Socks(1));
    }
    for password in ["s:cret", "wrong"] {
        assert!(matches!(site.ask(By::Http, "ada", password).unwrap_err(), No::Http(429, _)), "{password}");
        assert_eq!(site.ask(By::Socks, "ada", password).unwrap_err(), No::Socks(1));
    }
}

#[test]
fn known_password_is_forgotten_with_its_verifier() {
    let site = Site::new();
    site.ask(By::Http, "ada", "s:cret").unwrap();
    let users = users(site.dir.path(), &[("ada", "new one"), ("bob", "s:cret")]);
    site.pg.reload("pg1", &format!("{ALL}{AUTH}{users}{ALLOW}"));
    assert!(matches!(site.ask(By::Http, "ada", "s:cret").unwrap_err(), No::Http(407, _)));
    for user in [("ada", "new one"), ("bob", "s:cret")] {
        site.ask(By::Http, user.0, user.1).unwrap();
    }
}

#[test]
fn passwords_are_taken_only_where_nobody_can_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let users = users(dir.path(), &[("ada", "s:cret")]);
    let error = |entry: &str| {
        let text = format!("name = \"pg\"\n[[listen]]\naddress = \"0.0.0.0:5006\"\n{entry}{AUTH}{users}");
        Config::parse(&text, Path::new("pg.toml")).map(drop).map_err(|error| error.to_string())
    };
    assert!(error(ALL).unwrap_err().contains("takes passwords only inside TLS or on loopback"));
    assert_eq!(error("entry = \"session\"\n"), Ok(()));
}
