//! `phoebus testbed`: hosts and an emulated WAN on this machine (`S30`).
//!
//! [`run`] must be called while the process has a single thread: without root, `exec` enters a user namespace.

mod args;
mod print;

use crate::exit::{self, Exit};
use anyhow::Result;
pub use args::TestbedArgs;
use args::{Build, TestbedCommand};
pub(crate) use args::{Security, certificates};
use phoebus_wan::model::{Direction, DirectionUpdate};
use phoebus_wan::testbed::{Error, Found, Order, Outcome, Remote, State, Supervisor, supervise};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

/// Runs `phoebus testbed`.
///
/// # Errors
/// The failure, with its exit code.
pub fn run(args: TestbedArgs) -> Result<ExitCode> {
    let find = |name: Option<String>| Remote::find(name.as_deref());
    let done = match args.command {
        TestbedCommand::Run { build, counters, quiet, command } => {
            return run_command(&build, counters.as_deref(), quiet, &command)
                .map_err(|error| coded(error, exit::PREPARE));
        }
        TestbedCommand::Exec { which, host, command } => {
            return exec(which.name.as_deref(), &host, &command).map_err(|error| coded(error, exit::PREPARE));
        }
        TestbedCommand::Up { build } => up(&build),
        TestbedCommand::Down { which, all, json } => down(which.name.as_deref(), all, json),
        TestbedCommand::Status { which, json } => status(which.name.as_deref(), json),
        TestbedCommand::Set { which, link, settings } => {
            let (link, direction) = direction(&link).map_err(Exit::usage)?;
            let update = update(&settings).map_err(Exit::usage)?;
            find(which.name).and_then(|testbed| testbed.set(link, direction, &update))
        }
        TestbedCommand::Cut { which, link } => find(which.name).and_then(|testbed| testbed.cut(&link)),
        TestbedCommand::Heal { which, link } => find(which.name).and_then(|testbed| testbed.heal(&link)),
        TestbedCommand::Supervise => supervise(),
    };
    done.map(|()| ExitCode::SUCCESS).map_err(|error| coded(error, exit::FAILED))
}

/// An error with the exit code `failed`, or [`exit::USAGE`] if the arguments were wrong.
fn coded(error: Error, failed: u8) -> anyhow::Error {
    Exit::with(if error.is_bad_input() { exit::USAGE } else { failed }, error)
}

fn start(build: &Build, stay: bool) -> Result<Supervisor, Error> {
    let scenario = build.scenario()?;
    scenario.check()?;
    let order = Order { name: build.name.clone(), scenario, gateways: build.gateways()?, stay };
    // The running program itself, even if its file has been replaced.
    let mut program = Command::new("/proc/self/exe");
    program.arg0("phoebus").args(["testbed", "supervise"]);
    Supervisor::start(program, &order)
}

fn run_command(build: &Build, counters: Option<&Path>, quiet: bool, words: &[OsString]) -> Result<ExitCode, Error> {
    // Fail early if the counters cannot be written.
    if let Some(file) = counters {
        print::create(file)?;
    }
    let supervisor = start(build, false)?;
    match quiet {
        false => eprintln!("{}", print::conditions(supervisor.report(), build.json)),
        true if build.asks_for_congestion_control() => print::refused(supervisor.report()),
        true => {}
    }
    let (mut command, program) = command(words);
    Remote::find(Some(&supervisor.report().name))?.identify(&mut command, None);
    let code = match phoebus_wan::testbed::run(&mut command, &supervisor) {
        Ok(Outcome::Ended(status)) => exit_code(status),
        Ok(Outcome::TestbedLost) => return Err(Error::Lost),
        Err(error) => not_started(program, &error),
    };
    let report = supervisor.down()?;
    print::ended_gateways(&report);
    if let Some(file) = counters {
        print::save(&report, file)?;
    }
    Ok(code)
}

fn exec(name: Option<&str>, host: &str, words: &[OsString]) -> Result<ExitCode, Error> {
    let testbed = Remote::find(name)?;
    let entered = testbed.enter(host)?.enter_process();
    entered.map_err(|source| Error::System { what: format!("cannot enter host \"{host}\""), source })?;
    let (mut command, program) = command(words);
    testbed.identify(&mut command, Some(host));
    // Returns only on failure.
    Ok(not_started(program, &command.exec()))
}

/// The arguments as a command. clap guarantees a first word.
fn command(words: &[OsString]) -> (Command, &OsStr) {
    let (program, arguments) = words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(arguments);
    (command, program)
}

fn up(build: &Build) -> Result<(), Error> {
    let supervisor = start(build, true)?;
    print::say(&print::conditions(supervisor.report(), build.json));
    Ok(())
}

