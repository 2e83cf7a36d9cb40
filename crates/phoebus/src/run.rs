//! `phoebus run`: runs a program whose connections go through gateways (P29–P33), by the preload shim, or by seccomp if
//! the shim cannot reach it ([`crate::catch`]).
//!
//! It checks settings and program, sets variables, and executes the program. It says which programs the shim cannot
//! reach, and what follows.

use crate::agent;
use crate::catch;
use crate::exit::{self, Exit};
use crate::options::{self, Route};
use crate::program::{self, Trouble, find_library};
use crate::proxy;
use crate::standard;
use anyhow::Result;
use phoebus_config::select::Selection;
use phoebus_config::settings::{Key, Settings};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PRELOAD: &str = "LD_PRELOAD";

/// Run a program whose connections go through gateways
///
/// Options override the environment, which overrides ~/.config/phoebus/client.conf and /etc/phoebus/client.conf.
/// Without --only, all connections go through gateways except those to this host itself. The program needs no change. A
/// library that is loaded into the program catches its connections. Where that cannot reach (static and Go programs),
/// seccomp catches them, and a message on standard error says so.
#[derive(clap::Args)]
#[command(after_help = "\
Exits as the program does; 2 wrong options, variables or configuration; 125 the program could not be prepared; \
126 it cannot be executed; 127 it was not found.

Examples:
  phoebus run --gateway pg1.example/5006 -- curl -O https://data.example/run7.tar
  phoebus run --gateway pg1.example --first-hop quic --ca ca.pem -- curl -O https://data.example/run7.tar
  phoebus run --gateway pg1.example --proxy -- ./a-go-program https://data.example/run7.tar
  phoebus run --path pg1.example,pg2.example --only .example.org -- scp run7.tar dtn.example.org:
  phoebus run --gateway pg1.example --catch seccomp -- ./job.sh
")]
pub(crate) struct Args {
    #[command(flatten)]
    route: Route,
    #[arg(
        long,
        value_name = "LIST",
        help = "Only these destinations: 10.3.0.0/16:5000-5999,[2001:db8::]/32,host.example,.example.org:443 [env: PHOEBUS_ONLY]"
    )]
    only: Option<String>,
    /// Not these destinations [env: PHOEBUS_EXCEPT]
    #[arg(long, value_name = "LIST")]
    except: Option<String>,
    /// Tell the program to use an agent as its proxy, by ALL_PROXY, HTTPS_PROXY and the like: for programs that know them
    #[arg(long)]
    proxy: bool,
    /// What catches the program's connections
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Catch::Auto, conflicts_with = "proxy")]
    catch: Catch,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Ways to catch the connections of a program.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Catch {
    /// The preload library, or seccomp if that cannot reach the program
    Auto,
    /// The preload library
    Preload,
    /// Seccomp: reaches all programs that the program starts, but takes the privileges of setuid programs
    Seccomp,
}

/// Becomes the program, or stands for it until it ends.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let Args { route, only, except, proxy, catch, command } = args;
    let mut variables = route.variables();
    for (key, value) in [(Key::Only, only), (Key::Except, except)] {
        variables.extend(value.map(|value| (key, Some(value))));
    }
    let settings = options::settings(&variables)?;
    let (name, arguments) = command.split_first().ok_or_else(|| Exit::usage("no command was given"))?;
    let file = find_program(name)?;
    let mut program = Command::new(name);
    program.args(arguments);
    if !settings.disabled {
        if settings.path.is_empty() {
            return Err(Exit::usage("no gateway is set; give --gateway HOST/PORT or set PHOEBUS_GW"));
        }
        options::check_report(&settings)?;
        if proxy {
            proxy::set(&mut program, settings, variables)?.pass_on()?;
        } else {
            let by_seccomp = match catch {
                Catch::Seccomp => {
                    tell_of_privileges(name, &file);
                    if settings.verbose {
                        eprintln!("phoebus: seccomp catches the connections of \"{}\"", name.display());
                    }
                    true
                }
                Catch::Auto | Catch::Preload => !preload(&mut program, name, &file, catch)?,
            };
            let inherited = catch::Inherited::now();
            let agent = agent::ensure(&settings, &variables, exit::PREPARE)?;
            for (key, value) in &variables {
                match value {
                    Some(value) => program.env(key.name(), value),
                    None => program.env_remove(key.name()),
                };
            }
            agent.map(agent::AgentHandle::pass_on).transpose()?;
            if by_seccomp {
                tell_of_domains(&settings);
                return catch::run(&mut program, &settings, inherited);
            }
        }
    }
    standard::pass_on();
    let error = program.exec();
    let code = if error.kind() == ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
    Err(Exit::with(code, format!("cannot run {}: {}", file.display(), phoebus_client::reason(&error))))
}

/// Sets the variables for the preload library. Returns whether it is to be used: seccomp is, where the library cannot
/// reach the program.
fn preload(program: &mut Command, name: &OsStr, file: &Path, catch: Catch) -> Result<bool> {
    // This needs no library.
    if catch == Catch::Auto
        && let Err(trouble) = program::inspect_reach(file)
    {
        eprintln!("phoebus: {}: seccomp catches its connections", trouble.reason(name));
        return Ok(false);
    }
    let library = find_library()?;
    match program::inspect(file, &library) {
        Ok(()) => {}
        // By seccomp it would run without its privileges, and hardly work.
        Err(trouble @ Trouble::Privileged { .. }) => {
            eprintln!("phoebus: {}: {}", trouble.reason(name), trouble.consequence());
        }
        // The library may be the wrong one, so this is for the user to decide.
        Err(trouble @ Trouble::Unloadable { .. }) => {
            let why = format!("{}; --catch seccomp needs no library", trouble.reason(name));
            return Err(Exit::with(exit::PREPARE, why));
        }
        Err(trouble) => eprintln!("phoebus: {}: {}", trouble.reason(name), trouble.consequence()),
    }
    let mut preload = library.file.into_os_string();
    // The dynamic loader parts names by colons and blanks, and has no way to quote them.
    if preload.as_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        let shown = preload.display();
        let why = "the dynamic loader takes no file names with blanks or colons in LD_PRELOAD";
        return Err(Exit::with(exit::PREPARE, format!("cannot preload \"{shown}\": {why}; move the library")));
    }
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    program.env(PRELOAD, preload);
    Ok(true)
}

/// Says that a setuid program runs without its privileges under the filter.
fn tell_of_privileges(name: &OsStr, file: &Path) {
    if let Err(Trouble::Privileged { how }) = program::inspect_privileges(file) {
        eprintln!("phoebus: \"{}\" {how}: caught by seccomp, it runs without that privilege", name.display());
    }
}

/// Says that domains in the lists match nothing: under the filter, only addresses are seen.
fn tell_of_domains(settings: &Settings) {
    let lists = [(Key::Only, &settings.only), (Key::Except, &settings.except)];
    for (key, _) in lists.into_iter().filter(|(_, list)| list.as_ref().is_some_and(Selection::has_domains)) {
        eprintln!(
            "phoebus: {key}: domains such as .example.org match no connection that seccomp catches, because only its address \
             is known; expected names or address ranges"
        );
    }
}

/// The file that will be executed, as execvp(3) looks for it.
fn find_program(name: &OsStr) -> Result<PathBuf> {
    let not_found = || Exit::with(exit::NOT_FOUND, format!("cannot run \"{}\": command not found", name.display()));
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return if file.exists() { Ok(file) } else { Err(not_found()) };
    }
    program::in_path(name).ok_or_else(not_found)
}
