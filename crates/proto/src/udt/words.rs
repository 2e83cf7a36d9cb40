//! Big-endian words of 32 bits, of which all UDT packets consist.

/// Decodes the `N` big-endian words of `bytes`.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// Writes big-endian words and returns their length; `None` if they do not fit.
pub(super) fn write_words(out: &mut [u8], words: &[u32]) -> Option<usize> {
    let len = words.len() * 4;
    for (bytes, word) in out.get_mut(..len)?.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    Some(len)
}
