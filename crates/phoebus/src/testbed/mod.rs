//! `phoebus testbed`: hosts and an emulated WAN on this machine (`S30`).
//!
//! [`run`] must be called while the process has a single thread: without root, `exec` enters a user namespace.

mod args;
mod print;

pub(crate) use args::TestbedArgs;
use args::{Build, TestbedCommand};
use phoebus_wan::model::{Direction, DirectionUpdate};
use phoebus_wan::testbed::{
    ENV_DIRECTORY, ENV_HOST, ENV_NAME, Error, Found, Order, Outcome, Remote, Report, Supervisor, supervise,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

/// Bad arguments or a bad scenario, as clap has it.
const USAGE: u8 = 2;
/// A command of `run` or `exec` could not even be attempted, as `env` and `timeout` have it; so are the next two.
const TESTBED_FAILED: u8 = 125;
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Does what `phoebus testbed` was asked to do.
pub(crate) fn run(args: TestbedArgs) -> ExitCode {
    let done = match args.command {
        TestbedCommand::Run { build, counters, quiet, command } => {
            return wrap(run_command(&build, counters.as_deref(), quiet, &command), TESTBED_FAILED);
        }
        TestbedCommand::Exec { which, host, command } => {
            return wrap(exec(which.name.as_deref(), &host, &command), TESTBED_FAILED);
        }
        TestbedCommand::Up { build } => up(&build),
        TestbedCommand::Down { which, all, json } => down(which.name.as_deref(), all, json),
        TestbedCommand::Status { which, json } => status(which.name.as_deref(), json),
        TestbedCommand::Set { which, link, settings } => set(which.name.as_deref(), &link, &settings),
        TestbedCommand::Cut { which, link } => {
            Remote::find(which.name.as_deref()).and_then(|testbed| testbed.cut(&link))
        }
        TestbedCommand::Heal { which, link } => {
            Remote::find(which.name.as_deref()).and_then(|testbed| testbed.heal(&link))
        }
        TestbedCommand::Supervise => supervise(),
    };
    wrap(done.map(|()| 0), 1)
}

/// The exit code, after a sentence on standard error if there was an error.
fn wrap(result: Result<u8, Error>, failed: u8) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|error| {
        eprintln!("phoebus testbed: {error}");
        if error.is_bad_input() { USAGE } else { failed }
    }))
}

fn start(build: &Build, stay: bool) -> Result<Supervisor, Error> {
    let order = Order { name: build.name.clone(), scenario: build.scenario()?, stay };
    order.scenario.check()?;
    // The very program that runs, also when its file has been replaced.
    let mut program = Command::new("/proc/self/exe");
    program.arg0("phoebus").args(["testbed", "supervise"]);
    Supervisor::start(program, &order)
}

fn run_command(build: &Build, counters: Option<&Path>, quiet: bool, words: &[OsString]) -> Result<u8, Error> {
    let supervisor = start(build, false)?;
    if !quiet {
        print::conditions(supervisor.report(), build.json, &mut io::stderr());
    }
    let (program, arguments) = words.split_first().ok_or(Error::Lost)?;
    let mut command = Command::new(program);
    let testbed = Remote::find(Some(&supervisor.report().name))?;
    command.args(arguments);
    identify(&mut command, &testbed);
    let code = match phoebus_wan::testbed::run(&mut command, &supervisor) {
        Ok(Outcome::Ended(status)) => exit_code(status),
        Ok(Outcome::TestbedLost) => return Err(Error::Lost),
        Err(error) => not_started(program, &error),
    };
    let report = supervisor.down()?;
    if let Some(file) = counters {
        print::save(&report, file)?;
    }
    Ok(code)
}

fn exec(name: Option<&str>, host: &str, words: &[OsString]) -> Result<u8, Error> {
    let testbed = Remote::find(name)?;
    testbed
        .enter(host)?
        .enter_process()
        .map_err(|source| Error::System { what: format!("cannot enter {host}"), source })?;
    let (program, arguments) = words.split_first().ok_or(Error::Lost)?;
    let mut command = Command::new(program);
    command.args(arguments).env(ENV_HOST, host);
    identify(&mut command, &testbed);
    // Only a failure returns.
    Ok(not_started(program, &command.exec()))
}