fn down(name: Option<&str>, all: bool, json: bool) -> Result<(), Error> {
    let found = if all {
        Found::all()?.into_iter().filter(|found| found.state != State::Private).collect()
    } else {
        vec![find_stale(name)?.map_or_else(|| Remote::find(name).map(|testbed| testbed.found()), Ok)?]
    };
    for one in &found {
        match one.state {
            State::Stale => drop(one.clear()?),
            State::Running | State::Private => Remote::at(one).down()?,
        }
    }
    print::down(&found, json);
    Ok(())
}

fn find_stale(name: Option<&str>) -> Result<Option<Found>, Error> {
    Ok(Found::all()?.into_iter().find(|found| found.state == State::Stale && Some(&*found.name) == name))
}

fn status(name: Option<&str>, json: bool) -> Result<(), Error> {
    let found = match name {
        Some(_) => vec![find_stale(name)?.map_or_else(|| Remote::find(name).map(|testbed| testbed.found()), Ok)?],
        None => Found::all()?,
    };
    let (running, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.state == State::Running);
    let mut reports = Vec::new();
    for found in running {
        match Remote::at(&found).report() {
            Ok(report) => reports.push(report),
            // The testbed may just have ended; otherwise this is an error.
            Err(error) => {
                if Found::all()?.contains(&found) {
                    return Err(error);
                }
            }
        }
    }
    print::status(&reports, &others, json);
    Ok(())
}

/// Reads `wan` and `wan:forward`.
fn direction(text: &str) -> Result<(&str, Option<Direction>), String> {
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((link, "forward")) => Ok((link, Some(Direction::Forward))),
        Some((link, "backward")) => Ok((link, Some(Direction::Backward))),
        Some((_, other)) => Err(format!("\"{other}\" is no direction of a link; expected forward or backward")),
    }
}

/// Reads `loss=1% delay=20ms`.
fn update(settings: &[String]) -> Result<DirectionUpdate, String> {
    let mut update = DirectionUpdate::default();
    let mut set = Vec::new();
    for setting in settings {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| format!("\"{setting}\" is not of the form KEY=VALUE"))?;
        if set.contains(&key) {
            return Err(format!("{key} is set twice"));
        }
        set.push(key);
        let at = |error: &dyn std::fmt::Display| format!("{key}: {error}");
        match key {
            "delay" => update.delay = Some(value.parse().map_err(|e| at(&e))?),
            "jitter" => update.jitter = Some(value.parse().map_err(|e| at(&e))?),
            "reorder" => {
                let choice = value.parse().map_err(|_| format!("reorder: \"{value}\" is neither true nor false"))?;
                update.reorder = Some(choice);
            }
            "loss" => update.loss = Some(value.parse().map_err(|e| at(&e))?),
            "rate" => update.rate = Some(value.parse().map_err(|e| at(&e))?),
            "queue" => update.queue = Some(value.parse().map_err(|e| at(&e))?),
            _ => {
                let expected = "expected delay, jitter, reorder, loss, rate or queue";
                return Err(format!("\"{key}\" is no setting of a link; {expected}"));
            }
        }
    }
    Ok(update)
}

/// The exit code as shells give it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::PREPARE).into()
}

fn not_started(program: &OsStr, error: &io::Error) -> ExitCode {
    let (code, problem) = match error.kind() {
        ErrorKind::NotFound => (exit::NOT_FOUND, "was not found"),
        _ => (exit::NOT_EXECUTABLE, "cannot be executed"),
    };
    eprintln!("phoebus: \"{}\" {problem}: {}", program.display(), phoebus_net::reason(error));
    code.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_settings_are_parsed() {
        let read = |text: &str| update(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let changed = read("loss=to_bad=1%,to_good=10% rate=unlimited reorder=true").unwrap();
        assert_eq!(changed.loss, Some("to_bad=1%,to_good=10%".parse().unwrap()));
        assert_eq!(
            (changed.rate, changed.reorder, changed.delay),
            (Some("unlimited".parse().unwrap()), Some(true), None)
        );
        for (text, expected) in [
            ("fast", "\"fast\" is not of the form KEY=VALUE"),
            ("speed=1gbit", "\"speed\" is no setting of a link; expected delay, jitter, reorder, loss, rate or queue"),
            ("delay=soon", "delay: \"soon\" is not a duration such as 250us, 100ms, 30s, 2m, 1h, 7d or 2w"),
            ("loss=1% loss=2%", "loss is set twice"),
            ("reorder=maybe", "reorder: \"maybe\" is neither true nor false"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected);
        }
    }
}
