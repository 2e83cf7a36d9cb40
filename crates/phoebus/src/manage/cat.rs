//! `phoebus cat`: files, or a range of them, on standard output.

use super::{CODES, Tally, block_on, find_all};
use crate::cp::{Part, to_standard_output};
use crate::exit::Exit;
use crate::place::FarArgs;
use anyhow::Result;
use phoebus_files::range::Extent;
use phoebus_files::{TransferOptions, Verify};
use phoebus_places::{Carried, Outcomes};
use phoebus_proto::units::ByteSize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Write files to standard output
///
/// What comes from a server is verified at the end: heed the exit code.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Files or patterns
    #[arg(value_name = "PLACE", required = true)]
    places: Vec<OsString>,
    /// Begin at this byte
    #[arg(long, value_name = "BYTES")]
    offset: Option<ByteSize>,
    /// Write so many bytes, and not all to the end
    #[arg(long, value_name = "BYTES")]
    length: Option<ByteSize>,
    #[command(flatten)]
    far: FarArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let part = Part { offset: args.offset.unwrap_or_default().0, length: args.length.map(|length| length.0) };
    if Extent::new(part.offset, part.length.unwrap_or(0)).is_none() {
        return Err(Exit::usage("--offset and --length: a range within 64 bits was expected"));
    }
    crate::standard::check_output()?;
    block_on(async {
        // Files without a checksum can be shown all the same.
        let how = TransferOptions { verify: Verify::Possible, ..TransferOptions::default() };
        let (mut stores, mut tally) = (args.far.stores(Carried::default()), Tally::default());
        for place in find_all(&mut stores, &args.places).await? {
            for key in tally.check(place.all().await).unwrap_or_default() {
                tally.note(to_standard_output(&*place.store, &key, part, &how).await?);
            }
        }
        Ok(tally.code())
    })
}
