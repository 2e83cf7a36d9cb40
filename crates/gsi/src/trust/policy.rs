//! Signing policies: which names an authority may certify (`HASH.signing_policy` beside its certificate).
//!
//! ```text
//! access_id_CA   X509    '/C=US/O=Example/CN=Example CA'
//! pos_rights     globus  CA:sign
//! cond_subjects  globus  '"/C=US/O=Example/*" "/DC=org/DC=example/*"'
//! ```

use crate::name;

/// Largest signing policy, in bytes; usual ones have less than 2000.
pub const MAX_POLICY: usize = 256 * 1024;
/// Most patterns in one file.
pub const MAX_PATTERNS: usize = 1000;

/// The content of a signing policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningPolicy {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// The authorities that the entry applies to, in text form; `None` for any authority.
    authorities: Vec<Option<String>>,
    /// Patterns in canonical form. All conditions must be met, each by at least one of its patterns.
    conditions: Vec<Vec<String>>,
}

/// The reason why a text is no signing policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}, line {line}: {problem}")]
pub struct PolicyError {
    /// The file's name.
    pub source_name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, and what was expected.
    pub problem: String,
}

impl SigningPolicy {
    /// Parses a file; `source` names it in errors.
    ///
    /// # Errors
    /// [`PolicyError`] at the first unknown statement: a partial policy would permit too much or too little.
    pub fn parse(text: &str, source: &str) -> Result<Self, PolicyError> {
        let fail = |line, problem: String| PolicyError { source_name: source.to_owned(), line, problem };
        if text.len() > MAX_POLICY {
            return Err(fail(1, format!("{} bytes; at most {MAX_POLICY} are read", text.len())));
        }
        let mut words = Words { text, line: 1 };
        let mut parser = Parser::default();
        loop {
            let word = words.next().map_err(|problem| fail(words.line, problem.to_owned()))?;
            let Some((line, word)) = word else { break };
            parser.take(&word, line, &mut words).map_err(|problem| fail(line, problem))?;
        }
        parser.finish().map_err(|problem| fail(words.line, problem))
    }

    /// Whether the policy has an entry for this authority, in text form.
    pub fn is_about(&self, authority: &str) -> bool {
        self.entries.iter().any(|entry| entry.is_about(authority))
    }

    /// Whether the policy permits this authority to certify that name, both in text form.
    pub fn allows(&self, authority: &str, subject: &str) -> bool {
        let subject = name::canonical(subject);
        let met = |patterns: &Vec<String>| patterns.iter().any(|pattern| matches(pattern, &subject));
        self.entries.iter().any(|entry| entry.is_about(authority) && entry.conditions.iter().all(met))
    }
}

impl Entry {
    fn is_about(&self, authority: &str) -> bool {
        self.authorities.iter().any(|one| one.as_deref().is_none_or(|one| name::same(one, authority)))
    }
}

/// A parser of entries: each has one or more authorities, a right, and conditions.
#[derive(Default)]
struct Parser {
    entries: Vec<Entry>,
    authorities: Vec<Option<String>>,
    /// Conditions of the current right; `None` before the first right.
    conditions: Option<Vec<Vec<String>>>,
    /// Whether the current right is `CA:sign`.
    signs: bool,
    patterns: usize,
}

impl Parser {
    fn take(&mut self, word: &str, line: usize, words: &mut Words<'_>) -> Result<(), String> {
        match word {
            "access_id_CA" | "access_id_ANYBODY" => {
                self.close(true)?;
                if word == "access_id_ANYBODY" {
                    self.authorities.push(None);
                    return Ok(());
                }
                let kind = words.on(line, "X509 after access_id_CA")?;
                if !kind.eq_ignore_ascii_case("X509") {
                    return Err(format!("access_id_CA is followed by {kind:?}; X509 was expected"));
                }
                self.authorities.push(Some(words.on(line, "the authority's name after X509")?));
            }
            "pos_rights" => {
                if self.authorities.is_empty() {
                    return Err("pos_rights without an access_id_CA before it".into());
                }
                self.close(false)?;
                let by = words.on(line, "globus after pos_rights")?;
                let right = words.on(line, "CA:sign after globus")?;
                self.signs = by == "globus" && right == "CA:sign";
                self.conditions = Some(Vec::new());
            }
            "cond_subjects" => {
                let by = words.on(line, "globus after cond_subjects")?;
                if by != "globus" {
                    return Err(format!("cond_subjects is followed by {by:?}; globus was expected"));
                }
                let patterns = words.on(line, "names in quotation marks after globus")?;
                let patterns = split(&patterns)?;
                self.patterns += patterns.len();
                if self.patterns > MAX_PATTERNS {
                    return Err(format!("more than {MAX_PATTERNS} patterns"));
                }
                match &mut self.conditions {
                    Some(conditions) => conditions.push(patterns),
                    None => return Err("cond_subjects without pos_rights before it".into()),
                }
            }
            "neg_rights" => return Err("neg_rights is not supported; say with pos_rights what is allowed".into()),
            other => {
                return Err(format!(
                    "{other:?} is not understood; access_id_CA, pos_rights or cond_subjects was expected"
                ));
            }
        }
        Ok(())
    }

