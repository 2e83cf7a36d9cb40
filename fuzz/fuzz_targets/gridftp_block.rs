//! Feeds any bytes to connections in extended block mode: no data is taken twice or beyond 64 bits, and the count of ends holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::gridftp::block::{Channel, MAX_CHANNELS, Tally, Wants};

fuzz_target!(|data: &[u8]| {
    let (mut channel, mut tally) = (Channel::new(), Tally::new());
    let mut rest = data;
    while !rest.is_empty() {
        let said = match channel.wants() {
            Wants::Data { offset, len } => {
                let taken = rest.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                assert!(taken > 0 && offset.checked_add(len).is_some());
                rest = &rest[taken..];
                channel.took(taken as u64).into_iter().collect()
            }
            Wants::Header(wanted) => {
                let Ok((taken, said)) = channel.header(rest) else { return };
                assert!(taken > 0 && taken <= wanted);
                rest = &rest[taken..];
                said
            }
            Wants::Nothing => match channel.again() {
                Some(again) => {
                    channel = again;
                    Vec::new()
                }
                None => return,
            },
        };
        for said in said {
            if tally.count(said).is_err() {
                return;
            }
        }
    }
    let _ = (channel.closed(), tally.is_complete(), MAX_CHANNELS);
});
