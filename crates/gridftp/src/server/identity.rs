//! Identities that clients prove by certificates or tickets, and the users that they map to.

use super::config::{Config, ConfigError};
use phoebus_gsi::gridmap::GridMap;

/// What GCT's clients send as the user name if they leave the choice to the server.
const DEFAULT_USER: &str = ":globus-mapping:";

/// An identity that a client has proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The subject of a certificate.
    Certificate(String),
    /// A principal of Kerberos.
    #[cfg(feature = "kerberos")]
    Principal(String),
}

/// Maps subjects and principals to users.
#[derive(Debug)]
pub(super) struct IdentityMap {
    gridmap: GridMap,
    #[cfg(feature = "kerberos")]
    kerberos: Option<super::config::Kerberos>,
}

impl IdentityMap {
    /// Reads the grid-mapfile that `config` names.
    ///
    /// # Errors
    /// [`ConfigError::Value`]: it cannot be read.
    pub(super) fn of(config: &Config) -> Result<Self, ConfigError> {
        let gridmap = match &config.gsi {
            Some(gsi) => phoebus_gsi::files::gridmap(&gsi.gridmap)
                .map_err(|error| ConfigError::Value(format!("gsi.gridmap: {error}")))?,
            None => GridMap::default(),
        };
        Ok(Self {
            gridmap,
            #[cfg(feature = "kerberos")]
            kerberos: config.kerberos.clone(),
        })
    }

    /// The user `asked`, if `identity` may log in as that user; the identity's default user, if the client leaves the
    /// choice.
    pub(super) fn user_of<'a>(&'a self, asked: &'a str, identity: &'a Identity) -> Option<&'a str> {
        match (identity, asked) {
            (Identity::Certificate(subject), DEFAULT_USER) => self.gridmap.default_user(subject),
            (Identity::Certificate(subject), user) => Some(user).filter(|user| self.gridmap.allows(subject, user)),
            #[cfg(feature = "kerberos")]
            (Identity::Principal(principal), asked) => {
                let user = self.kerberos.as_ref()?.user_of(principal)?;
                Some(user).filter(|user| asked == DEFAULT_USER || asked == *user)
            }
        }
    }
}
