//! What a server says it can do (RFC 2389): one feature a line, with parameters perhaps.

use super::reply::Reply;
use std::collections::BTreeMap;

/// How many features are remembered. Servers have some thirty.
const MAX_FEATURES: usize = 1000;

/// Features and their parameters, by name in capitals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features(BTreeMap<String, String>);

impl Features {
    /// Reads the answer to `FEAT`. None if it says that there are none (a failure, or one line).
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
            // Some servers have a line for each parameter: `AUTH TLS`, `AUTH GSSAPI`.
            all.entry(name)
                .and_modify(|known: &mut String| known.extend([" ", parameters.as_str()]))
                .or_insert(parameters);
            all
        }))
    }

    /// The same and the feature `name`, given in capitals, which was found in another way.
    #[must_use]
    pub fn with(mut self, name: &str) -> Self {
        self.0.entry(name.to_owned()).or_default();
        self
    }

    /// Whether the server has the feature `name`, given in capitals.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether nothing is known of the server.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The feature's parameters, in whatever form it has them; empty if there are none.
    pub fn parameters(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The checksums that the server computes, those first that it likes best: `CKSM MD5:10;ADLER32:10;`, where lower
    /// numbers are liked better.
    pub fn checksums(&self) -> Vec<String> {
        let mut all: Vec<(u32, String)> = Vec::new();
        for one in self.parameters("CKSM").unwrap_or("").split([';', ',']).map(str::trim).filter(|one| !one.is_empty())
        {
            let (name, liked) = one.split_once(':').unwrap_or((one, ""));
            all.push((liked.trim().parse().unwrap_or(u32::MAX), name.trim().to_ascii_uppercase()));
        }
        all.sort_by_key(|(liked, _)| *liked);
        all.into_iter().map(|(_, name)| name).collect()
    }
}

/// The answer to `FEAT` that has `features`, each a name with its parameters.
pub fn print(features: &[&str]) -> Reply {
    let inner = features.iter().map(|feature| format!(" {feature}"));
    let first = std::iter::once("Extensions supported".to_owned());
    Reply::of_lines(211, first.chain(inner).chain(std::iter::once("End.".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_as_gct_writes_them() {
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
        assert_eq!(Features::parse(&Reply::new(500, "no")), Features::default());
        assert_eq!(Features::parse(&Reply::new(211, "none")), Features::default());
    }
}
