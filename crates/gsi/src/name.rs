//! Distinguished names, as in certificates and in the text form of Grid files (`/DC=org/DC=example/CN=Jane
//! Doe`).
//!
//! The text form is that of OpenSSL's `X509_NAME_oneline`, from which every grid-mapfile, signing policy and
//! log was written.

use std::fmt;

use x509_parser::x509::X509Name;

/// A distinguished name from a certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    der: Vec<u8>,
    text: String,
    attributes: Vec<Attribute>,
}

/// One attribute. The string type of the value is omitted: a name that another program encoded differently is
/// still the same name.
#[derive(Clone, PartialEq, Eq)]
struct Attribute {
    /// Index of the relative distinguished name that contains it, so that `a+b` differs from `a,b`.
    level: usize,
    kind: Vec<u8>,
    value: Vec<u8>,
}

/// Attribute type `commonName`, 2.5.4.3, as DER content.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

impl Name {
    pub(crate) fn new(name: &X509Name<'_>) -> Self {
        let mut attributes = Vec::new();
        let mut text = String::new();
        for (level, relative) in name.iter_rdn().enumerate() {
            for attribute in relative.iter() {
                let kind = attribute.attr_type().as_bytes().to_vec();
                let value = attribute.attr_value().data.to_vec();
                text.push('/');
                match short_name(&kind) {
                    Some(short) => text.push_str(short),
                    None => text.push_str(&attribute.attr_type().to_id_string()),
                }
                text.push('=');
                write_value(&mut text, &value);
                attributes.push(Attribute { level, kind, value });
            }
        }
        Self { der: name.as_raw().to_vec(), text, attributes }
    }

    /// The DER encoding, byte for byte as in the certificate.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The text form, as OpenSSL writes it on one line; bytes beyond printable ASCII are written `\xHH`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether both names are equal, regardless of their string types.
    pub fn is(&self, other: &Name) -> bool {
        self.attributes == other.attributes
    }

    /// Whether this is `base` followed by one common name, as the subject of a proxy must be with its
    /// issuer's (RFC 3820, §3.4).
    pub fn adds_common_name_to(&self, base: &Name) -> bool {
        self.last_common_name().is_some()
            && self.attributes.len() == base.attributes.len() + 1
            && self.attributes.starts_with(&base.attributes)
            && self.attributes.last().map(|a| a.level) != base.attributes.last().map(|a| a.level)
    }

    /// The value of the last attribute, if it is a common name.
    pub(crate) fn last_common_name(&self) -> Option<&[u8]> {
        self.attributes.last().filter(|a| a.kind == COMMON_NAME).map(|a| a.value.as_slice())
    }

    /// All common names, in order.
    pub(crate) fn common_names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.attributes.iter().filter(|a| a.kind == COMMON_NAME).map(|a| a.value.as_slice())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// Whether two names in text form are equal to Grid software: case is ignored, and the spellings of e-mail
/// address and user identifier are equivalent.
pub fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || canonical(one) == canonical(other)
}

/// The canonical form in which names are compared.
pub(crate) fn canonical(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let mut canonical = String::with_capacity(lower.len());
    let mut rest = lower.as_str();
    while let Some(slash) = rest.find('/') {
        let (before, after) = rest.split_at(slash + 1);
        canonical.push_str(before);
        rest = after;
        for (spelling, usual) in [("uid=", "userid="), ("e=", "emailaddress="), ("email=", "emailaddress=")] {
            if let Some(value) = after.strip_prefix(spelling) {
                canonical.push_str(usual);
                rest = value;
                break;
            }
        }
    }
    canonical.push_str(rest);
    canonical
}

fn write_value(text: &mut String, value: &[u8]) {
    for &byte in value {
        match byte {
            b' '..=b'~' => text.push(byte as char),
            other => text.push_str(&format!("\\x{other:02X}")),
        }
    }
}

/// OpenSSL's short names of attribute types in certificates; for `None` the dotted number is written.
fn short_name(kind: &[u8]) -> Option<&'static str> {
    Some(match kind {
        [0x55, 0x04, last] => match last {
            3 => "CN",
            4 => "SN",
            5 => "serialNumber",
            6 => "C",
            7 => "L",
            8 => "ST",
            9 => "street",
            10 => "O",
            11 => "OU",
            12 => "title",
            13 => "description",
            17 => "postalCode",
            41 => "name",
            42 => "GN",
            43 => "initials",
            44 => "generationQualifier",
            46 => "dnQualifier",
            65 => "pseudonym",
            97 => "organizationIdentifier",
            _ => return None,
        },
        // 0.9.2342.19200300.100.1.25 and .1
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19] => "DC",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01] => "UID",
        // 1.2.840.113549.1.9.1 and .2
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01] => "emailAddress",
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x02] => "unstructuredName",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_spellings_are_equal() {
        assert!(same("/O=Grid/CN=Jane", "/o=grid/cn=JANE"));
        assert!(same("/O=Grid/Email=a@b", "/O=Grid/emailAddress=a@b"));
        assert!(same("/O=Grid/E=a@b", "/O=Grid/emailAddress=a@b"));
        assert!(same("/DC=org/UID=jane", "/DC=org/USERID=jane"));
        assert!(!same("/O=Grid/CN=Jane", "/O=Grid/CN=Janet"));
        assert!(!same("/O=Grid/CN=Jane", "/O=Grid/CN=Jane/CN=proxy"));
    }
}
