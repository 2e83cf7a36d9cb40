//! Signs the certificates and requests that this crate writes.

use rustls::SignatureScheme;
use rustls::pki_types::alg_id;

use crate::credential::Key;
use crate::der::sequence;

/// Encodes `SEQUENCE { body, algorithm, signature }`, the form of certificates and requests.
pub(crate) fn write_signed(body: &[u8], key: &Key) -> Result<Vec<u8>, rustls::Error> {
    let unknown = || rustls::Error::General("its kind is not known here".into());
    let (scheme, identifier) = algorithm(key).ok_or_else(unknown)?;
    let signature = key.signer(&[scheme]).ok_or_else(unknown)?.sign(body)?;
    Ok(yasna::construct_der(|writer| {
        writer.write_sequence(|whole| {
            whole.next().write_der(body);
            whole.next().write_der(&sequence(identifier));
            whole.next().write_bitvec_bytes(&signature, signature.len() * 8);
        });
    }))
}

/// The signature scheme of a key, and the content of its AlgorithmIdentifier.
pub(crate) fn algorithm(key: &Key) -> Option<(SignatureScheme, &'static [u8])> {
    const KNOWN: [(SignatureScheme, &rustls::pki_types::AlgorithmIdentifier); 4] = [
        (SignatureScheme::ECDSA_NISTP256_SHA256, &alg_id::ECDSA_SHA256),
        (SignatureScheme::ECDSA_NISTP384_SHA384, &alg_id::ECDSA_SHA384),
        (SignatureScheme::RSA_PKCS1_SHA256, &alg_id::RSA_PKCS1_SHA256),
        (SignatureScheme::ED25519, &alg_id::ED25519),
    ];
    KNOWN.iter().find(|(scheme, _)| key.signer(&[*scheme]).is_some()).map(|&(scheme, id)| {
        let id: &'static [u8] = id;
        (scheme, id)
    })
}
