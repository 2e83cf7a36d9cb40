//! PEM (RFC 7468): blocks of one kind out of a text, and blocks written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::{Error, PemObject, SectionKind};
use zeroize::Zeroizing;

/// The blocks of one kind in a text, decoded; text around them, and blocks of other kinds, are passed over.
pub(crate) fn blocks(text: &[u8], wanted: SectionKind) -> impl Iterator<Item = Result<Vec<u8>, String>> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text).filter_map(move |section| match section {
        Ok((kind, der)) => (kind == wanted).then_some(Ok(der)),
        Err(error) => Some(Err(describe(&error))),
    })
}

/// One block. Wiped when dropped, since it may be a key.
pub(crate) fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let encoded = Zeroizing::new(STANDARD.encode(der));
    let mut text = Zeroizing::new(String::with_capacity(encoded.len() * 66 / 64 + 2 * label.len() + 64));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    // Base64 is ASCII, so that every cut is between characters.
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

/// What is wrong with a text; never the text itself, which may be a key.
pub(crate) fn describe(error: &Error) -> String {
    match error {
        Error::MissingSectionEnd { .. } => "a PEM block has no -----END line".to_owned(),
        Error::IllegalSectionStart { .. } => "a -----BEGIN line is malformed".to_owned(),
        Error::Base64Decode(_) => "a PEM block is not base64".to_owned(),
        _ => "is not PEM".to_owned(),
    }
}
