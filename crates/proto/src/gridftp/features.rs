//! Features of a server (RFC 2389): one feature per line, with optional parameters.

use super::reply::Reply;
use std::collections::BTreeMap;

/// Most features that are kept. Servers have some thirty.
const MAX_FEATURES: usize = 1000;

/// Features with their parameters, by upper-case name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features(BTreeMap<String, String>);

impl Features {
    /// Parses the reply to `FEAT`. A failure or a reply of one line means no features.
    pub fn parse(reply: &Reply) -> Self {
        let lines = reply.lines.len();
        if !reply.is_success() || lines < 3 {
            return Self::default();
        }
        let named = reply.lines[1..lines - 1].iter().take(MAX_FEATURES).filter_map(|line| {
            let line = String::from_utf8_lossy(line);
            let (name, parameters) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            (!name.is_empty()).then(|| (name.to_ascii_uppercase(), parameters.trim().to_owned()))
        });
        Self(named.fold(BTreeMap::new(), |mut all, (name, parameters)| {
            // Some servers send one line for each parameter: `AUTH TLS`, `AUTH GSSAPI`.
            all.entry(name)
                .and_modify(|known: &mut String| known.extend([" ", parameters.as_str()]))
                .or_insert(parameters);
            all
        }))
    }

    /// Adds the feature `name` (in upper case), which was discovered in another way.
    #[must_use]
    pub fn with(mut self, name: &str) -> Self {
        self.0.entry(name.to_owned()).or_default();
        self
    }

    /// Whether the server has the feature `name` (in upper case).
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether no features are known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The unparsed parameters of the feature; empty if it has none. `None` without the feature.
    pub fn parameters(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The `OPTS` command that adds permissions to the default facts of `MLST` (RFC 3659, section 7.9). `None` if
    /// `MLST` includes permissions by default, or does not offer them.
    pub fn mlst_options_with_modes(&self) -> Option<String> {
        let facts = self.parameters("MLST")?.split(';').map(str::trim);
        let is_offered = facts.clone().any(|fact| fact.eq_ignore_ascii_case("unix.mode"));
        let told = facts.filter(|fact| fact.ends_with('*') || fact.eq_ignore_ascii_case("unix.mode"));
        let wanted: String = told.map(|fact| format!("{};", fact.trim_end_matches('*'))).collect();
        is_offered.then(|| format!("OPTS MLST {wanted}"))
    }

    /// The server's checksum algorithms in the order of its preference: `CKSM MD5:10;ADLER32:10;`, where lower numbers
    /// come first.
    pub fn checksums(&self) -> Vec<String> {
        let mut all: Vec<(u32, String)> = Vec::new();
        for one in self.parameters("CKSM").unwrap_or("").split([';', ',']).map(str::trim).filter(|one| !one.is_empty())
        {
            let (name, rank) = one.split_once(':').unwrap_or((one, ""));
            all.push((rank.trim().parse().unwrap_or(u32::MAX), name.trim().to_ascii_uppercase()));
        }
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, name)| name).collect()
    }
}

/// The reply to `FEAT` that lists `features`, each a name with its parameters.
pub fn print(features: &[&str]) -> Reply {
    let inner = features.iter().map(|feature| format!(" {feature}"));
    let first = std::iter::once("Extensions supported".to_owned());
    Reply::of_lines(211, first.chain(inner).chain(std::iter::once("End.".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_parsed_as_gct_prints_them() {
        let written = [
            "CKSM MD5:10;ADLER32:9;SHA256:11;",
            "MLST Type*;Size*;",
            "AUTH TLS",
            "AUTH GSSAPI",
            "PASV AllowDelayed;",
            "size",
        ];
        let features = Features::parse(&print(&written));
        assert_eq!(features.checksums(), ["ADLER32", "MD5", "SHA256"]);
        assert_eq!(features.parameters("AUTH"), Some("TLS GSSAPI"));
        assert!(features.has("SIZE") && !features.has("MODE"));
        assert_eq!(features.parameters("SIZE"), Some(""));
        assert_eq!(features.mlst_options_with_modes(), None);
        assert_eq!(Features::parse(&Reply::new(500, "no")), Features::default());
        assert_eq!(Features::parse(&Reply::new(211, "none")), Features::default());
    }

    #[test]
    fn modes_are_requested_along_with_the_default_facts() {
        let asking = |facts: &str| Features::parse(&print(&[&format!("MLST {facts}")])).mlst_options_with_modes();
        let offered = "type*;perm*;size*;modify*;unique*;unix.mode;unix.uid;unix.gid;";
        assert_eq!(asking(offered).as_deref(), Some("OPTS MLST type;perm;size;modify;unique;unix.mode;"));
        assert_eq!(asking("Type*;UNIX.mode;Size").as_deref(), Some("OPTS MLST Type;UNIX.mode;"));
        assert_eq!((asking("type*;UNIX.mode*;"), asking("type*;size*;"), asking("")), (None, None, None));
        assert_eq!(Features::default().mlst_options_with_modes(), None);
    }
}
