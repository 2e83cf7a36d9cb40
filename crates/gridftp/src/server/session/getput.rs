//! GET and PUT (GFD.47): RETR and STOR with all their parameters in one command, which saves a round trip for each
//! file.
//!
//! GFD.47 does not define how parameters are written and answered. This follows dCache, whose authors asked the authors
//! of the text, and GCT's client library: each parameter ends with a semicolon, unknown ones are ignored, and `pasv`
//! gets the preliminary reply `127 PORT (h1,h2,h3,h4,p1,p2)`.
//!
//! FEAT does not list them: if it did, globus-url-copy with `-cc` and `-pp` would use them, and fail an assertion of
//! its own. dCache's client does not use them by itself either (`checkGETPUTSupport` in FTPClient.java looks for
//! `GETPUT`).

use super::task::{DataEndpoint, Operation, Task};
use super::{Session, Step};
use crate::data::Mode;
use phoebus_proto::gridftp::address::parse_port;
use phoebus_proto::gridftp::command;

/// The parameters of GET and PUT.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters<'a> {
    path: Option<&'a [u8]>,
    mode: Option<command::Mode>,
    port: Option<&'a str>,
    pasv: bool,
}

impl Session {
    /// Handles GET and PUT. `None` for any other command.
    pub(super) fn get_or_put(&mut self, line: &[u8]) -> Option<Step> {
        let at = line.iter().position(|&b| b == b' ').unwrap_or(line.len());
        let verb = ["GET", "PUT"].into_iter().find(|verb| line[..at].eq_ignore_ascii_case(verb.as_bytes()))?;
        let entry = self.find(verb)?;
        if let Some(refusal) = self.refusal(entry.needs) {
            return Some(refusal);
        }
        self.renaming = None;
        let rest = line.get(at + 1..).unwrap_or_default();
        Some(match parameters(rest) {
            Ok(parameters) => self.transfer_as(verb == "GET", &parameters).unwrap_or_else(|refusal| refusal),
            Err((code, text)) => Step::say(code, text),
        })
    }

    fn transfer_as(&mut self, sends: bool, parameters: &Parameters<'_>) -> Result<Step, Step> {
        let Some(path) = parameters.path else { return Err(Step::say(501, "a path was expected: path=...;")) };
        // A refused parameter changes nothing; those before it stay set.
        let set = |step: Step| match step {
            Step::Say(reply) if reply.code >= 400 => Err(Step::Say(reply)),
            _ => Ok(()),
        };
        if let Some(mode) = parameters.mode {
            set(self.mode(mode))?;
        }
        if let Some(port) = parameters.port {
            let to = parse_port(port).map_err(|error| Step::say(501, error.to_string()))?;
            set(self.port(vec![to], DataEndpoint::Connect))?;
        }
        if !parameters.pasv {
            return Ok(if sends { self.retr(path) } else { self.stor(path) });
        }
        if self.epsv_only {
            return Err(Step::say(503, "after EPSV ALL only EPSV is possible"));
        }
        if self.local.is_ipv6() {
            return Err(Step::say(425, "pasv has no form for IPv6; EPSV before it has"));
        }
        if sends && self.settings.mode == Mode::Extended {
            return Err(Step::say(425, "in MODE E the sender connects: port=...; has to say where"));
        }
        self.forget_data_endpoint();
        self.aim = DataEndpoint::Listen;
        let what =
            |key| if sends { Operation::Send { key, part: None, stripe: None } } else { Operation::Receive { key } };
        Ok(match self.transfer(path, what) {
            Step::Do(task) => match *task {
                Task::Transfer(transfer) => Step::task(Task::ListenAndTransfer(transfer)),
                other => Step::task(other),
            },
            refusal => refusal,
        })
    }
}

/// Parses `path=...;mode=E;pasv;`.
fn parameters(text: &[u8]) -> Result<Parameters<'_>, (u16, String)> {
    let wrong = |text: &[u8]| (501, format!("\"{}\" was not expected", String::from_utf8_lossy(text)));
    let mut all = Parameters::default();
    let Some(text) = text.strip_suffix(b";") else {
        return Err((501, "parameters were expected, each with ; at its end".to_owned()));
    };
    for parameter in text.split(|&b| b == b';') {
        let (key, value) = match parameter.iter().position(|&b| b == b'=') {
            Some(at) => (&parameter[..at], Some(&parameter[at + 1..])),
            None => (parameter, None),
        };
        let is_word = !key.is_empty() && key.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        match (key, value) {
            (b"path", Some(path)) if !path.is_empty() => all.path = Some(path),
            (b"mode", Some(b"S" | b"s")) => all.mode = Some(command::Mode::Stream),
            (b"mode", Some(b"E" | b"e")) => all.mode = Some(command::Mode::Extended),
            (b"mode", _) => return Err((504, "modes S and E are implemented".to_owned())),
            (b"port", Some(port)) => all.port = Some(str::from_utf8(port).map_err(|_| wrong(parameter))?),
            (b"pasv", None) => all.pasv = true,
            (b"cksum", Some(b"NONE")) => {}
            (b"cksum", _) => return Err((504, "cksum=NONE is implemented; CKSM tells checksums".to_owned())),
            (b"path" | b"port" | b"pasv", _) => return Err(wrong(parameter)),
            _ if is_word => {}
            _ => return Err(wrong(parameter)),
        }
    }
    match all.pasv && all.port.is_some() {
        true => Err((501, "either pasv or port was expected".to_owned())),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_parameters_have_the_names_of_gct() {
        let all = parameters(b"path=/a b=c;mode=e;port=127,0,0,1,4,1;tid=3;new;").unwrap();
        let (path, port) = (Some(&b"/a b=c"[..]), Some("127,0,0,1,4,1"));
        assert_eq!(all, Parameters { path, port, mode: Some(command::Mode::Extended), pasv: false });
        assert!(parameters(b"pasv;path=x;cksum=NONE;").unwrap().pasv);
        for (text, code) in [
            ("", 501),
            ("path=x", 501),
            ("path=;", 501),
            ("pasv=1;path=x;", 501),
            ("path=x;;", 501),
            ("path=x;p v;", 501),
            ("path=x;pasv;port=127,0,0,1,4,1;", 501),
            ("path=x;mode=B;", 504),
            ("path=x;cksum=MD5;", 504),
        ] {
            assert_eq!(parameters(text.as_bytes()).unwrap_err().0, code, "{text}");
        }
    }
}
