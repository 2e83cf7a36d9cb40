//! Reads and writes PEM blocks (RFC 7468).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::{Error, PemObject, SectionKind};
use zeroize::Zeroizing;

/// Decodes the blocks of one kind in a text; other text and blocks of other kinds are skipped.
pub(crate) fn blocks(text: &[u8], wanted: SectionKind) -> impl Iterator<Item = Result<Vec<u8>, String>> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text).filter_map(move |section| match section {
        Ok((kind, der)) => (kind == wanted).then_some(Ok(der)),
        Err(error) => Some(Err(describe(&error))),
    })
}

/// Encodes one block. The text is wiped when dropped, since it may be a key.
pub(crate) fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let encoded = Zeroizing::new(STANDARD.encode(der));
    let mut text = Zeroizing::new(String::with_capacity(encoded.len() * 66 / 64 + 2 * label.len() + 64));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    // Base64 is ASCII, so any split is at a character boundary.
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Describes an error without quoting the text, which may be a key.
pub(crate) fn describe(error: &Error) -> String {
    match error {
        Error::MissingSectionEnd { .. } => "a PEM block has no -----END line".to_owned(),
        Error::IllegalSectionStart { .. } => "a -----BEGIN line is malformed".to_owned(),
        Error::Base64Decode(_) => "a PEM block is not base64".to_owned(),
        _ => "is not PEM".to_owned(),
    }
}
