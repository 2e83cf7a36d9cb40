//! The `phoebus` command: one subcommand per file, each with its arguments and a `run`.
//!
//! Errors are one line on standard error, `phoebus: what, and what was expected`, and an exit code of [`exit`]. This is
//! a plain `main`: a testbed needs a process with a single thread, so commands that need a runtime make their own.

mod agent;
mod catch;
mod cert;
mod connect;
mod cp;
mod gateway;
mod hints;
mod human;
mod login;
mod manage;
mod options;
mod passwd;
mod password;
mod place;
mod proxy;
mod repeats;
mod run;
mod runtime;
mod serve;
mod shell;
mod status;
mod variables;

use anyhow::Result;
use clap::{Parser, Subcommand};
#[cfg(feature = "lab")]
use phoebus_lab::{bench, demo, testbed};
use phoebus_terminal::{exit, program, standard};
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
    Cp(cp::Args),
    Ls(manage::ls::Args),
    Stat(manage::stat::Args),
    Cat(manage::cat::Args),
    Check(manage::check::Args),
    Clean(manage::clean::Args),
    Mkdir(manage::mkdir::Args),
    Rm(manage::rm::Args),
    Mv(manage::mv::Args),
    Run(run::Args),
    Connect(connect::Args),
    Agent(agent::Args),
    Gateway(gateway::Args),
    Serve(serve::Args),
    Status(status::Args),
    Cert(cert::Args),
    Passwd(passwd::Args),
    Login(login::Args),
    #[cfg(feature = "lab")]
    Bench(bench::BenchArgs),
    #[cfg(feature = "lab")]
    Demo(demo::Args),
    #[cfg(feature = "lab")]
    Testbed(testbed::TestbedArgs),
    Completions(shell::Completions),
    #[command(hide = true)]
    Manual(shell::Manual),
}

impl Command {
    /// Whether the command reads variables of the environment.
    fn heeds_environment(&self) -> bool {
        !matches!(self, Self::Gateway(_) | Self::Serve(_) | Self::Cert(_) | Self::Completions(_) | Self::Manual(_))
    }
}

fn main() -> ExitCode {
    end(run().and_then(|code| match standard::missed() {
        Some(error) if code == ExitCode::SUCCESS => Err(error),
        _ => Ok(code),
    }))
}

fn end(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        let sentence = exit::sentence(&error);
        if !sentence.is_empty() {
            let _ = writeln!(std::io::stderr(), "phoebus: {sentence}");
        }
        match error.downcast_ref() {
            Some(error) => place::code_of(error).into(),
            None => exit::code_of(&error),
        }
    })
}

fn run() -> Result<ExitCode> {
    let arguments = cp::joined(std::env::args_os());
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(mut error) if error.use_stderr() => {
            hints::add(&mut error, &arguments);
            error.exit()
        }
        // Help, or the version.
        Err(text) => {
            standard::check_output()?;
            standard::written(text.print().and_then(|()| std::io::stdout().flush()))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    if cli.command.heeds_environment() {
        variables::warn();
    }
    match cli.command {
        Command::Cp(args) => cp::run(args),
        Command::Ls(args) => manage::ls::run(args),
        Command::Stat(args) => manage::stat::run(args),
        Command::Cat(args) => manage::cat::run(args),
        Command::Check(args) => manage::check::run(args),
        Command::Clean(args) => manage::clean::run(args),
        Command::Mkdir(args) => manage::mkdir::run(args),
        Command::Rm(args) => manage::rm::run(args),
        Command::Mv(args) => manage::mv::run(args),
        Command::Run(args) => run::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => status::run(args),
        Command::Cert(args) => cert::run(args),
        Command::Passwd(args) => passwd::run(args),
        Command::Login(args) => login::run(args),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "lab")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "lab")]
        Command::Testbed(args) => testbed::run(args),
        Command::Completions(args) => shell::completions::<Cli>(&args),
        Command::Manual(args) => shell::manual::<Cli>(&args),
    }
}
