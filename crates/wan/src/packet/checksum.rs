//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// The Internet checksum of `bytes`, in which the checksum field is zero.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// The one's complement sum of `bytes` as big-endian 16-bit words, not complemented.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut words = bytes.chunks_exact(2);
    let whole: u32 = words.by_ref().map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let odd = words.remainder().first().map_or(0, |last| u32::from(*last) << 8);
    fold(whole + odd)
}

/// `sum`, with one of its words changed from `old` to `new`.
pub(crate) fn replace(sum: u16, old: u16, new: u16) -> u16 {
    fold(u32::from(sum) + u32::from(!old) + u32::from(new))
}

/// Folds the carries of a sum of up to 65537 words.
pub(crate) fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}
