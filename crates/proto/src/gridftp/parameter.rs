//! Parameters of commands: parsing and printing of each kind.

use super::address::{parse_eprt, parse_port, parse_stripes, print_eprt, print_port, print_stripe};
use super::marker::Restart;
use super::time::Stamp;
use std::fmt;
use std::net::SocketAddr;

/// A path as sent by the client: bytes, not necessarily UTF-8.
pub type Path = Vec<u8>;

/// A secret. Its debug form does not print it, so that it never reaches a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Why a line is not a valid command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The command is unknown.
    #[error("{0} is not a command that is known here")]
    Unknown(String),
    /// The parameter is invalid.
    #[error("{verb}: {expected} was expected")]
    Syntax {
        /// The verb.
        verb: &'static str,
        /// The expected parameter.
        expected: &'static str,
    },
    /// A parameter contains a line end, after which another command would begin.
    #[error("a parameter of {0} has the end of a line in it")]
    Line(String),
}

impl CommandError {
    /// The code of the server's reply.
    pub fn code(&self) -> u16 {
        if matches!(self, Self::Unknown(_)) { 500 } else { 501 }
    }
}

/// Protection level of data connections (RFC 2228, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// No protection.
    Clear,
    /// Integrity only.
    Safe,
    /// Confidentiality only.
    Confidential,
    /// Integrity and confidentiality.
    Private,
}

/// Authentication of data connections (GFD.20, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dcau {
    /// No authentication.
    None,
    /// Each end must have the user's identity.
    Own,
    /// The other end must have this subject.
    Subject(String),
}

/// Transfer mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A stream that ends with its connection.
    Stream,
    /// Blocks.
    Block,
    /// Compressed.
    Compressed,
    /// Extended blocks.
    Extended,
}

/// Parameter of `EPSV`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epsv {
    /// The address family of the control connection.
    Same,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// The client will use only EPSV from now on, so that a NAT need not inspect its commands (RFC 2428, section 4).
    All,
}

/// Parameter of `CKSM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cksm {
    /// Name of the algorithm, as sent.
    pub algorithm: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes. `None`: up to the end of the file (-1 on the wire).
    pub length: Option<u64>,
    /// The file.
    pub path: Path,
}

/// Parameter of `ERET`: a file that a server module sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eret {
    /// A part of the file: offset and length. The offsets of the blocks on the data channel begin at 0.
    Partial(u64, u64, Path),
    /// The output of another module: its name, its parameters, the path.
    Module(String, String, Path),
}

/// Parameter of `ESTO`: a file that a server module receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Esto {
    /// Written to the file from this offset on.
    Adjusted(u64, Path),
    /// The input of another module: its name, its parameters, the path.
    Module(String, String, Path),
}

/// Splits at the first blank: the first word, and the rest.
pub(in super::super) fn two(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&b| b == b' ') {
        Some(blank) => (&line[..blank], &line[blank + 1..]),
        None => (line, &[]),
    }
}

