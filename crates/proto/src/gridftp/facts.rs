//! Facts of files in the listings of `MLST` and `MLSD` (RFC 3659, section 7): `type=file;size=5;modify=20261121200000;
//! name`.

use super::line::is_line;
use super::time::Stamp;

/// Most bytes of facts in a line.
const MAX_FACTS: usize = 16 << 10;

/// A malformed line of a listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{line}\" lists no file: {expected} was expected")]
pub struct FactsError {
    line: String,
    expected: &'static str,
}

/// Type of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// The listed directory itself.
    Current,
    /// The parent of the listed directory.
    Parent,
    /// A symbolic link, with its target if the server reports it.
    Link(Option<Vec<u8>>),
    /// Any other type, by the server's name for it.
    Other(String),
}

/// Facts of a file. A fact that the server does not report is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Type of the entry.
    pub kind: Option<Type>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Modification time.
    pub modify: Option<Stamp>,
    /// What the client may do with the file: letters of RFC 3659, section 7.5.5.
    pub perm: Option<String>,
    /// An identifier that is equal for two names of the same file.
    pub unique: Option<String>,
    /// Permissions, twelve bits (`UNIX.mode`, in octal).
    pub mode: Option<u32>,
    /// Unknown facts and facts with invalid values: names and values as written.
    pub others: Vec<(String, String)>,
}

impl Facts {
    /// Parses a line into its facts and the name, which is everything after the first blank. Unknown facts and facts
    /// with invalid values go to [`others`](Self::others), so that they never hide a file.
    ///
    /// # Errors
    /// [`FactsError`] if the name is missing, a fact is not `name=value`, or the facts are too long.
    pub fn parse(line: &[u8]) -> Result<(Self, Vec<u8>), FactsError> {
        let error = |expected| FactsError { line: String::from_utf8_lossy(line).chars().take(100).collect(), expected };
        let blank = line.iter().position(|&b| b == b' ').ok_or_else(|| error("a blank before its name"))?;
        let (facts, name) = (&line[..blank], &line[blank + 1..]);
        if name.is_empty() {
            return Err(error("a name"));
        }
        if facts.len() > MAX_FACTS {
            return Err(error("less than 16384 bytes of facts"));
        }
        let mut found = Self::default();
        let mut link = None;
        for fact in facts.split(|&b| b == b';').filter(|fact| !fact.is_empty()) {
            let equals = fact.iter().position(|&b| b == b'=').ok_or_else(|| error("facts as name=value"))?;
            let (key, value) = (String::from_utf8_lossy(&fact[..equals]), &fact[equals + 1..]);
            let text = String::from_utf8_lossy(value);
            match key.to_ascii_lowercase().as_str() {
                "unix.slink" if !value.is_empty() => link = Some(value.to_vec()),
                name if found.set(name, &text) => {}
                _ => found.others.push((key.into_owned(), text.into_owned())),
            }
        }
        if link.is_some() {
            // GCT gives a link the type of its target, and adds UNIX.slink.
            found.kind = Some(Type::Link(link));
        }
        Ok((found, name.to_vec()))
    }

    /// The line for `name` with the known facts. `None` if the line would contain a line end or the name is empty: such
    /// a name cannot be listed.
    pub fn encode(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        let mut add = |key: &str, value: &[u8]| {
            let fits = !value.iter().any(|b| matches!(b, b';' | b' '));
            if fits {
                line.extend([key.as_bytes(), b"=", value, b";"].concat());
            }
        };
        match &self.kind {
            Some(Type::File) => add("Type", b"file"),
            Some(Type::Dir) => add("Type", b"dir"),
            Some(Type::Current) => add("Type", b"cdir"),
            Some(Type::Parent) => add("Type", b"pdir"),
            Some(Type::Link(to)) => {
                add("Type", b"OS.unix=slink");
                to.iter().for_each(|to| add("UNIX.slink", to));
            }
            Some(Type::Other(kind)) => add("Type", kind.as_bytes()),
            None => {}
        }
        self.size.iter().for_each(|size| add("Size", size.to_string().as_bytes()));
        self.modify.iter().for_each(|time| add("Modify", time.to_string().as_bytes()));
        self.perm.iter().for_each(|perm| add("Perm", perm.as_bytes()));
        self.mode.iter().for_each(|mode| add("UNIX.mode", format!("{mode:04o}").as_bytes()));
        self.unique.iter().for_each(|unique| add("Unique", unique.as_bytes()));
        self.others.iter().for_each(|(key, value)| add(key, value.as_bytes()));
        line.push(b' ');
        line.extend(name);
        (is_line(&line) && !name.is_empty()).then_some(line)
    }

