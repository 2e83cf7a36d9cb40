//! `phoebus stat`: metadata of files, including checksums.

use super::{CODES, Tally, block_on, described, find_all, print};
use crate::human;
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Meta, Store};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_files::{Error, ErrorKind};
use phoebus_places::{Carried, Outcomes, shown};
use std::ffi::OsString;
use std::process::ExitCode;

/// Print the metadata of files and directories
///
/// Follows symbolic links; a dangling one is shown as a link. Times are in UTC. The host of a file computes its
/// checksum.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Files, directories or patterns
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Compute a checksum: CRC32C, ADLER32, MD5, SHA1, SHA256 or SHA512
    #[arg(long, value_name = "NAME")]
    checksum: Option<Algorithm>,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    block_on(async {
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
        for place in find_all(&mut stores, &args.places).await? {
            for key in tally.check(place.all().await).unwrap_or_default() {
                let Some((meta, sum)) = tally.note(look(&*place.store, &key, args.checksum).await) else { continue };
                print(&lines(&shown(&*place.store, &key), &meta, sum.as_ref(), args.json))?;
            }
        }
        Ok(tally.code())
    })
}

async fn look(store: &dyn Store, key: &Key, algorithm: Option<Algorithm>) -> Result<(Meta, Option<Sum>), Error> {
    let meta = match store.stat(key).await {
        Err(error) if error.kind() == ErrorKind::NotFound => match store.stat_link(key).await {
            // As a listing shows it.
            Ok(link) if link.kind == Kind::Link => {
                return if algorithm.is_none() { Ok((link, None)) } else { Err(error) };
            }
            _ => return Err(error),
        },
        meta => meta?,
    };
    let Some(algorithm) = algorithm else { return Ok((meta, None)) };
    let Some(size) = meta.size else {
        return Err(Error::Kind { name: shown(store, key), is: meta.kind.described(), expected: "a file" });
    };
    Ok((meta, Some(store.open(key).await?.checksum(algorithm, Extent::first(size)).await?)))
}

fn lines(name: &str, meta: &Meta, sum: Option<&Sum>, as_json: bool) -> String {
    if as_json {
        let mut value = described(name, meta);
        if let Some(sum) = sum {
            value["checksum"] = format!("{}:{sum}", sum.algorithm()).into();
        }
        return value.to_string();
    }
    let mut lines = format!("{name}\n  kind: {}", meta.kind.described());
    for (what, value) in [
        ("bytes", meta.size.map(|size| size.to_string())),
        ("modified", meta.modified.map(|time| human::time(time).0)),
        ("mode", meta.mode.map(|mode| format!("{mode:04o}"))),
        ("checksum", sum.map(|sum| format!("{} {sum}", sum.algorithm()))),
    ] {
        if let Some(value) = value {
            lines += &format!("\n  {what}: {value}");
        }
    }
    lines
}
