//! A path with GridFTP servers.

use super::super::sc09::site::Grid;
use super::room::Room;

/// A path, and the credentials of the servers on it.
pub(in crate::bench) struct Site {
    pub(super) room: Room,
    pub(super) grid: Grid,
}