/// The text without leading and trailing blanks. `None` if it is empty or not UTF-8.
pub(in super::super) fn text(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Parses a number of decimal digits.
pub(in super::super) fn number(bytes: &[u8]) -> Option<u64> {
    text(bytes).filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// Parses a path: all bytes of the parameter, at least one.
pub(in super::super) fn path(verb: &'static str, bytes: &[u8]) -> Result<Path, CommandError> {
    if bytes.is_empty() { Err(CommandError::Syntax { verb, expected: "a path" }) } else { Ok(bytes.to_vec()) }
}

fn syntax<T>(verb: &'static str, expected: &'static str, found: Option<T>) -> Result<T, CommandError> {
    found.ok_or(CommandError::Syntax { verb, expected })
}

/// Defines parser and printer of each kind of parameter, as a module.
macro_rules! kinds {
    ($($kind:ident: $of:ty, |$verb:ident, $rest:ident| $parse:expr, |$value:ident| $print:expr;)*) => {
        $(pub(super) mod $kind {
            #![allow(unused_imports, reason = "each sort uses some of them")]
            #![allow(clippy::ptr_arg, reason = "a parameter is printed as the command holds it")]
            use super::*;
            pub(in super::super) fn parse($verb: &'static str, $rest: &[u8]) -> Result<$of, CommandError> {
                $parse
            }
            pub(in super::super) fn print($value: &$of) -> Vec<u8> {
                $print
            }
        })*
    };
}

kinds! {
    name: String, |verb, rest| syntax(verb, "a name", text(rest)), |value| value.clone().into_bytes();
    word: String, |verb, rest| syntax(verb, "a word", text(rest).filter(|w| w.is_ascii())), |value| value.clone().into_bytes();
    maybe_name: Option<String>, |_verb, rest| Ok(text(rest)), |value| value.clone().unwrap_or_default().into_bytes();
    secret: Secret, |_verb, rest| Ok(Secret(rest.to_vec())), |value| value.0.clone();
    count: u64,
        // ALLO may be followed by the length of the longest record, which does not apply here.
        |verb, rest| syntax(verb, "a number", number(two(rest).0)),
        |value| value.to_string().into_bytes();
    place: Path, |verb, rest| path(verb, rest), |value| value.clone();
    maybe_place: Option<Path>, |_verb, rest| Ok(Some(rest.to_vec()).filter(|rest| !rest.is_empty())),
        |value| value.clone().unwrap_or_default();
    dated: (Stamp, Path),
        |verb, rest| {
            let (time, name) = two(rest);
            let time = text(time).and_then(|time| Stamp::parse(&time));
            Ok((syntax(verb, "a time as YYYYMMDDHHMMSS and a path", time)?, path(verb, name)?))
        },
        |value| [value.0.to_string().as_bytes(), &value.1].join(&b' ');
    pair: (String, String),
        |verb, rest| {
            let (first, second) = two(rest);
            syntax(verb, "a name and a value", text(first).zip(text(second)))
        },
        |value| format!("{} {}", value.0, value.1).into_bytes();
    opts: (String, String),
        |verb, rest| {
            let (command, options) = two(rest);
            let command = syntax(verb, "a command and its options", text(command))?;
            Ok((command.to_ascii_uppercase(), text(options).unwrap_or_default()))
        },
        |value| format!("{} {}", value.0, value.1).trim_end().to_owned().into_bytes();
    protection: Protection,
        |verb, rest| syntax(verb, "C, S, E or P", match rest.to_ascii_uppercase().trim_ascii() {
            b"C" => Some(Protection::Clear),
            b"S" => Some(Protection::Safe),
            b"E" => Some(Protection::Confidential),
            b"P" => Some(Protection::Private),
            _ => None,
        }),
        |value| match value {
            Protection::Clear => b"C".to_vec(),
            Protection::Safe => b"S".to_vec(),
            Protection::Confidential => b"E".to_vec(),
            Protection::Private => b"P".to_vec(),
        };
    dcau: Dcau,
        |verb, rest| {
            let (way, subject) = two(rest);
            syntax(verb, "N, A, or S and a subject", match way.to_ascii_uppercase().as_slice() {
                b"N" => Some(Dcau::None),
                b"A" => Some(Dcau::Own),
                b"S" => text(subject).map(Dcau::Subject),
                _ => None,
            })
        },
        |value| match value {
            Dcau::None => b"N".to_vec(),
            Dcau::Own => b"A".to_vec(),
            Dcau::Subject(subject) => format!("S {subject}").into_bytes(),
        };
    mode: Mode,
        |verb, rest| syntax(verb, "S, B, C or E", match rest.to_ascii_uppercase().trim_ascii() {
            b"S" => Some(Mode::Stream),
            b"B" => Some(Mode::Block),
            b"C" => Some(Mode::Compressed),
            b"E" => Some(Mode::Extended),
            _ => None,
        }),
        |value| match value {
            Mode::Stream => b"S".to_vec(),
            Mode::Block => b"B".to_vec(),
            Mode::Compressed => b"C".to_vec(),
            Mode::Extended => b"E".to_vec(),
        };
    port: SocketAddr,
        |verb, rest| syntax(verb, "six numbers with commas between", text(rest).and_then(|t| parse_port(&t).ok())),
        // IPv6 has no such form: print the form of EPRT.
        |value| print_port(*value).unwrap_or_else(|| print_eprt(*value)).into_bytes();
    eprt: SocketAddr,
        |verb, rest| syntax(verb, "a family, an address and a port between bars", text(rest).and_then(|t| parse_eprt(&t).ok())),
        |value| print_eprt(*value).into_bytes();
    stripes: Vec<SocketAddr>,
        |verb, rest| syntax(verb, "addresses with blanks between", text(rest).and_then(|t| parse_stripes(&t).ok())),
        |value| value.iter().map(|addr| print_stripe(*addr)).collect::<Vec<_>>().join(" ").into_bytes();
    epsv: Epsv,
        |verb, rest| syntax(verb, "1, 2, ALL or nothing", match rest.to_ascii_uppercase().trim_ascii() {
            b"" => Some(Epsv::Same),
            b"1" => Some(Epsv::V4),
            b"2" => Some(Epsv::V6),
            b"ALL" => Some(Epsv::All),
            _ => None,
        }),
        |value| match value {
            Epsv::Same => Vec::new(),
            Epsv::V4 => b"1".to_vec(),
            Epsv::V6 => b"2".to_vec(),
            Epsv::All => b"ALL".to_vec(),
        };
    restart: Restart,
        |verb, rest| {
            let marker = text(rest).and_then(|t| Restart::parse(&t).ok());
            syntax(verb, "a number, or ranges such as 0-100,200-300", marker)
        },
        |value| value.to_string().into_bytes();
    cksm: Cksm,
        |verb, rest| {
            let expected = "an algorithm, an offset, a length or -1, and a path";
            let ((algorithm, rest), missing) = (two(rest), || CommandError::Syntax { verb, expected });
            let ((offset, rest), algorithm) = (two(rest), text(algorithm).ok_or_else(missing)?);
            let ((length, rest), offset) = (two(rest), number(offset).ok_or_else(missing)?);
            let length = if length == b"-1" { None } else { Some(number(length).ok_or_else(missing)?) };
            Ok(Cksm { algorithm, offset, length, path: path(verb, rest)? })
        },
        |value| {
            let length = value.length.map_or("-1".to_owned(), |length| length.to_string());
            [format!("{} {} {length} ", value.algorithm, value.offset).as_bytes(), &value.path].concat()
        };
    eret: Eret,
        |verb, rest| {
            let expected = "P, an offset, a length and a path, or a module with its parameters";
            let missing = || CommandError::Syntax { verb, expected };
            if let Some(rest) = rest.strip_prefix(b"P ") {
                let (offset, rest) = two(rest);
                let (length, rest) = two(rest);
                let numbers = number(offset).zip(number(length));
                let (offset, length) = numbers.ok_or_else(missing)?;
                return Ok(Eret::Partial(offset, length, path(verb, rest)?));
            }
            let (module, parameters, rest) = module(rest).ok_or_else(missing)?;
            Ok(Eret::Module(module, parameters, path(verb, rest)?))
        },
        |value| match value {
            Eret::Partial(offset, length, path) => [format!("P {offset} {length} ").as_bytes(), path].concat(),
            Eret::Module(module, parameters, path) => [format!("{module}=\"{parameters}\" ").as_bytes(), path].concat(),
        };
    esto: Esto,
        |verb, rest| {
            let expected = "A, an offset and a path, or a module with its parameters";
            let missing = || CommandError::Syntax { verb, expected };
            if let Some(rest) = rest.strip_prefix(b"A ") {
                let (offset, rest) = two(rest);
                return Ok(Esto::Adjusted(number(offset).ok_or_else(missing)?, path(verb, rest)?));
            }
            let (module, parameters, rest) = module(rest).ok_or_else(missing)?;
            Ok(Esto::Module(module, parameters, path(verb, rest)?))
        },
        |value| match value {
            Esto::Adjusted(offset, path) => [format!("A {offset} ").as_bytes(), path].concat(),
            Esto::Module(module, parameters, path) => [format!("{module}=\"{parameters}\" ").as_bytes(), path].concat(),
        };
}

/// Parses `name="parameters" ` and returns name, parameters and the rest.
fn module(rest: &[u8]) -> Option<(String, String, &[u8])> {
    let equals = rest.windows(2).position(|w| w == b"=\"")?;
    let name = text(&rest[..equals]).filter(|name| !name.contains(char::is_whitespace))?;
    let rest = &rest[equals + 2..];
    let quote = rest.windows(2).position(|w| w == b"\" ")?;
    let parameters = str::from_utf8(&rest[..quote]).ok()?.to_owned();
    Some((name, parameters, &rest[quote + 2..]))
}
