//! `phoebus passwd`: sets passwords in a users file, which gateways and file servers read.

use crate::exit::Exit;
use crate::password;
use anyhow::Result;
use phoebus_accounts::password::new_verifier;
use phoebus_config::users::{self, UsersError};
use std::path::PathBuf;
use std::process::ExitCode;

/// Set the password of a user in a users file, for gateways with auth = "scram"
#[derive(clap::Args)]
#[command(after_help = "\
The file has a verifier for each user, in PostgreSQL's form, and no password. The password is read from standard input, since others
can see arguments; on a terminal it is asked for twice. A gateway reads the file at its start and at SIGHUP.

Exit codes: 0 done; 1 the file cannot be read or written; 2 wrong arguments, or a line of the file is wrong.

Examples:
  phoebus passwd --users /etc/phoebus/users ada
  phoebus passwd --users /etc/phoebus/users --group physics --group operators ada < password.txt
  phoebus passwd --users /etc/phoebus/users --remove ada
")]
pub(crate) struct Args {
    /// The users file; made if it is not there
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// Remove the user
    #[arg(long)]
    remove: bool,
    /// A group of the user, for rules; may be given several times. Without it, a user who is there stays in the same groups
    #[arg(long = "group", value_name = "NAME", conflicts_with = "remove")]
    groups: Vec<String>,
    /// The user's name
    user: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let Args { users: file, remove, groups, user } = args;
    let change = match remove {
        true => users::Change::Remove,
        false => {
            // A wrong file or name is told before anybody types a password.
            users::change(&file, &user, &users::Change::Nothing).map_err(failed)?;
            let password = password::read_new()?;
            let verifier = new_verifier(&password).map_err(|_| anyhow::anyhow!("the system has no randomness"))?;
            let groups = Some(groups).filter(|groups| !groups.is_empty());
            users::Change::Set { verifier: Box::new(verifier), groups }
        }
    };
    let was_there = users::change(&file, &user, &change).map_err(failed)?;
    let done = match (remove, was_there) {
        (true, _) => "removed",
        (false, true) => "set a new password of",
        (false, false) => "added",
    };
    eprintln!("phoebus: {done} {user}; gateways and servers read the file at SIGHUP");
    Ok(ExitCode::SUCCESS)
}

fn failed(error: UsersError) -> anyhow::Error {
    match error {
        UsersError::Unreadable { .. } | UsersError::Unwritable { .. } => error.into(),
        _ => Exit::usage(error),
    }
}
