//! What connections to servers need from this command: the user's settings, agents, reports.

use crate::agent;
use crate::exit;
use crate::options::{self, append_report};
use phoebus_client::{Options, Report};
use phoebus_config::settings::Settings;
use phoebus_places::{AgentHandle, Caller, Error, Result, Variable};
use std::process::ExitCode;

/// This command.
#[derive(Debug)]
pub(super) struct Command;

impl Caller for Command {
    fn settings(&self, variables: &[Variable]) -> Result<Settings> {
        options::settings(variables).map_err(of_command)
    }

    fn check(&self, settings: &Settings) -> Result<()> {
        options::check_report(settings).map_err(of_command)
    }

    fn agent(&self, settings: &Settings, variables: &[Variable]) -> Result<Option<AgentHandle>> {
        let agent = tokio::task::block_in_place(|| agent::ensure(settings, variables, exit::PASSING));
        Ok(agent.map_err(of_command)?.map(|agent| Box::new(agent) as AgentHandle))
    }

    fn sessions(&self, settings: &Settings) -> Options {
        Options::from(settings)
    }

    fn opened(&self, settings: &Settings, report: &Report) {
        if settings.verbose {
            eprintln!("phoebus: {report}");
        }
        append_report(settings, report);
    }
}

/// Errors of this command's own parts: wrong settings, or an unavailable agent.
fn of_command(error: anyhow::Error) -> Error {
    let sentence = exit::sentence(&error);
    match exit::code_of(&error) == ExitCode::from(exit::PASSING) {
        true => Error::Passing(sentence),
        false => Error::Request(sentence),
    }
}
