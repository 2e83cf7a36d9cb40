//! The `phoebus` command: one subcommand per file, each with its arguments and a `run`.
//!
//! Errors are one line on standard error, `phoebus: what, and what was expected`, and an exit code of [`exit`]. This is a
//! plain `main`: a testbed needs a process with a single thread, so commands that need a runtime make their own.

mod agent;
mod bench;
mod cert;
mod connect;
mod demo;
mod exit;
mod gateway;
mod options;
mod program;
mod run;
mod status;
mod testbed;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Moves bulk data across wide-area networks at the speed of the slowest segment.
#[derive(Parser)]
#[command(name = "phoebus", version, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Connect(connect::Args),
    Agent(agent::Args),
    Gateway(gateway::Args),
    Status(status::Args),
    Cert(cert::Args),
    Bench(bench::BenchArgs),
    Demo(demo::Args),
    Testbed(testbed::TestbedArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Status(args) => status::run(args),
        Command::Cert(args) => cert::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Testbed(args) => testbed::run(args),
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "phoebus: {}", exit::sentence(&error));
        exit::code_of(&error)
    })
}
