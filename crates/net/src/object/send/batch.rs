//! Batches of sealed datagrams.

use super::super::seal::Sealer;
use super::state::State;
use bytes::Bytes;
use phoebus_proto::object::Transmit;
use phoebus_proto::object::packet::{HEADER_LEN, Kind};
use phoebus_proto::object::parity::{self, ParityNumber};
use std::time::Duration;

/// Fills `out` with sealed datagrams that are due, all but the last of `segment` bytes. Returns their length.
pub(super) fn fill(state: &mut State, seal: &mut Sealer, now: Duration, (out, segment): (&mut [u8], usize)) -> usize {
    let mut len = 0;
    while out.len() - len >= segment {
        let Some(transmit) = state.sender.poll_transmit(now) else { break };
        let at = transmit.header.packet.chunk.checked_sub(state.first);
        let chunk = at.and_then(|at| state.chunks.get(at as usize));
        let bytes = match transmit.header.kind {
            Kind::Parity => parity_packet(&mut state.parity, chunk, &transmit),
            _ => chunk.and_then(|chunk| chunk.get(transmit.offset..transmit.offset + transmit.len)),
        };
        let Some(bytes) = bytes else {
            debug_assert!(false, "a packet of no chunk");
            break;
        };
        let whole = HEADER_LEN + transmit.len + seal.len();
        let datagram = &mut out[len..len + whole];
        datagram[..HEADER_LEN].copy_from_slice(&transmit.header.encode());
        datagram[HEADER_LEN..HEADER_LEN + transmit.len].copy_from_slice(bytes);
        if !seal.seal(&transmit.header, datagram) {
            break;
        }
        len += whole;
        if whole < segment {
            break;
        }
    }
    len
}

/// The bytes of a parity packet. Those of a chunk are computed once, since they are sent one after the other.
fn parity_packet<'a>(
    computed: &'a mut Option<(u64, Vec<Vec<u8>>)>,
    chunk: Option<&Bytes>,
    transmit: &Transmit,
) -> Option<&'a [u8]> {
    let packet = transmit.header.packet;
    let ParityNumber { number, of } = ParityNumber::from_index(packet.index)?;
    if computed.as_ref().is_none_or(|(of_chunk, all)| *of_chunk != packet.chunk || all.len() != of as usize) {
        *computed = Some((packet.chunk, parity::encode(chunk?, transmit.len, of as usize)?));
    }
    computed.as_ref()?.1.get(number as usize).map(Vec::as_slice)
}
