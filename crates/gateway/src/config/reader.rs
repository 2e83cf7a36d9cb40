//! Positions in a configuration, and the errors about them.

use super::ConfigError;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::DeTable;

/// The file that errors refer to.
pub(super) struct Reader<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    /// Where the lines after the first begin.
    lines: Vec<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, lines: text.match_indices('\n').map(|(at, _)| at + 1).collect() }
    }
}

impl Reader<'_> {
    pub(super) fn parse<T: std::str::FromStr<Err = String>>(&self, text: &Spanned<String>) -> Result<T, ConfigError> {
        text.get_ref().parse().map_err(|message: String| self.at(text, message))
    }

    pub(super) fn unknown<'n>(
        &self,
        name: &Spanned<String>,
        what: &str,
        known: impl Iterator<Item = &'n String>,
    ) -> ConfigError {
        let known: Vec<_> = known.map(String::as_str).collect();
        self.at(name, format!("there is no {what} \"{}\"; expected one of: {}", name.get_ref(), known.join(", ")))
    }

    pub(super) fn at<T>(&self, value: &Spanned<T>, message: impl Into<String>) -> ConfigError {
        ConfigError::at(self.file, self.text, value.span(), message)
    }

    /// Like [`Reader::at`], for the entry `name` of a list.
    pub(super) fn at_entry<T>(&self, list: &Spanned<T>, name: &str, message: impl Into<String>) -> ConfigError {
        let span = list.span();
        // An entry that is written with escapes is not found, and the list stands for it.
        let within = self.text.get(span.clone()).and_then(|text| text.find(&format!("\"{name}\"")));
        let start = span.start + within.unwrap_or(0);
        ConfigError::at(self.file, self.text, start..span.end, message)
    }

    /// The line of a value, from 1.
    pub(super) fn line(&self, value: Range<usize>) -> u32 {
        // Each rule has a line: the text is not read again for it.
        let line = 1 + self.lines.partition_point(|begin| *begin <= value.start);
        u32::try_from(line).unwrap_or(u32::MAX)
    }

    /// `FILE:LINE:COLUMN` of a value.
    pub(super) fn place(&self, value: Range<usize>) -> String {
        let (line, column) = phoebus_proto::text::place(self.text.get(..value.start).unwrap_or_default());
        format!("{}:{line}:{column}", self.file.display())
    }

    /// Like [`Reader::at`], for the value of a key given by its full path.
    pub(super) fn at_key(&self, key: &[&str], message: impl Into<String>) -> ConfigError {
        match self.span(key) {
            Some(span) => ConfigError::at(self.file, self.text, span, message),
            // The value is a default, and has no position.
            None => ConfigError::new(self.file, message),
        }
    }

    /// The position of the value of such a key, if there is one.
    pub(super) fn span(&self, key: &[&str]) -> Option<Range<usize>> {
        let (last, tables) = key.split_last()?;
        let file = DeTable::parse(self.text).ok()?;
        let table = tables.iter().try_fold(file.get_ref(), |table, name| table.get(*name)?.get_ref().as_table())?;
        Some(table.get(*last)?.span())
    }

    pub(super) fn whole(&self, message: &str) -> ConfigError {
        ConfigError::new(self.file, message)
    }
}

pub(super) fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}
