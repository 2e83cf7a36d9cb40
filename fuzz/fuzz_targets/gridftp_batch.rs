//! Feeds any bytes to the reader of batches, in two pieces: it reads what one piece would give, and keeps to its limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::gridftp::batch::{Decoder, MAX_FILES, MAX_PATH, MAX_SIZE, Record};

fn read(pieces: &[&[u8]]) -> (Vec<Record>, bool) {
    let (mut decoder, mut records) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.take() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(_) => return (records, false),
            }
        }
    }
    let ended = decoder.finish().is_ok();
    (records, ended)
}

fuzz_target!(|data: &[u8]| {
    let (cut, data) = data.split_first().map_or((0, data), |(first, rest)| (usize::from(*first), rest));
    let batch = [b"PHB1", data].concat();
    let (head, tail) = batch.split_at(cut.min(batch.len()));
    let whole = read(&[&batch]);
    assert_eq!(whole, read(&[head, tail]));
    assert!(whole.0.len() <= MAX_FILES + 1);
    for record in whole.0 {
        if let Record::File(file) = record {
            assert!(file.path.len() <= MAX_PATH && file.bytes.len() <= MAX_SIZE as usize);
        }
    }
});
