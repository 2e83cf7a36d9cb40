//! `phoebus cert`: makes certificates for gateways with a private authority, and shows certificates.

use crate::exit::Exit;
use crate::standard;
use anyhow::{Context, Result, bail};
use phoebus_net::credentials::{Authority, Certificate, CredentialsError, Issued, date};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// File names of the authority's certificate and key.
pub(crate) const AUTHORITY: &str = "ca.pem";
pub(crate) const AUTHORITY_KEY: &str = "ca-key.pem";
/// Default validity in days.
pub(crate) const DAYS: u32 = 365;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longest validity in days: that of the authority.
const DAYS_MAX: u32 = 3650;

/// Make certificates for gateways, or show what a certificate says
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(InitArgs),
    Show(ShowArgs),
}

/// Make a private authority if there is none, and a certificate with its key for each gateway
#[derive(clap::Args)]
#[command(after_help = "\
The authority is ca.pem with its key ca-key.pem. Whoever has that key can pass for any gateway: keep it off the gateways. A
gateway gets ca.pem, NAME.pem and NAME-key.pem.

Exit codes: 0 made; 1 a file is there already or cannot be written; 2 wrong arguments.

Examples:
  phoebus cert init --dir certificates pg1.example.org pg2.example.org
  phoebus cert init --dir certificates --force pg1.example.org        # a new one for pg1, by the same authority
")]
struct InitArgs {
    /// Directory for the files; created if missing
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Replace certificates and keys of gateways that are there already; an authority is never replaced
    #[arg(long)]
    force: bool,
    /// For how many days the certificates count
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    days: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// DNS name of a gateway, by which its peers know it; more names and addresses of the same behind commas
    #[arg(value_name = "NAME[,NAME...]", required = true)]
    names: Vec<String>,
}

/// Show the names, validity, issuer and fingerprint of each certificate in a PEM file
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 shown; 1 the file cannot be read, or holds no certificate; 2 wrong arguments.")]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// PEM file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    standard::check_output()?;
    let text = match args.command {
        Command::Init(args) => init(&args)?,
        Command::Show(args) => show(&args)?,
    };
    standard::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The result, as JSON.
#[derive(Serialize)]
pub(crate) struct Report {
    authority: IssuedCertificate,
    /// Whether the authority is new.
    authority_is_new: bool,
    gateways: Vec<IssuedCertificate>,
}

#[derive(Serialize)]
pub(crate) struct IssuedCertificate {
    certificate: PathBuf,
    key: PathBuf,
    #[serde(flatten)]
    said: Certificate,
}

/// What to make for a gateway.
struct Plan<'a> {
    name: &'a str,
    also: Vec<String>,
    certificate: PathBuf,
    key: PathBuf,
}

fn init(args: &InitArgs) -> Result<String> {
    let report = make_all(&args.dir, &args.names, args.force, args.days)?;
    Ok(if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { describe(&report) })
}

/// Makes a certificate in `dir` for each gateway in `names`, by the existing authority or a new one. Existing files of
/// gateways are replaced only with `force`.
///
/// # Errors
/// An invalid name, before anything is written; an existing file, an unusable one, or a failed write.
pub(crate) fn make_all(dir: &Path, names: &[String], force: bool, days: u32) -> Result<Report> {
    let plans: Vec<Plan<'_>> = names.iter().map(|names| plan(dir, names)).collect();
    check_names(&plans)?;
    let taken = plans.iter().flat_map(|plan| [&plan.certificate, &plan.key]).find(|file| file.exists());
    if let (Some(file), false) = (taken, force) {
        bail!("{} is there already; --force replaces it", file.display());
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;

    let now = SystemTime::now();
    let (certificate, key) = (dir.join(AUTHORITY), dir.join(AUTHORITY_KEY));
    let (authority, authority_is_new) = match (certificate.exists(), key.exists()) {
        (true, true) => (Authority::load(&certificate, &key)?, false),
        (false, false) => {
            let (authority, issued) = Authority::create(&authority_name()?, now)?;
            write_both(&certificate, &key, &issued)?;
            (authority, true)
        }
        (true, false) => bail!(
            "{} is there and its key {} is not; expected both, to sign with, or neither, to make a new authority",
            certificate.display(),
            key.display()
        ),
        (false, true) => {
            bail!("{} is there and its certificate {} is not", key.display(), certificate.display())
        }
    };
    if authority.not_after() <= now {
        bail!("the authority in {} expired on {}", certificate.display(), date(authority.not_after()));
    }
    let gateways = plans.iter().map(|plan| make(plan, &authority, now, days)).collect::<Result<_>>()?;
    Ok(Report { authority: made(&certificate, &key)?, authority_is_new, gateways })
}

fn plan<'a>(dir: &Path, names: &'a str) -> Plan<'a> {
    let mut names = names.split(',');
    let name = names.next().unwrap_or_default();
    let file = name.to_ascii_lowercase();
    Plan {
        name,
        also: names.map(str::to_owned).collect(),
        certificate: dir.join(format!("{file}.pem")),
        key: dir.join(format!("{file}-key.pem")),
    }
}

