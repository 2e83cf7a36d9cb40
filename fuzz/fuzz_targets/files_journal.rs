//! Feeds any bytes to the reader of journals; what is read prints to what reads the same, and names no bytes twice or beyond.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_files::journal::{header, read, record};

fuzz_target!(|data: &[u8]| {
    let Some(journal) = read(data) else { return };
    let size = journal.header.size;
    assert!(journal.parts.ranges.iter().all(|extent| extent.end() <= size));
    let mut out = Vec::new();
    let check = header(&journal.header, &mut out);
    record(&journal.parts, check, &mut out);
    assert_eq!(read(&out), Some(journal));
});
