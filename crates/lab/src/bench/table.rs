//! Tables: one model, written as Markdown for people and as CSV for programs.

use std::fmt::Write;

/// A table of strings; each row is as long as the header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Table {
    /// The title, with the unit of the cells.
    pub(crate) caption: String,
    /// Headings of the columns; the first one describes the rows.
    pub(crate) columns: Vec<String>,
    /// The cells, row by row.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new<S: Into<String>>(caption: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Self {
        Self { caption: caption.into(), columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The table in GitHub's Markdown, with columns aligned for reading as text; all but the first to the right.
    pub(crate) fn to_markdown(&self) -> String {
        let escaped = |cells: &[String]| cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>();
        let lines: Vec<_> = std::iter::once(&self.columns).chain(&self.rows).map(|cells| escaped(cells)).collect();
        let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0).max(3);
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let mut text = format!("**{}**\n\n", self.caption);
        for (number, cells) in lines.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                let width = widths[column];
                // Writing to a string cannot fail.
                let _ = if column == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
            }
            text.push_str("|\n");
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(*width);
                    text.push_str(&if column == 0 { format!("|:{dashes}-") } else { format!("|-{dashes}:") });
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

/// One line of CSV (RFC 4180), including the newline.
pub(crate) fn csv_line<S: AsRef<str>>(cells: impl IntoIterator<Item = S>) -> String {
    let quoted = |cell: S| {
        let cell = cell.as_ref();
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    };
    let mut line = cells.into_iter().map(quoted).collect::<Vec<_>>().join(",");
    line.push_str("\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_table_is_aligned() {
        let mut table = Table::new("Goodput, Mbit/s", ["", "25 ms", "50 ms"]);
        table.row(["direct | cubic", "525", "63"]);
        table.row(["direct bbr"]);
        assert_eq!(
            table.to_markdown(),
            "**Goodput, Mbit/s**\n\n\
             |                 | 25 ms | 50 ms |\n\
             |:----------------|------:|------:|\n\
             | direct \\| cubic |   525 |    63 |\n\
             | direct bbr      |       |       |\n"
        );
    }

    #[test]
    fn csv_quotes_special_characters() {
        assert_eq!(csv_line(["a", "b,c", "say \"x\"", ""]), "a,\"b,c\",\"say \"\"x\"\"\",\r\n");
    }
}