/// Before anything is written.
fn check_names(plans: &[Plan<'_>]) -> Result<()> {
    let mut files = HashSet::from([Path::new(AUTHORITY).as_os_str(), Path::new(AUTHORITY_KEY).as_os_str()]);
    for plan in plans {
        for name in std::iter::once(plan.name).chain(plan.also.iter().map(String::as_str)) {
            Authority::check_name(name).map_err(Exit::usage)?;
        }
        for file in [&plan.certificate, &plan.key].into_iter().filter_map(|file| file.file_name()) {
            if !files.insert(file) {
                let file = Path::new(file).display();
                return Err(Exit::usage(format!(
                    "\"{}\": its file {file} is another's here; expected another name",
                    plan.name
                )));
            }
        }
    }
    Ok(())
}

/// A unique name: two authorities of one name would look like one with a broken signature.
fn authority_name() -> Result<String> {
    let number = getrandom::u32().map_err(|error| anyhow::anyhow!("the system has no random bytes: {error}"))?;
    Ok(format!("Phoebus private authority {number:08x}"))
}

fn make(plan: &Plan<'_>, authority: &Authority, now: SystemTime, days: u32) -> Result<IssuedCertificate> {
    let issued = authority.issue(plan.name, &plan.also, now, DAY * days)?;
    write_both(&plan.certificate, &plan.key, &issued)?;
    made(&plan.certificate, &plan.key)
}

fn made(certificate: &Path, key: &Path) -> Result<IssuedCertificate> {
    let said = Certificate::all_in(certificate)?.swap_remove(0);
    Ok(IssuedCertificate { certificate: certificate.into(), key: key.into(), said })
}

/// The key comes first, so that each certificate has one.
fn write_both(certificate: &Path, key: &Path, issued: &Issued) -> Result<(), CredentialsError> {
    write(key, &issued.key, 0o600)?;
    write(certificate, &issued.certificate, 0o644)
}

/// By way of a temporary file, so that nobody reads half of it. A key is private from the start.
fn write(file: &Path, text: &str, mode: u32) -> Result<(), CredentialsError> {
    let new = file.with_extension(format!("new-{}", std::process::id()));
    let written = || -> io::Result<()> {
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        opened.write_all(text.as_bytes())?;
        opened.sync_all()?;
        fs::rename(&new, file)
    };
    written().map_err(|source| {
        let _ = fs::remove_file(&new);
        CredentialsError::Write { file: file.into(), source }
    })
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    let authority = &report.authority;
    // Writing to a string cannot fail.
    let _ = if report.authority_is_new {
        writeln!(
            text,
            "made a private authority, which counts until {}\n  {}\n  {}: whoever has this key can pass for any gateway; keep it off \
             the gateways",
            date(authority.said.not_after),
            authority.certificate.display(),
            authority.key.display(),
        )
    } else {
        writeln!(text, "signing with the authority in {}", authority.certificate.display())
    };
    for gateway in &report.gateways {
        let _ = writeln!(
            text,
            "made a certificate for {}, which counts until {}; copy these to its host:\n  {}\n  {} (mode 600)\n  {}",
            gateway.said.names.join(", "),
            date(gateway.said.not_after),
            gateway.certificate.display(),
            gateway.key.display(),
            authority.certificate.display(),
        );
    }
    text
}

fn show(args: &ShowArgs) -> Result<String> {
    let all = Certificate::all_in(&args.file)?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let now = SystemTime::now();
    Ok(all.iter().map(|certificate| describe_one(certificate, now)).collect::<Vec<_>>().join("\n"))
}

fn describe_one(certificate: &Certificate, now: SystemTime) -> String {
    let names = if certificate.names.is_empty() { "none".to_owned() } else { certificate.names.join(", ") };
    let state = match certificate.not_after.duration_since(now) {
        Err(_) => "expired".to_owned(),
        Ok(_) if now < certificate.not_before => "not valid yet".to_owned(),
        Ok(left) => format!("{} days left", left.as_secs() / DAY.as_secs()),
    };
    let mut text = format!("names    {names}\nsubject  {}\nissuer   {}\n", certificate.subject, certificate.issuer);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "valid    {} to {} ({state})\nkind     {}\nsha256   {}\n",
        date(certificate.not_before),
        date(certificate.not_after),
        if certificate.authority { "authority" } else { "end" },
        certificate.sha256,
    );
    text
}
