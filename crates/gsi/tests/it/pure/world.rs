//! An authority, a host and a user, made in memory. Their certificates are valid for so long that only `NOW`
//! and explicit times matter.

use std::sync::{Arc, LazyLock};

use phoebus_gsi::certificate::Certificate;
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::credential::{Credential, Key, provider};
use phoebus_gsi::trust::policy::SigningPolicy;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The current time of all tests, in seconds since 1970.
pub(crate) const NOW: i64 = 1_800_000_000;
pub(crate) const USER: &str = "/O=Grid/OU=Test/CN=Test User";
pub(crate) const HOST: &str = "dtn.example.org";

pub(crate) struct World {
    pub(crate) trust: Arc<TrustStore>,
    pub(crate) user: Credential,
    pub(crate) host: Credential,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

/// Shared by all tests: generating keys takes time.
pub(crate) static WORLD: LazyLock<World> = LazyLock::new(World::new);

fn parameters(common_name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new([]).unwrap();
    let mut name = DistinguishedName::new();
    for (kind, value) in [
        (DnType::OrganizationName, "Grid"),
        (DnType::OrganizationalUnitName, "Test"),
        (DnType::CommonName, common_name),
    ] {
        name.push(kind, value);
    }
    parameters.distinguished_name = name;
    parameters
}

impl World {
    fn new() -> Self {
        let mut root = parameters("Test CA");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = Certificate::parse(root.self_signed(&key).unwrap().der()).unwrap();
        let mut trust = TrustStore::new(MissingPolicy::Refuse);
        trust.add_authority(&certificate).unwrap();
        trust.add_policy(
            SigningPolicy::parse(
                "access_id_CA X509 '/O=Grid/OU=Test/CN=Test CA'\npos_rights globus CA:sign\n\
                 cond_subjects globus '\"/O=Grid/OU=Test/*\"'\n",
                "test",
            )
            .unwrap(),
        );
        let issuer = Issuer::new(root, key);
        let user = entity(&issuer, "Test User", &[KeyUsagePurpose::DigitalSignature]);
        let host = entity(&issuer, &format!("host/{HOST}"), &[]);
        Self { trust: Arc::new(trust), user, host, issuer }
    }

    pub(crate) fn endpoint(&self, credential: &Credential) -> Endpoint {
        Endpoint { credential: credential.clone(), trust: Arc::clone(&self.trust), provider: provider() }
    }
}

/// A credential of `common_name`, and an independent proxy of it with `proxy_name` as its last common name
/// (RFC 3820, §3.8), which the holder can make without an authority.
pub(crate) fn independent_proxy(common_name: &str, proxy_name: &str) -> Credential {
    let owner_key = KeyPair::generate().unwrap();
    let owner = parameters(common_name);
    let owner_pem = owner.clone().signed_by(&owner_key, &WORLD.issuer).unwrap().pem();
    let mut proxy = owner.clone();
    // rcgen accepts a second common name only as a custom type.
    proxy.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), proxy_name);
    // ProxyCertInfo with id-ppl-independent.
    let mut information = CustomExtension::from_oid_content(
        &[1, 3, 6, 1, 5, 5, 7, 1, 14],
        b"\x30\x0c\x30\x0a\x06\x08\x2b\x06\x01\x05\x05\x07\x15\x02".to_vec(),
    );
    information.set_criticality(true);
    proxy.custom_extensions.push(information);
    let key = KeyPair::generate().unwrap();
    let pem = proxy.signed_by(&key, &Issuer::new(owner, owner_key)).unwrap().pem() + &key.serialize_pem() + &owner_pem;
    Credential::from_pem(pem.as_bytes(), proxy_name, &provider()).unwrap()
}

/// Issues a credential.
pub(crate) fn entity(issuer: &Issuer<'static, KeyPair>, common_name: &str, usage: &[KeyUsagePurpose]) -> Credential {
    let mut wanted = parameters(common_name);
    wanted.key_usages = usage.to_vec();
    let key = KeyPair::generate().unwrap();
    let pem = wanted.signed_by(&key, issuer).unwrap().pem() + &key.serialize_pem();
    Credential::from_pem(pem.as_bytes(), common_name, &provider()).unwrap()
}

/// Makes a new key.
pub(crate) fn key() -> Key {
    let key = KeyPair::generate().unwrap();
    Key::new(key.serialize_der().try_into().unwrap(), &provider()).unwrap()
}
