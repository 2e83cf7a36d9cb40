//! A path with GridFTP servers.

use super::super::sc09::site::Grid;
use super::hosts::Hosts;

/// A path, and the credentials of the servers on it.
pub(in crate::bench) struct Site {
    pub(super) hosts: Hosts,
    pub(super) grid: Grid,
}
