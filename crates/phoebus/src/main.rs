//! The phoebus command.

fn main() {}