    /// Completes the current right; `all` completes the entry, too.
    fn close(&mut self, all: bool) -> Result<(), String> {
        let Some(conditions) = self.conditions.take() else { return Ok(()) };
        if self.signs {
            if conditions.is_empty() {
                return Err("pos_rights globus CA:sign has no cond_subjects after it to say which names".into());
            }
            self.entries.push(Entry { authorities: self.authorities.clone(), conditions });
        }
        if all {
            self.authorities.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<SigningPolicy, String> {
        if self.conditions.is_none() {
            return Err("the file ends without pos_rights globus CA:sign".into());
        }
        self.close(true)?;
        Ok(SigningPolicy { entries: self.entries })
    }
}

/// Splits a text into words at white space; `'` quotes white space; `#` starts a comment at the beginning of
/// a word.
struct Words<'a> {
    text: &'a str,
    line: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Result<Option<(usize, String)>, &'static str> {
        loop {
            self.text = self.text.trim_start_matches(|c: char| {
                self.line += usize::from(c == '\n');
                c.is_whitespace()
            });
            let Some(comment) = self.text.strip_prefix('#') else { break };
            self.text = comment.find('\n').map_or("", |end| &comment[end..]);
        }
        if self.text.is_empty() {
            return Ok(None);
        }
        let line = self.line;
        let (word, rest) = match self.text.strip_prefix('\'') {
            Some(quoted) => quoted.split_once('\'').ok_or("a quotation mark ' is not closed")?,
            None => self.text.split_at(self.text.find(char::is_whitespace).unwrap_or(self.text.len())),
        };
        self.line += word.matches('\n').count();
        self.text = rest;
        Ok(Some((line, word.to_owned())))
    }

    /// The next word, which must be on this line.
    fn on(&mut self, line: usize, expected: &str) -> Result<String, String> {
        match self.next()? {
            Some((at, word)) if at == line => Ok(word),
            _ => Err(format!("ends too early; {expected} was expected")),
        }
    }
}

/// Splits `"a" "b"`, or a single unquoted pattern, into canonical patterns.
fn split(list: &str) -> Result<Vec<String>, String> {
    let mut patterns = Vec::new();
    let mut rest = list.trim();
    while !rest.is_empty() {
        let (pattern, more) = match rest.strip_prefix('"') {
            Some(quoted) => {
                quoted.split_once('"').ok_or_else(|| format!("{list:?} has a quotation mark that is not closed"))?
            }
            None => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        patterns.push(name::canonical(pattern));
        rest = more.trim_start();
    }
    if patterns.is_empty() {
        return Err("no name or pattern is given".into());
    }
    Ok(patterns)
}

/// Whether a name matches a pattern, in which `*` stands for any text. The worst-case time is proportional to
/// the product of both lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CA: &str = "/C=US/O=Example/CN=Example CA";

    #[test]
    fn policy_permits_listed_names() {
        let text = "# a comment\n access_id_CA X509 '/C=US/O=Example/CN=Example CA'\n pos_rights globus CA:sign\n \
                    cond_subjects globus '\"/C=US/O=Example/*\" \"/DC=org/CN=one\"'\n";
        let policy = SigningPolicy::parse(text, "x").unwrap();
        assert!(policy.is_about(CA));
        assert!(policy.allows(CA, "/C=US/O=Example/CN=Jane"));
        assert!(policy.allows(CA, "/dc=ORG/cn=One"));
        assert!(!policy.allows(CA, "/DC=org/CN=one/CN=two"));
        assert!(!policy.allows(CA, "/C=US/O=Exam"));
        assert!(!policy.allows("/CN=another", "/C=US/O=Example/CN=Jane"));
    }

    #[test]
    fn authorities_in_one_file_have_separate_policies() {
        let text = "access_id_CA X509 '/CN=a'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=a/*\"'\n\
                    access_id_CA X509 '/CN=b'\npos_rights globus CA:sign\ncond_subjects globus \"/O=b/*\"\n";
        let policy = SigningPolicy::parse(text, "x").unwrap();
        assert!(policy.allows("/CN=a", "/O=a/CN=x") && !policy.allows("/CN=a", "/O=b/CN=x"));
        assert!(policy.allows("/CN=b", "/O=b/CN=x") && !policy.allows("/CN=b", "/O=a/CN=x"));
    }

    #[test]
    fn error_names_the_malformed_line() {
        for (text, line, says) in [
            ("", 1, "pos_rights"),
            ("access_id_CA X509 '/CN=a'\n", 2, "pos_rights"),
            ("access_id_CA X509\n'/CN=a'", 1, "the authority's name"),
            ("access_id_CA X509 '/CN=a'\nneg_rights globus CA:sign\n", 2, "neg_rights"),
            ("access_id_CA X509 '/CN=a\npos_rights", 1, "'"),
            (
                "access_id_CA X509 '/CN=a'\npos_rights globus CA:sign\n\ncond_subjects globus '\"/O=a'\n",
                4,
                "not closed",
            ),
            ("access_id_CA X509 '/CN=a'\npos_rights globus CA:sign\ncond_subjects globus ''\n", 3, "no name"),
            ("access_id_CA X509 '/CN=a'\npos_rights globus CA:sign\n", 3, "cond_subjects"),
            ("hello", 1, "access_id_CA"),
        ] {
            let error = SigningPolicy::parse(text, "file").unwrap_err();
            assert_eq!((error.line, error.to_string().contains(says)), (line, true), "{text:?}: {error}");
        }
    }

    #[test]
    fn star_matches_any_text() {
        for (pattern, name, is) in [
            ("*", "", true),
            ("/o=a/*", "/o=a/", true),
            ("/o=a/*", "/o=ab", false),
            ("*/cn=x", "/o=a/cn=x", true),
            ("/o=*/cn=*z", "/o=a/cn=xyz", true),
            ("/o=*/cn=*z", "/o=a/cn=xy", false),
            ("a*a", "a", false),
            ("a**a", "aa", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
