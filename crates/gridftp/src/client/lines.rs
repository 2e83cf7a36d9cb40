//! Classifies command lines.

/// The verb of a line.
pub(super) fn verb(line: &[u8]) -> String {
    let mut words = line.split(|&b| b == b' ');
    let first = words.next().unwrap_or_default();
    let second = words.next().filter(|_| first == b"SITE").map(|word| [b" ", word].concat()).unwrap_or_default();
    String::from_utf8_lossy(&[first, &second].concat()).into_owned()
}

/// Whether the server may need as long as a file takes, with preliminary replies meanwhile.
pub(super) fn is_work(line: &[u8]) -> bool {
    let verb = line.split(|&b| b == b' ').next().unwrap_or_default();
    [&b"CKSM"[..], b"RNTO", b"STOR", b"ALLO"].contains(&verb)
}

/// Whether the reply is a listing, which may be long.
pub(super) fn lists(line: &[u8]) -> bool {
    [&b"STAT"[..], b"SITE", b"MLSC", b"MLSR", b"MLST", b"HELP"].iter().any(|verb| line.starts_with(verb))
}
