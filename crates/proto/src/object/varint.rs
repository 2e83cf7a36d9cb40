//! Unsigned numbers in as few bytes as they need: seven bits in each, the lowest first, and the highest bit says that more
//! follow (LEB128).

/// Appends `value` to `out`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front of `bytes`. `None` if there is none of at most 64 bits.
pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn taken_numbers_are_those_that_were_put(values in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| put(&mut bytes, *value));
            let mut rest = &bytes[..];
            for value in values {
                prop_assert_eq!(take(&mut rest), Some(value));
            }
            prop_assert_eq!(take(&mut rest), None);
        }
    }

    #[test]
    fn longer_numbers_are_refused() {
        assert_eq!(take(&mut &[0xff; 12][..]), None);
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]), None);
    }
}
