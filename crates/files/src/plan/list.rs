//! Lists of sources and destinations, from a file or standard input.
//!
//! A line is a source, or a source and a destination separated by blanks, as for `globus-url-copy -f`. Names with
//! blanks stand in double quotes, in which `\"` and `\\` stand for the two characters. Empty lines and lines with a
//! leading `#` are ignored. Alternatively, sources end with NUL, as from `find -print0`, and are taken literally.

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the list: {reason}")]
pub struct ListError {
    line: usize,
    reason: &'static str,
}

/// A source, and its destination if the list has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The number of its line, or of its name in a list that is separated by NUL; the first is 1.
    pub line: usize,
    /// The source as written.
    pub source: String,
    /// The destination as written.
    pub dest: Option<String>,
}

/// Parses lines.
///
/// # Errors
/// The first line with an unclosed quote, or with more than two words.
pub fn lines(text: &str) -> Result<Vec<Item>, ListError> {
    let mut items = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let error = |reason| ListError { line: i + 1, reason };
        let words = words(line.trim()).map_err(error)?;
        let mut words = words.into_iter();
        let Some(source) = words.next() else { continue };
        let dest = words.next();
        if words.next().is_some() {
            return Err(error("a source and a destination were expected, and names with blanks in double quotes"));
        }
        items.push(Item { line: i + 1, source, dest });
    }
    Ok(items)
}

/// Parses sources that end with NUL.
///
/// # Errors
/// A source is not UTF-8.
pub fn nul_separated(bytes: &[u8]) -> Result<Vec<Item>, ListError> {
    let names = bytes.split(|&b| b == 0).enumerate().filter(|(_, name)| !name.is_empty());
    let item = |(i, name): (usize, &[u8])| match str::from_utf8(name) {
        Ok(name) => Ok(Item { line: i + 1, source: name.to_owned(), dest: None }),
        Err(_) => Err(ListError { line: i + 1, reason: "a name was expected that is UTF-8" }),
    };
    names.map(item).collect()
}

fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut rest) = (Vec::new(), line);
    if line.starts_with('#') {
        return Ok(words);
    }
    while !rest.is_empty() {
        let word;
        (word, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        if rest.starts_with(|c: char| !c.is_whitespace()) {
            return Err("a blank was expected after the closing quote");
        }
        words.push(word);
        rest = rest.trim_start();
    }
    Ok(words)
}

/// Splits at the closing quote.
fn unquote(text: &str) -> Result<(String, &str), &'static str> {
    let (mut word, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((word, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\'))) => word.push(c),
                Some((_, c)) => word.extend(['\\', c]),
                None => break,
            },
            c => word.push(c),
        }
    }
    Err("a closing quote was expected")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(line: usize, source: &str, dest: Option<&str>) -> Item {
        Item { line, source: source.into(), dest: dest.map(Into::into) }
    }

    #[test]
    fn lists_are_read_as_others_write_them() {
        let text = "# made by hand\n\n gsiftp://a/b  file:///c \n\"with \\\"blanks\\\"\" \"d e\"\r\nplain\\n";
        let items = [
            item(3, "gsiftp://a/b", Some("file:///c")),
            item(4, "with \"blanks\"", Some("d e")),
            item(5, "plain\\n", None),
        ];
        assert_eq!(lines(text).unwrap(), items);
        assert_eq!(nul_separated(b"a\nb\0c d\0").unwrap(), [item(1, "a\nb", None), item(2, "c d", None)]);
    }

    #[test]
    fn says_which_line_is_wrong() {
        for text in ["a\nb c d", "a\n\"b", "a\n\"b\"c", "a\n\"b\\"] {
            assert!(lines(text).unwrap_err().to_string().starts_with("line 2 of the list: "), "{text}");
        }
        assert!(nul_separated(b"a\0\xff\0").unwrap_err().to_string().starts_with("line 2 of the list: "));
    }

    proptest! {
        #[test]
        fn quoted_names_read_back(names in proptest::collection::vec("[^\n\r]{1,20}", 2)) {
            let quoted: Vec<_> = names.iter().map(|n| format!("\"{}\"", n.replace('\\', "\\\\").replace('"', "\\\""))).collect();
            prop_assert_eq!(lines(&quoted.join(" ")).unwrap(), [item(1, &names[0], Some(&names[1]))]);
        }
    }
}
