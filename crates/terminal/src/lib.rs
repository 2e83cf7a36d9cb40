//! What all commands share: exit codes, standard streams, and the check of a program before it runs with the shim.

pub mod exit;
pub mod program;
pub mod standard;
