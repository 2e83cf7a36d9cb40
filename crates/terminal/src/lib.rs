//! What all commands have in common: exit codes, standard streams, and the look at a program before it runs with the shim.

pub mod exit;
pub mod program;
pub mod standard;
