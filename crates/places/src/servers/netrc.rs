//! `~/.netrc`: logins by host (ftp(1), curl(1)).

use std::io;
use std::path::Path;

/// Longest file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The entries.
#[derive(Debug, Default)]
pub(super) struct Netrc(Vec<Entry>);

/// An entry.
#[derive(Default)]
pub(super) struct Entry {
    /// The host. `None`: all others.
    machine: Option<String>,
    pub(super) login: Option<String>,
    pub(super) password: Option<String>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} …", self.machine, self.login)
    }
}

impl Netrc {
    /// Reads the file. A missing one has no entries.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        match std::fs::metadata(path) {
            // Some accounts have /dev/null as their home.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Ok(meta) if meta.len() > MAX_FILE => return Err(format!("{shown} is longer than {MAX_FILE} bytes")),
            _ => {}
        }
        let text =
            std::fs::read(path).map_err(|error| format!("cannot read {shown}: {}", phoebus_client::reason(&error)))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Unknown words are skipped, as by other programs.
    fn parse(text: &str) -> Self {
        let mut all: Vec<Entry> = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let mut words = words(line.split(" #").next().unwrap_or_default()).into_iter();
            while let Some(word) = words.next() {
                match word.as_str() {
                    "machine" => all.push(Entry { machine: words.next(), ..Entry::default() }),
                    "default" => all.push(Entry::default()),
                    // A macro ends with an empty line.
                    "macdef" => {
                        let _ = lines.by_ref().take_while(|line| !line.trim().is_empty()).count();
                        break;
                    }
                    name => {
                        // The entry continues on the next line.
                        let Some(entry) = all.last_mut() else { continue };
                        match name {
                            "login" => entry.login = words.next(),
                            "password" => entry.password = words.next(),
                            "account" => drop(words.next()),
                            _ => {}
                        }
                    }
                }
            }
        }
        Self(all)
    }

    /// The entry of `host` for `user`, or for any user.
    pub(super) fn find(&self, host: &str, user: Option<&str>) -> Option<&Entry> {
        self.0.iter().find(|entry| {
            entry.machine.as_deref().is_none_or(|machine| machine.eq_ignore_ascii_case(host))
                && user.is_none_or(|user| entry.login.as_deref() == Some(user))
        })
    }
}

/// Words separated by blanks, or in double quotes with backslashes, as in curl.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), line.trim_start().chars().peekable());
    if rest.peek() == Some(&'#') {
        return all;
    }
    while rest.peek().is_some() {
        let mut word = String::new();
        if rest.next_if_eq(&'"').is_some() {
            while let Some(c) = rest.next().filter(|&c| c != '"') {
                word.push(if c == '\\' { rest.next().unwrap_or(c) } else { c });
            }
        } else {
            while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
                word.push(c);
            }
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        all.push(word);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_as_ftp_finds_them() {
        let netrc = Netrc::parse(
            "# mine\nmachine a.example login jane password \"s \\\"3\" # hers\nmachine a.example\n\tlogin joe\n\tpassword x\n\
             macdef init\ncd /\nmachine no.example login no\n\nmachine b login b account c\ndefault login anonymous password me@\n",
        );
        let found = |host, user| netrc.find(host, user).map(|e| (e.login.as_deref(), e.password.as_deref()));
        assert_eq!(found("A.example", None), Some((Some("jane"), Some("s \"3"))));
        assert_eq!(found("a.example", Some("joe")), Some((Some("joe"), Some("x"))));
        assert_eq!(found("a.example", Some("jim")), None);
        assert_eq!(found("b", None), Some((Some("b"), None)));
        assert_eq!(found("no.example", None), Some((Some("anonymous"), Some("me@"))));
        assert!(!format!("{netrc:?}").contains("3"));
    }
}
