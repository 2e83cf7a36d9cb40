//! An authority, a host and a user, made in memory. Valid for so long that only the time given matters.

use std::sync::{Arc, LazyLock};

use phoebus_gsi::certificate::Certificate;
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::credential::{Credential, Key, provider};
use phoebus_gsi::trust::policy::SigningPolicy;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The time of all tests here, in seconds since 1970.
pub(crate) const NOW: i64 = 1_800_000_000;
pub(crate) const USER: &str = "/O=Grid/OU=Test/CN=Test User";
pub(crate) const HOST: &str = "dtn.example.org";

pub(crate) struct World {
    pub(crate) trust: Arc<TrustStore>,
    pub(crate) user: Credential,
    pub(crate) host: Credential,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

/// One for all tests: keys take time.
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

/// A credential by this issuer.
pub(crate) fn entity(issuer: &Issuer<'static, KeyPair>, common_name: &str, usage: &[KeyUsagePurpose]) -> Credential {
    let mut wanted = parameters(common_name);
    wanted.key_usages = usage.to_vec();
    let key = KeyPair::generate().unwrap();
    let pem = wanted.signed_by(&key, issuer).unwrap().pem() + &key.serialize_pem();
    Credential::from_pem(pem.as_bytes(), common_name, &provider()).unwrap()
}

/// A key of its own.
pub(crate) fn key() -> Key {
    let key = KeyPair::generate().unwrap();
    Key::new(key.serialize_der().try_into().unwrap(), &provider()).unwrap()
}
