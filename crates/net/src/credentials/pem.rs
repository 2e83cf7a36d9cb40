//! Reads certificates and keys from PEM files (RFC 7468); errors name the file and line.

use super::CredentialsError;
use rustls::pki_types::pem::{self, SectionKind};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Largest file that is read, in bytes: four times a system's complete set of trust anchors.
pub(super) const FILE_MAX: u64 = 1 << 20;

/// All certificates in the file, in the file's order; at least one. Sections of other kinds are skipped.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    const EXPECTED: &str = "certificates";
    let text = read(file, EXPECTED, |_| Ok(()))?;
    let mut found = Vec::new();
    let mut others = false;
    sections(file, &text, EXPECTED, |kind, der| match kind {
        SectionKind::Certificate => found.push(CertificateDer::from(der)),
        _ => others = true,
    })?;
    if found.is_empty() {
        let found = if others { "no certificate but something else" } else { "no certificate" };
        return Err(CredentialsError::Absent { file: file.into(), found, expected: EXPECTED, label: "CERTIFICATE" });
    }
    Ok(found)
}

/// All lists of revoked certificates in the file; at least one. Sections of other kinds are skipped.
pub(super) fn revocation_lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialsError> {
    const EXPECTED: &str = "lists of revoked certificates (CRL)";
    let text = read(file, EXPECTED, |_| Ok(()))?;
    let mut found = Vec::new();
    sections(file, &text, EXPECTED, |kind, der| {
        if kind == SectionKind::Crl {
            found.push(CertificateRevocationListDer::from(der));
        }
    })?;
    if found.is_empty() {
        let found = "no list of revoked certificates";
        return Err(CredentialsError::Absent { file: file.into(), found, expected: EXPECTED, label: "X509 CRL" });
    }
    Ok(found)
}

/// The single private key in the file, which only its owner may read.
pub(super) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    const EXPECTED: &str = "one private key";
    let text = read(file, EXPECTED, |opened| {
        let mode = opened.metadata().map_err(|source| CredentialsError::Read { file: file.into(), source })?;
        let mode = mode.permissions().mode() & 0o777;
        if mode & 0o077 == 0 { Ok(()) } else { Err(CredentialsError::Exposed { file: file.into(), mode }) }
    })?;
    if text.windows(9).any(|window| window == b"ENCRYPTED") {
        return Err(CredentialsError::Encrypted { file: file.into() });
    }
    let mut found = Vec::new();
    sections(file, &text, EXPECTED, |kind, der| match kind {
        SectionKind::PrivateKey => found.push(PrivateKeyDer::Pkcs8(der.into())),
        SectionKind::RsaPrivateKey => found.push(PrivateKeyDer::Pkcs1(der.into())),
        SectionKind::EcPrivateKey => found.push(PrivateKeyDer::Sec1(der.into())),
        _ => {}
    })?;
    match (found.pop(), found.is_empty()) {
        (Some(key), true) => Ok(key),
        (Some(_), false) => Err(CredentialsError::Unusable {
            file: file.into(),
            problem: format!("holds more than one private key; expected {EXPECTED}"),
        }),
        (None, _) => Err(CredentialsError::Absent {
            file: file.into(),
            found: "no private key",
            expected: EXPECTED,
            label: "PRIVATE KEY",
        }),
    }
}

fn read(
    file: &Path,
    expected: &'static str,
    check: impl FnOnce(&File) -> Result<(), CredentialsError>,
) -> Result<Vec<u8>, CredentialsError> {
    let failed = |source| CredentialsError::Read { file: file.into(), source };
    let opened = File::open(file).map_err(failed)?;
    check(&opened)?;
    let mut text = Vec::new();
    opened.take(FILE_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_MAX {
        return Err(CredentialsError::Large { file: file.into(), max: FILE_MAX, expected });
    }
    Ok(text)
}

fn sections(
    file: &Path,
    text: &[u8],
    expected: &'static str,
    mut each: impl FnMut(SectionKind, Vec<u8>),
) -> Result<(), CredentialsError> {
    let mut reader = Counted { text, lines: 0 };
    loop {
        let before = reader.lines;
        let problem = match pem::from_buf(&mut reader) {
            Ok(Some((kind, der))) => {
                each(kind, der);
                continue;
            }
            Ok(None) => return Ok(()),
            Err(pem::Error::MissingSectionEnd { .. }) => "the section that begins here has no END line",
            Err(pem::Error::IllegalSectionStart { .. }) => "this BEGIN line does not end with five dashes",
            Err(pem::Error::Base64Decode(_)) => "the section that begins here is not base64",
            Err(_) => "the section that begins here cannot be read",
        };
        return Err(CredentialsError::Pem {
            file: file.into(),
            line: last_begin(text, before, reader.lines),
            problem,
            expected,
        });
    }
}

/// The last BEGIN line after line `from` and up to line `to`, counted from 1.
fn last_begin(text: &[u8], from: usize, to: usize) -> usize {
    let lines = text.split(|&byte| byte == b'\n').enumerate().take(to.max(from + 1)).skip(from);
    lines.filter(|(_, line)| line.starts_with(b"-----BEGIN ")).map(|(index, _)| index + 1).last().unwrap_or(from + 1)
}

/// A text that counts the lines read from it.
struct Counted<'a> {
    text: &'a [u8],
    lines: usize,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.text.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.text[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Counted<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.text)
    }

    fn consume(&mut self, n: usize) {
        let (read, rest) = self.text.split_at(n);
        self.lines += read.iter().filter(|&&byte| byte == b'\n').count();
        self.text = rest;
    }
}
