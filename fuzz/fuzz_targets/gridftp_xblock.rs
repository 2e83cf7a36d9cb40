//! Feeds any bytes to a connection of MODE X and to what listens to its receiver: no data beyond 64 bits is taken, nothing after the end,
//! and lines have a bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::gridftp::block::Wants;
use phoebus_proto::gridftp::xblock::{Channel, Words};

fuzz_target!(|data: &[u8]| {
    let (mut channel, mut rest) = (Channel::new(), data);
    while !rest.is_empty() {
        let taken = match channel.wants() {
            Wants::Data { offset, len } => {
                assert!(len > 0 && offset.checked_add(len).is_some());
                let taken = rest.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                channel.took(taken as u64);
                taken
            }
            Wants::Header(wanted) => {
                let Ok(taken) = channel.header(rest) else { break };
                assert!(taken > 0 && taken <= wanted);
                taken
            }
            Wants::Nothing => {
                assert!(channel.closed().is_ok() && channel.header(rest).is_err());
                break;
            }
        };
        rest = &rest[taken..];
    }
    let mut words = Words::default();
    for piece in data.chunks(7) {
        if words.push(piece).is_err() {
            return;
        }
        while words.take().is_some() {}
    }
});
