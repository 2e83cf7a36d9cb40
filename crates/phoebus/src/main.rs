//! The phoebus command.

mod testbed;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Moves bulk data across wide-area networks at the speed of the slowest segment.
#[derive(Debug, Parser)]
#[command(name = "phoebus", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Testbed(testbed::TestbedArgs),
}

/// Commands that need a runtime make their own: a testbed needs a process with a single thread.
fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Testbed(args) => testbed::run(args),
    }
}
