//! Bytes as hexadecimal digits.

/// `bytes` as lower-case digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that `text` writes, if it is hexadecimal digits in pairs and nothing else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let pairs = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok());
    if digits { pairs.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_bytes() {
        assert_eq!(unhex(&hex(&[0, 9, 10, 255])), Some(vec![0, 9, 10, 255]));
        for text in ["0", "0g", "+1", " 1", "é"] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
