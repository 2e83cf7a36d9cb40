//! Whom Grid certificates name, and which of them count: `[grid]`.

use super::reader::Reader;
use super::{ConfigError, raw};
use phoebus_gsi::files;
use phoebus_gsi::gridmap::GridMap;
use phoebus_gsi::trust::MissingPolicy;
use phoebus_gsi::trust::kept::TrustDirectory;
use phoebus_proto::session::Principal;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

/// The method of a principal who has shown a Grid certificate.
const GRID: &str = "grid";
/// Where authorities are, if the file does not say it.
const AUTHORITIES: &str = "/etc/grid-security/certificates";

/// Which Grid certificates count, and for which users.
#[derive(Clone)]
pub struct Grid {
    /// The authorities, what each may sign, and what it has revoked.
    pub(crate) trust: Arc<TrustDirectory>,
    /// Which user a subject is.
    gridmap: GridMap,
    /// Whether limited proxies count.
    pub(crate) limited: bool,
}

// The directory and the map may have thousands of entries.
impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grid").field("limited", &self.limited).finish_non_exhaustive()
    }
}

impl Grid {
    /// Who has this subject: a principal without groups, and without a user if the grid-mapfile does not have the subject.
    pub(crate) fn principal(grid: Option<&Self>, subject: &str) -> Principal {
        let user = grid.and_then(|grid| grid.gridmap.default_user(subject)).unwrap_or_default();
        Principal { user: user.to_owned(), ..Principal::new(GRID, subject) }
    }

    /// Whether the grid-mapfile maps a subject to this user.
    pub(crate) fn has_user(&self, user: &str) -> bool {
        self.gridmap.default_users().any(|one| one == user)
    }
}

impl Reader<'_> {
    /// Reads the directory and the grid-mapfile, whose names are relative to the configuration.
    pub(super) fn grid(&self, raw: &Spanned<raw::Grid>) -> Result<Arc<Grid>, ConfigError> {
        let raw::Grid { certificates, gridmap, limited } = raw.get_ref();
        let place = |given: Option<&Spanned<PathBuf>>| given.map_or_else(|| raw.span(), Spanned::span);
        let usual = Path::new(AUTHORITIES);
        let directory = self.folder().join(certificates.as_ref().map_or(usual, |given| given.get_ref()));
        // An authority without a signing policy may name nobody, as everywhere on the Grid.
        let trust = TrustDirectory::read(&directory, MissingPolicy::Refuse).map_err(|error| {
            let expected = "expected a directory of authorities with signing policies, in PEM";
            ConfigError::at(self.file, self.text, place(certificates.as_ref()), format!("{error}; {expected}"))
        })?;
        let read = |given: &Spanned<PathBuf>| {
            files::gridmap(&self.folder().join(given.get_ref())).map_err(|error| self.at(given, error.to_string()))
        };
        let gridmap = gridmap.as_ref().map(read).transpose()?.unwrap_or_default();
        Ok(Arc::new(Grid { trust: Arc::new(trust), gridmap, limited: *limited }))
    }
}
