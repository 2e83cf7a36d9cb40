//! PROXY headers from anyone: nothing panics, no byte is read beyond the header, how the bytes are parted changes nothing, and what
//! was read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::proxy_header::{HEADER_MAX, HeaderError, HeaderReader, Origin, encode};

/// Reads `input` in parts of at most `part` bytes. Returns what the header says, and how many bytes were left.
fn read(mut input: &[u8], part: usize) -> Result<Option<(Origin, usize)>, HeaderError> {
    let mut reader = HeaderReader::default();
    let mut taken = 0;
    while !input.is_empty() {
        let space = reader.space();
        let n = space.len().min(input.len()).min(part);
        assert!(n > 0);
        space[..n].copy_from_slice(&input[..n]);
        input = &input[n..];
        taken += n;
        assert!(taken <= HEADER_MAX);
        if let Some(origin) = reader.received(n)? {
            return Ok(Some((origin, input.len())));
        }
    }
    Ok(None)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (part, bytes) = input;
    let whole = read(bytes, usize::MAX);
    assert_eq!(whole, read(bytes, usize::from(part).max(1)));
    if let Ok(Some((Origin::Client(ends), _))) = whole {
        let written = encode(Some(ends), &[]).expect("two addresses fit");
        assert!(matches!(read(&written, usize::MAX), Ok(Some((Origin::Client(_), 0)))));
    }
});
