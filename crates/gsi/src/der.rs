//! A minimal DER reader and writer, for places where the original bytes must be preserved.

/// Tag of a SEQUENCE.
pub(crate) const SEQUENCE: u8 = 0x30;
/// Tag of a BIT STRING.
pub(crate) const BIT_STRING: u8 = 0x03;

/// Splits off an element with this tag: its content, and the bytes behind it. `None` if the tag differs, the
/// element is incomplete, or its length has more than four bytes.
pub(crate) fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, _) = der.split_first()?;
    let (head, length) = extent(der)?;
    let whole = der.get(..head.checked_add(length)?)?;
    (first == tag).then_some((&whole[head..], &der[whole.len()..]))
}

/// Length of the header and of the content of the element at the start of `der`; `None` while the header is
/// incomplete.
pub(crate) fn extent(der: &[u8]) -> Option<(usize, usize)> {
    let &length = der.get(1)?;
    if length < 0x80 {
        return Some((2, usize::from(length)));
    }
    let count = usize::from(length & 0x7f);
    if !(1..=4).contains(&count) {
        return Some((2, usize::MAX - 2));
    }
    let bytes = der.get(2..2 + count)?;
    Some((2 + count, bytes.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte))))
}

/// Encodes a SEQUENCE with this content.
pub(crate) fn sequence(content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().take_while(|&&byte| byte == 0).count()..];
    let mut der = vec![SEQUENCE];
    match significant {
        [] => der.push(0),
        [short] if *short < 0x80 => der.push(*short),
        long => {
            der.push(0x80 | long.len() as u8);
            der.extend_from_slice(long);
        }
    }
    der.extend_from_slice(content);
    der
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_elements_are_split_off() {
        assert_eq!(element(&[0x30, 2, 1, 2, 9], SEQUENCE), Some((&[1, 2][..], &[9][..])));
        assert_eq!(element(&[0x30, 0x81, 2, 1, 2], SEQUENCE), Some((&[1, 2][..], &[][..])));
        assert_eq!(element(&[0x30, 3, 1, 2], SEQUENCE), None);
        assert_eq!(element(&[0x31, 2, 1, 2], SEQUENCE), None);
        assert_eq!(element(&[0x30, 0x80, 0, 0], SEQUENCE), None);
        assert_eq!(element(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], SEQUENCE), None);
        assert_eq!(extent(&[0x30]), None);
        assert_eq!(extent(&[0x30, 0x82, 1]), None);
        assert_eq!(extent(&[0x30, 0x82, 1, 0]), Some((4, 256)));
    }

    #[test]
    fn sequence_keeps_its_content() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; length];
            assert_eq!(element(&sequence(&content), SEQUENCE), Some((&content[..], &[][..])));
        }
    }
}
