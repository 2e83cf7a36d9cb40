//! Parses lines of `LIST` in the form of `ls -l`, for servers without MLSD.
//!
//! RFC 959 does not define the form, so only modes, sizes and names count: times lack the year or the hour, and the
//! time zone.

use phoebus_files::store::{Entry, Kind, Meta};

/// Parses a line without its end. `None` for lines that are no entry (`total 5`, the directory itself and its parent).
///
/// # Errors
/// The line does not have the form of `ls -l`.
pub(super) fn parse(line: &[u8]) -> Result<Option<Entry>, ()> {
    // Trailing blanks belong to the name, and so does a carriage return.
    if line.is_empty() || line.starts_with(b"total ") {
        return Ok(None);
    }
    let mut rest = line;
    let mode = word(&mut rest).ok_or(())?;
    let kind = match mode.first() {
        Some(b'-') => Kind::File,
        Some(b'd') => Kind::Dir,
        // Servers in Go write a link so.
        Some(b'l' | b'L') => Kind::Link,
        Some(b'c') => Kind::Device,
        Some(b'b' | b'p' | b's') => Kind::Other,
        _ => return Err(()),
    };
    // Link count, owner and group precede the size; some servers omit one of them. A month follows the size.
    let mut words = 0;
    let size = loop {
        let last = word(&mut rest).ok_or(())?;
        let mut ahead = rest;
        let month = word(&mut ahead).is_some_and(is_month);
        // A group may have the name of a month.
        if month && word(&mut ahead).is_some_and(|day| day.iter().all(u8::is_ascii_digit)) {
            break last;
        }
        words += 1;
        if words > 5 {
            return Err(());
        }
    };
    for _ in 0..2 {
        word(&mut rest).ok_or(())?;
    }
    // The time or year, one blank, then the name including its leading blanks.
    let time = word(&mut rest).ok_or(())?;
    if !time.iter().all(|b| b.is_ascii_digit() || *b == b':') {
        return Err(());
    }
    let mut name = rest.strip_prefix(b" ").ok_or(())?;
    if kind == Kind::Link
        && let Some(arrow) = name.windows(4).position(|four| four == b" -> ")
    {
        name = &name[..arrow];
    }
    if name.is_empty() {
        return Err(());
    }
    let size = str::from_utf8(size).ok().and_then(|size| size.parse().ok()).filter(|_| kind == Kind::File);
    let meta = Meta { kind, size, modified: None, mode: bits(mode), sparse: false, identity: None };
    Ok(Some(Entry { name: name.to_vec(), meta }))
}

/// Splits off the next word.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let from = rest.iter().position(|&b| b != b' ')?;
    let text = &rest[from..];
    let end = text.iter().position(|&b| b == b' ').unwrap_or(text.len());
    *rest = &text[end..];
    Some(&text[..end])
}

fn is_month(word: &[u8]) -> bool {
    const MONTHS: [&[u8; 3]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    MONTHS.iter().any(|month| word.eq_ignore_ascii_case(&month[..]))
}

/// Parses permissions such as `-rwxr-x---`.
fn bits(mode: &[u8]) -> Option<u32> {
    let letters = mode.get(1..10)?;
    let mut bits = 0;
    for (i, letter) in letters.iter().enumerate() {
        let known: &[u8] = [&b"r"[..], b"w", b"xsStT"][i % 3];
        match letter {
            b'-' | b'S' | b'T' => {}
            letter if known.contains(letter) => bits |= 0o400 >> i,
            _ => return None,
        }
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_parsed_as_servers_write_them() {
        for (line, name, kind, size, mode) in [
            ("-rw-r--r--    1 0        0            1234 Nov 21 10:00 a b", "a b", Kind::File, Some(1234), 0o644),
            ("drwxr-xr-x  12 ftp ftp  4096 Nov 21  2025 Nov 21 10:00 d", "Nov 21 10:00 d", Kind::Dir, None, 0o755),
            ("lrwxrwxrwx 1 u g 3 Jan  1 00:00 l -> a b", "l", Kind::Link, None, 0o777),
            ("Lrwxrwxrwx 1 ftp ftp            3 Jan  1 00:00 l", "l", Kind::Link, None, 0o777),
            ("drwxr-xr-x 1 u g 3 Jan  1 00:00 two  ", "two  ", Kind::Dir, None, 0o755),
            ("-rwsr-x--T+ 1 u 7 feb 29 2024  leading", " leading", Kind::File, Some(7), 0o750),
            ("-rw-r--r-- 1 Jan staff 99 May 5 12:00 x\r", "x\r", Kind::File, Some(99), 0o644),
        ] {
            let meta = Meta { kind, size, modified: None, mode: Some(mode), sparse: false, identity: None };
            let entry = Entry { name: name.into(), meta };
            assert_eq!(parse(line.as_bytes()), Ok(Some(entry)), "{line}");
        }
        for line in ["total 12", ""] {
            assert_eq!(parse(line.as_bytes()), Ok(None), "{line}");
        }
        for line in ["11-21-26  10:00AM  <DIR>  x", "hello", "-rw-r--r-- 1 u g 5", "-rw-r--r-- 1 u g 5 Nov 21 10:00"] {
            assert_eq!(parse(line.as_bytes()), Err(()), "{line}");
        }
    }
}
