//! Who is trusted: authorities, less what they have revoked (RFC 5280 §5), and peers whose certificate is pinned.
//!
//! A pin stands for one name. A peer of this name has to show the pinned certificate, whatever authorities say of others. And whoever
//! shows it has this name, and no other, whatever the certificate says.

use super::certificate::{date, instant, names_in};
use super::chain::{Anchored, ChainVerifier};
use super::pinned::{Fingerprint, fingerprint};
use super::{CredentialsError, pem};
use phoebus_proto::hex::hex;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, OtherError};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use x509_parser::x509::X509Version;

/// How long before a list of revoked certificates is too old the warnings start: authorities issue new ones some days before.
const STALE_WARNING: Duration = Duration::from_secs(48 * 3600);

/// Whom to trust, by files and fingerprints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// A PEM file with the certificates of authorities that may vouch for peers; none if all peers are pinned.
    pub authorities: Option<PathBuf>,
    /// PEM files with what those authorities have revoked. Certificates of an authority without a list count as they are.
    pub revoked: Vec<PathBuf>,
    /// Peers that show a certificate of their own, by name.
    pub pins: BTreeMap<String, Fingerprint>,
}

/// The same, loaded.
#[derive(Debug)]
pub(super) struct Trusted {
    authorities: Vec<CertificateDer<'static>>,
    anchored: Option<Anchored>,
    lists: Vec<RevocationList>,
    pins: BTreeMap<String, Fingerprint>,
}

#[derive(Debug)]
struct RevocationList {
    file: PathBuf,
    der: CertificateRevocationListDer<'static>,
    /// When the next list is due; this one counts no longer then.
    next_update: Option<SystemTime>,
}

impl Trusted {
    pub(super) fn load(trust: &Trust) -> Result<Self, CredentialsError> {
        let authorities = trust.authorities.as_deref().map(pem::certificates).transpose()?.unwrap_or_default();
        let mut lists = Vec::new();
        for file in &trust.revoked {
            for (index, der) in pem::revocation_lists(file)?.into_iter().enumerate() {
                lists.push(RevocationList::read(file, index, der, &authorities)?);
            }
        }
        let ders = || lists.iter().map(|list| list.der.clone()).collect::<Vec<_>>();
        let anchored = trust.authorities.as_deref().map(|file| Anchored::new(file, &authorities, &ders));
        Ok(Self { anchored: anchored.transpose()?, authorities, lists, pins: trust.pins.clone() })
    }

    /// The certificates of the authorities.
    pub(super) fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// Whether both trust the same.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let of = |trusted: &Self| trusted.lists.iter().map(|list| list.der.clone()).collect::<Vec<_>>();
        self.authorities == other.authorities && self.pins == other.pins && of(self) == of(other)
    }

    /// The names that a peer with this certificate has, which was verified.
    pub(super) fn names(&self, leaf: &CertificateDer<'_>) -> Vec<String> {
        let shown = fingerprint(leaf);
        let pinned = self.pins.iter().filter(|(_, pin)| **pin == shown).map(|(name, _)| name.clone());
        match pinned.collect::<Vec<_>>() {
            names if !names.is_empty() => names,
            _ => names_in(leaf).into_iter().filter(|name| !self.pins.contains_key(name)).collect(),
        }
    }

    /// A warning for the owner if, at `now`, a list of revoked certificates is too old, or will be soon.
    pub(super) fn warning(&self, now: SystemTime) -> Option<String> {
        let old = |list: &RevocationList| {
            let (due, file) = (list.next_update?, list.file.display());
            let effect = "certificates of its authority are refused without a newer one";
            match due.duration_since(now) {
                Ok(left) if left > STALE_WARNING => None,
                Ok(_) => {
                    Some(format!("the list of revoked certificates in {file} counts until {}: {effect}", date(due)))
                }
                Err(_) => {
                    Some(format!("the list of revoked certificates in {file} is too old since {}: {effect}", date(due)))
                }
            }
        };
        self.lists.iter().find_map(old)
    }
}

impl RevocationList {
    fn read(
        file: &Path,
        index: usize,
        der: CertificateRevocationListDer<'static>,
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, CredentialsError> {
        let unusable = |problem: &str| CredentialsError::Unusable {
            file: file.into(),
            problem: format!("the list of revoked certificates number {} {problem}", index + 1),
        };
        let (_, read) = x509_parser::parse_x509_crl(&der).map_err(|_| unusable("cannot be read"))?;
        if read.version().is_none_or(|version| version != X509Version::V2) {
            return Err(unusable("is of version 1; expected version 2, which openssl ca makes with a crlnumber"));
        }
        if read.next_update().is_none() {
            return Err(unusable("does not say when the next one is due; expected a date in nextUpdate"));
        }
        let is_issuer = |authority: &CertificateDer<'_>| {
            let parsed = x509_parser::parse_x509_certificate(authority);
            parsed.is_ok_and(|(_, authority)| authority.subject().as_raw() == read.issuer().as_raw())
        };
        if !authorities.iter().any(is_issuer) {
            return Err(unusable(&format!("is of {}, which is none of the authorities", read.issuer())));
        }
        let next_update = read.next_update().map(instant).transpose().map_err(unusable)?;
        Ok(Self { file: file.into(), next_update, der })
    }
}

/// A peer has shown another certificate than the pinned one.
#[derive(thiserror::Error)]
#[error("its certificate is not the pinned one, but has the fingerprint {0}")]
struct NotPinned(String);

// QUIC's errors have the debug text of what TLS reports.
impl fmt::Debug for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn leaf_sha256(leaf: &CertificateDer<'_>) -> String {
    hex(&fingerprint(leaf)).to_string()
}

impl ChainVerifier for Trusted {
    fn verify_server(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        match (self.pins.get(&*name.to_str().to_ascii_lowercase()), &self.anchored) {
            (Some(pin), _) if fingerprint(leaf) == *pin => Ok(()),
            (Some(_), _) => Err(CertificateError::Other(OtherError(Arc::new(NotPinned(leaf_sha256(leaf))))).into()),
            (None, Some(anchored)) => anchored.verify_server(leaf, rest, name, ocsp, now),
            (None, None) => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_client(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let shown = fingerprint(leaf);
        match &self.anchored {
            _ if self.pins.values().any(|pin| *pin == shown) => Ok(()),
            Some(anchored) => anchored.verify_client(leaf, rest, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }
}