    /// Sets a known fact. Returns `false` if the fact is unknown or its value is invalid.
    fn set(&mut self, name: &str, value: &str) -> bool {
        match name {
            "type" => self.kind = Some(kind(value)),
            "size" => return set_some(&mut self.size, value.parse().ok()),
            "modify" => return set_some(&mut self.modify, Stamp::parse(value)),
            "perm" => self.perm = Some(value.to_owned()),
            "unique" => self.unique = Some(value.to_owned()),
            "unix.mode" => {
                // pyftpdlib writes the prefix "0o".
                let value = value.strip_prefix("0o").unwrap_or(value);
                return set_some(&mut self.mode, u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777));
            }
            _ => return false,
        }
        true
    }
}

/// Stores `value` if it is present. Returns whether it was.
fn set_some<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let found = value.is_some();
    if found {
        *place = value;
    }
    found
}

fn kind(value: &str) -> Type {
    match value.to_ascii_lowercase().as_str() {
        "file" => Type::File,
        "dir" => Type::Dir,
        "cdir" => Type::Current,
        "pdir" => Type::Parent,
        "slink" | "os.unix=slink" | "os.unix=symlink" => Type::Link(None),
        lower => match lower.strip_prefix("os.unix=slink:") {
            Some(to) => Type::Link(Some(value.as_bytes()[value.len() - to.len()..].to_vec())),
            None => Type::Other(value.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn facts_are_parsed_as_servers_print_them() {
        let line = b"Type=file;Size=52428800;Modify=20261121093516;Perm=radfw;Charset=UTF-8;UNIX.mode=0644;Unique=fc01-2a; 50m .bin";
        let (facts, name) = Facts::parse(line).unwrap();
        assert_eq!((facts.kind, facts.size, facts.mode), (Some(Type::File), Some(52_428_800), Some(0o644)));
        assert_eq!((facts.modify.unwrap().to_string().as_str(), name), ("20261121093516", b"50m .bin".to_vec()));
        assert_eq!(facts.others, [("Charset".to_owned(), "UTF-8".to_owned())]);
        let link = |line: &[u8]| Facts::parse(line).unwrap().0.kind.unwrap();
        assert_eq!(link(b"type=OS.unix=slink:/A/b; l"), Type::Link(Some(b"/A/b".to_vec())));
        assert_eq!(link(b"Type=file;UNIX.slink=x; l"), Type::Link(Some(b"x".to_vec())));
        assert_eq!(link(b"Type=file;UNIX.slink=; l"), Type::File);
        let (odd, _) = Facts::parse(b"Size=x;UNIX.mode=9; \xff").unwrap();
        assert_eq!((odd.size, odd.mode, odd.others.len()), (None, None, 2));
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in ["", "file", "Size=1;", "Size=1; ", "Size; x"] {
            assert!(Facts::parse(line.as_bytes()).unwrap_err().to_string().ends_with("was expected"), "{line}");
        }
        assert_eq!(Facts::default().encode(b"a\r\nDELE b"), None);
        assert_eq!(Facts::default().encode(b" a"), Some(b"  a".to_vec()));
    }

    proptest! {
        #[test]
        fn printed_facts_parse_back(
            size: Option<u64>,
            seconds in proptest::option::of(0..4_000_000_000i64),
            mode in proptest::option::of(0..=0o7777u32),
            link in proptest::option::of("[a-z/]{1,9}"),
            perm in proptest::option::of("[a-z]{0,5}"),
            name in "[^\r\n\0]{1,20}",
        ) {
            let kind = Some(link.map_or(Type::Dir, |to| Type::Link(Some(to.into_bytes()))));
            let modify = seconds.map(|seconds| Stamp { seconds, nanos: 0 });
            let facts = Facts { kind, size, modify, perm, mode, unique: None, others: vec![("X.y".into(), "z".into())] };
            let line = facts.encode(name.as_bytes()).unwrap();
            prop_assert_eq!(Facts::parse(&line).unwrap(), (facts, name.into_bytes()));
        }

        #[test]
        fn parsing_never_panics_and_keeps_the_name(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok((facts, name)) = Facts::parse(&line)
                && let Some(again) = facts.encode(&name)
            {
                prop_assert_eq!(Facts::parse(&again).unwrap().1, name);
            }
        }
    }
}
