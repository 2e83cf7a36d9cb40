//! Describes permissions and times that could not be preserved.

/// What could not be preserved at servers.
#[derive(Debug, Default)]
pub(crate) struct Lost<'a> {
    /// Files and directories whose modes could not be set.
    pub(crate) modes_refused: u64,
    /// Directories whose times could not be set.
    pub(crate) times_refused: u64,
    /// Files and new directories whose modes the source does not tell.
    pub(crate) modes_unknown: u64,
    /// Why private files were public until they were complete.
    pub(crate) public: &'a [String],
}

impl Lost<'_> {
    /// A sentence for each, without the final punctuation.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.times_refused > 0 {
            let count = self.times_refused;
            all.push(format!("the times of {count} directories were not set, since the server refuses MFMT for them"));
        }
        if self.modes_refused > 0 {
            let count = self.modes_refused;
            all.push(format!("the modes of {count} were not set, since the server refuses SITE CHMOD for them"));
        }
        if self.modes_unknown > 0 {
            let (modes, are, them) = match self.modes_unknown {
                1 => ("mode", "is", "it"),
                _ => ("modes", "are", "them"),
            };
            let count = self.modes_unknown;
            all.push(format!("the {modes} of {count} {are} not known, since the server does not tell {them}"));
        }
        if !self.public.is_empty() {
            let why = self.public.join(", and ");
            let until = "private files were as public as the server makes them until they were complete";
            all.push(format!("{until}, since {why}"));
        }
        all
    }
}