fn up(build: &Build) -> Result<(), Error> {
    let supervisor = start(build, true)?;
    print::conditions(supervisor.report(), build.json, &mut io::stdout());
    Ok(())
}

fn down(name: Option<&str>, all: bool, json: bool) -> Result<(), Error> {
    let mut down = Vec::new();
    if all {
        for found in Found::all()? {
            take_down(&found)?;
            down.push(found.name);
        }
    } else {
        let stale = Found::all()?.into_iter().find(|found| found.stale && Some(found.name.as_str()) == name);
        let found = match stale {
            Some(found) => found,
            None => Remote::find(name)?.found(),
        };
        take_down(&found)?;
        down.push(found.name);
    }
    print::down(&down, json);
    Ok(())
}

fn take_down(found: &Found) -> Result<(), Error> {
    if found.stale { found.clear().map(drop) } else { Remote::at(found).down() }
}

fn status(name: Option<&str>, json: bool) -> Result<(), Error> {
    let found = match name {
        Some(name) => {
            let stale = Found::all()?.into_iter().find(|found| found.stale && found.name == name);
            vec![stale.map_or_else(|| Remote::find(Some(name)).map(|testbed| testbed.found()), Ok)?]
        }
        None => Found::all()?,
    };
    let mut reports: Vec<Report> = Vec::new();
    let mut stale = Vec::new();
    for found in found {
        if found.stale {
            stale.push(found.name);
        } else {
            reports.push(Remote::at(&found).report()?);
        }
    }
    print::status(&reports, &stale, json);
    Ok(())
}

fn set(name: Option<&str>, link: &str, settings: &[String]) -> Result<(), Error> {
    let (link, direction) = match link.split_once(':') {
        None => (link, None),
        Some((link, "forward")) => (link, Some(Direction::Forward)),
        Some((link, "backward")) => (link, Some(Direction::Backward)),
        Some((_, other)) => {
            return Err(bad(format!("\"{other}\" is no direction of a link: expected forward or backward")));
        }
    };
    let update = update(settings).map_err(bad)?;
    Remote::find(name)?.set(link, direction, &update)
}

/// Reads `loss=1% delay=20ms`.
fn update(settings: &[String]) -> Result<DirectionUpdate, String> {
    let mut update = DirectionUpdate::default();
    for setting in settings {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| format!("\"{setting}\" is not of the form KEY=VALUE"))?;
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
                return Err(format!("\"{key}\" is no setting of a link: {expected}"));
            }
        }
    }
    Ok(update)
}

fn bad(message: String) -> Error {
    Error::Remote { message, bad_input: true }
}

/// Lets `phoebus testbed` inside the command find the testbed.
fn identify(command: &mut Command, testbed: &Remote) {
    command.env(ENV_NAME, testbed.name());
    if let Some(base) = testbed.directory().parent() {
        command.env(ENV_DIRECTORY, base);
    }
}

/// Shells have it so too.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(TESTBED_FAILED)
}

fn not_started(program: &OsString, error: &io::Error) -> u8 {
    eprintln!("phoebus testbed: cannot run {}: {error}", program.display());
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_link() {
        let read = |text: &str| update(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let changed = read("loss=to_bad=1%,to_good=10% rate=unlimited reorder=true").unwrap();
        assert_eq!(changed.loss, Some("to_bad=1%,to_good=10%".parse().unwrap()));
        assert_eq!(
            (changed.rate, changed.reorder, changed.delay),
            (Some("unlimited".parse().unwrap()), Some(true), None)
        );
        for (text, expected) in [
            ("fast", "\"fast\" is not of the form KEY=VALUE"),
            ("speed=1gbit", "\"speed\" is no setting of a link: expected delay, jitter, reorder, loss, rate or queue"),
            ("delay=soon", "delay: \"soon\" is not a duration such as 250us, 100ms, 30s, 2m or 1h"),
            ("reorder=maybe", "reorder: \"maybe\" is neither true nor false"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected);
        }
    }
}
