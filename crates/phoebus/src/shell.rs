//! `phoebus completions` and `phoebus manual`: completions and man pages, generated from the command line.

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print what a shell needs to complete this command
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  phoebus completions bash > ~/.local/share/bash-completion/completions/phoebus
")]
pub(crate) struct Completions {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

/// Write this command's man pages into a directory
#[derive(clap::Args)]
pub(crate) struct Manual {
    /// Where they go, one for each subcommand: phoebus.1, phoebus-run.1 and so on
    directory: PathBuf,
}

pub(crate) fn completions<C: CommandFactory>(args: &Completions) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "phoebus", &mut text);
    crate::standard::print(&String::from_utf8(text).context("the shell's script is no text")?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn manual<C: CommandFactory>(args: &Manual) -> Result<ExitCode> {
    let place = args.directory.display();
    std::fs::create_dir_all(&args.directory).with_context(|| format!("cannot make {place}"))?;
    clap_mangen::generate_to(C::command(), &args.directory).with_context(|| format!("cannot write to {place}"))?;
    Ok(ExitCode::SUCCESS)
}
