//! `phoebus gateway init`: the configurations and certificates of two gateways that carry sessions from clients near
//! the one to destinations near the other (P17, P20).
//!
//! What is written is complete and allows no more than what was named: `phoebus gateway --config` runs it as it is.

use crate::cert;
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use phoebus_gateway::Config;
use phoebus_gateway::config::{Net, Pattern};
use phoebus_proto::endpoint::{DEFAULT_PORT, Endpoint, is_name};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Write the configurations and certificates of two gateways
///
/// Sessions go from --from through the gateway NAME and its peer to --to, and nowhere else. The two gateways
/// authenticate each other and encrypt their connections.
#[derive(clap::Args)]
#[command(after_help = "\
Each gateway has NAME.toml, NAME.pem, NAME-key.pem and ca.pem: copy these four to its host, into one directory, and start
phoebus gateway --config NAME.toml there. ca-key.pem stays here: whoever has it can pass for any gateway.

NAME is the host's DNS name, or a name and where it is to be found: pg1=192.0.2.1 or pg1=host.example/5007.

Exit codes: 0 written; 1 a file is there already or cannot be written; 2 wrong arguments.

Examples:
  phoebus gateway init --dir gateways pg1.example --peer pg2.example --from 10.1.0.0/16 --to 10.3.0.0/16
  phoebus gateway init pg1=192.0.2.1 --peer pg2=198.51.100.2 --from 10.1.0.0/16 --to .labs.example --to 10.3.0.0/16
")]
pub(super) struct InitArgs {
    /// Directory for the files; created if missing
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The other gateway, near the destinations
    #[arg(long, value_name = "NAME[=HOST[/PORT]]")]
    peer: String,
    /// Address ranges of clients, as the first gateway sees them
    #[arg(long, value_name = "RANGE", required = true, value_delimiter = ',')]
    from: Vec<String>,
    /// Permitted destinations: address ranges, names, domains such as .labs.example, or * for all
    #[arg(long, value_name = "DESTINATION", required = true, value_delimiter = ',')]
    to: Vec<String>,
    /// Replace existing files of these gateways; an authority is never replaced
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The gateway near the clients
    #[arg(value_name = "NAME[=HOST[/PORT]]")]
    gateway: String,
}

/// One of the two.
struct Gateway {
    name: String,
    address: Endpoint,
}

/// The written files, as JSON.
#[derive(Serialize)]
struct Report {
    authority: PathBuf,
    gateways: Vec<Written>,
}

#[derive(Serialize)]
struct Written {
    name: String,
    address: String,
    configuration: PathBuf,
    /// All that its host needs, the configuration among them.
    files: Vec<PathBuf>,
}

/// Writes the files. Returns the message.
pub(super) fn run(args: &InitArgs) -> Result<String> {
    let (first, second) = (Gateway::parse(&args.gateway)?, Gateway::parse(&args.peer)?);
    if first.name == second.name {
        return Err(Exit::usage(format!("both gateways are called \"{}\"; expected two names", first.name)));
    }
    for range in &args.from {
        range.parse::<Net>().map_err(|why| Exit::usage(format!("--from: {why}")))?;
    }
    for destination in &args.to {
        destination.parse::<Pattern>().map_err(|why| Exit::usage(format!("--to: {why}")))?;
    }
    let pair =
        [(&first, first.text(&second, Role::NearClients(args))), (&second, second.text(&first, Role::Far(args)))];
    let file = |gateway: &Gateway| args.dir.join(format!("{}.toml", gateway.name));
    if let Some(taken) = pair.iter().map(|(gateway, _)| file(gateway)).find(|file| file.exists() && !args.force) {
        bail!("{} is there already; --force replaces it", taken.display());
    }
    cert::make_all(&args.dir, &[first.names(), second.names()], args.force, cert::DAYS)?;
    let mut report = Report { authority: args.dir.join(cert::AUTHORITY_KEY), gateways: Vec::new() };
    for (gateway, text) in pair {
        let configuration = file(gateway);
        write(&configuration, &text).with_context(|| format!("cannot write {}", configuration.display()))?;
        // As the gateway itself will read it.
        Config::read(&configuration)?;
        let others = [format!("{}.pem", gateway.name), format!("{}-key.pem", gateway.name), cert::AUTHORITY.to_owned()];
        let files = std::iter::once(configuration.clone()).chain(others.map(|name| args.dir.join(name))).collect();
        let address = shown(&gateway.address);
        report.gateways.push(Written { name: gateway.name.clone(), address, configuration, files });
    }
    Ok(if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { describe(&report) })
}

