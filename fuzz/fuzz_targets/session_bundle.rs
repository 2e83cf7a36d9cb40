//! Feeds any headers to the lanes of a bundle, as a relay does, with lanes that join and bytes that are taken at any point. What is
//! taken has to be a stream: each byte where it was announced, and no end before one was announced there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::session::bundle::{Gather, Next, STREAMS_MAX};
use phoebus_proto::session::frame::{Frame, FrameState, HEADER_LEN, Role};

fuzz_target!(|data: &[u8]| {
    let mut gather = Gather::default();
    // For each lane, what was announced there last: where it begins and ends.
    let mut lanes: Vec<(FrameState, u64, u64)> = Vec::new();
    let mut end = None;
    let mut complete = false;
    for chunk in data.chunks_exact(HEADER_LEN + 2) {
        let (what, lane) = (chunk[0] % 4, usize::from(chunk[1]));
        let near = u64::from(chunk[15]);
        if what == 0 && !complete && lanes.len() < usize::from(STREAMS_MAX) {
            assert_eq!(gather.join(), lanes.len());
            lanes.push((FrameState::striped(Role::Acceptor), 0, 0));
        } else if what == 1 {
            complete = true;
        }
        let Some((exchange, from, to)) = lanes.get_mut(lane) else { continue };
        if what > 1 && gather.wants(lane) {
            let mut header: [u8; HEADER_LEN] = chunk[2..].try_into().expect("the chunk has this length");
            if what == 2 {
                // One that has better chances: a short frame near where the stream stands.
                header = [1 + chunk[2] % 2, 0, 0, 0, 0, 0, 0, (1 - chunk[2] % 2) * chunk[14], 0, 0, 0, 0, 0, 0, 0, 0];
                header[8..].copy_from_slice(&gather.position().wrapping_add(near).to_be_bytes());
            }
            let Ok(frame) = exchange.receive(&header) else { return };
            let position = exchange.bytes().1;
            let heeded = match frame {
                Frame::Data { len } => {
                    (*from, *to) = (position - u64::from(len), position);
                    gather.data(lane, *from, len)
                }
                Frame::Shutdown => {
                    end.get_or_insert(position);
                    gather.shutdown(lane, position)
                }
                _ => Ok(()),
            };
            if heeded.is_err() {
                return;
            }
        }
        let position = gather.position();
        match gather.next(complete) {
            Ok(Next::Payload { lane, len }) => {
                let (_, from, to) = &lanes[lane];
                assert!(*from <= position && position + u64::from(len) == *to && len > 0);
                let n = u32::from(chunk[14]);
                gather.took(lane, n);
                assert_eq!(gather.position(), position + u64::from(n.min(len)));
                assert!(gather.wants(lane) == (n >= len));
            }
            Ok(Next::End) => assert_eq!(end, Some(position)),
            Ok(Next::Wait) => {
                let wanted = (0..lanes.len()).any(|lane| gather.wants(lane));
                assert!(wanted || !complete, "it waits for nothing");
            }
            Err(_) => return,
        }
    }
});