/// Which of the two.
enum Role<'a> {
    /// The gateway that accepts clients, and passes sessions on.
    NearClients(&'a InitArgs),
    /// The gateway that connects to destinations.
    Far(&'a InitArgs),
}

impl Gateway {
    fn parse(text: &str) -> Result<Self> {
        let (name, place) = text.split_once('=').unwrap_or((text, text));
        let (name, port) = if name == text { split_port(name) } else { (name, "") };
        let name = name.to_ascii_lowercase();
        if !is_name(&name) {
            let expected = "expected one such as pg1.example, or with its address pg1=192.0.2.1";
            return Err(Exit::usage(format!("\"{name}\" is no name for a gateway; {expected}")));
        }
        let place = if place == text { format!("{name}{port}") } else { place.to_owned() };
        let address = Endpoint::parse(&place, Some(DEFAULT_PORT));
        let address = address.map_err(|why| Exit::usage(format!("gateway {name}: {why}")))?;
        Ok(Self { name, address })
    }

    /// The subjects of its certificate: its name, and the host by which clients know it.
    fn names(&self) -> String {
        let host = self.address.as_ref().host.to_string();
        if host == self.name { host } else { format!("{},{host}", self.name) }
    }

    /// Its configuration.
    fn text(&self, other: &Self, role: Role<'_>) -> String {
        let (name, port) = (&self.name, self.address.port);
        let mut text = format!(
            "name = \"{name}\"\n\n\
             [tls]\ncertificate = \"{name}.pem\"\nkey = \"{name}-key.pem\"\nauthorities = \"ca.pem\"\n\n\
             [[listen]]\naddress = \"0.0.0.0:{port}\"\n\n\
             # Leave this out on a host without IPv6.\n[[listen]]\naddress = \"[::]:{port}\"\n\n\
             # For phoebus status; the directory is made by: install -d -o USER /run/phoebus\n\
             # [admin]\n# socket = \"/run/phoebus/gateway.sock\"\n\n\
             # For phoebus cp --stack object, at a UDP port that the neighbours can reach.\n\
             # [datagrams]\n# addresses = [\"0.0.0.0:5008\"]\n\n\
             [[peer]]\nname = \"{}\"\naddress = \"{}\"\n",
            other.name,
            shown(&other.address),
        );
        // Writing to a string cannot fail.
        let _ = match role {
            // A route for addresses would not hold for names, which only the gateway that connects can resolve:
            // sessions to them would pass the other gateway by.
            Role::NearClients(args) => write!(
                text,
                "\n[[route]]\nto = \"*\"\nvia = \"{}\"\n\n\
                 # All of it goes to {0}, which says where it may go.\n[[allow]]\nfrom = {}\nto = {}\n",
                other.name,
                list(&args.from),
                list(&onwards(&args.to))
            ),
            Role::Far(args) => {
                write!(text, "\n[[allow]]\nfrom = [\"{}\"]\nto = {}\n", other.name, list(&args.to))
            }
        };
        text
    }
}

/// What the first gateway allows; the second decides about destinations: everything, and the addresses that
/// "everything" excludes, since they may be this gateway's own host or link.
fn onwards(to: &[String]) -> Vec<String> {
    let own = to.iter().filter(|item| item.parse::<Net>().is_ok_and(Net::names_own));
    std::iter::once("*".to_owned()).chain(own.cloned()).collect()
}

/// A name, and `/PORT` or `:PORT` after it.
fn split_port(text: &str) -> (&str, &str) {
    text.find(['/', ':']).map_or((text, ""), |at| text.split_at(at))
}

/// `host/port`, as the guide writes it.
fn shown(address: &Endpoint) -> String {
    format!("{}/{}", address.as_ref().host, address.port)
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
}

/// Patterns and ranges have no character that TOML would read otherwise.
fn quoted(item: &str) -> String {
    format!("\"{item}\"")
}

/// By way of a temporary file, so that nobody reads half of it.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension(format!("new-{}", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&new).and_then(|mut opened| {
        opened.write_all(text.as_bytes())?;
        fs::rename(&new, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for gateway in &report.gateways {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "copy these to {} ({}), into one directory:", gateway.name, gateway.address);
        for file in &gateway.files {
            let _ = writeln!(text, "  {}", file.display());
        }
        let _ = writeln!(text, "and start there: phoebus gateway --config {}.toml", gateway.name);
    }
    let first = report.gateways.first().map_or("", |gateway| &gateway.address);
    let _ = writeln!(text, "keep {} here: whoever has it can pass for any gateway", report.authority.display());
    let _ = writeln!(text, "then a client's: phoebus run --gateway {first} -- COMMAND");
    text
}
