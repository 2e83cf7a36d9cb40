//! Opens everything that a configuration names, before the server listens: directories, keys, secrets and drivers.

use super::authorities::{Authorities, HostIdentity};
use super::config::{Config, ConfigError, Gsi, Tls as TlsFiles};
use super::drivers::{Drivers, Gateways};
use super::identity::IdentityMap;
use super::node_auth::Secret;
use super::session::TlsConfigs;
use phoebus_accounts::Users;
use phoebus_gsi::credential::provider;
use phoebus_gsi::files;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// The open files of a configuration.
pub(super) struct LoadedConfig {
    pub(super) drivers: Arc<Drivers>,
    pub(super) users: Users,
    pub(super) proofs: IdentityMap,
    /// Authenticates a front end and its data nodes.
    pub(super) secret: Option<Arc<Secret>>,
    pub(super) gsi: Option<HostIdentity>,
    #[cfg(feature = "kerberos")]
    pub(super) kerberos: Option<phoebus_krb5::Acceptor>,
    pub(super) tls: Option<TlsConfigs>,
}

impl LoadedConfig {
    /// Opens the files of `config`. Counters of quotas carry over from `before`.
    ///
    /// # Errors
    /// [`ConfigError`]: something cannot be used, or other users could read a secret.
    pub(super) fn of(
        config: &Config,
        gateways: Option<Arc<dyn Gateways>>,
        before: Option<&Users>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let drivers = Drivers::new(&config.data, gateways)?;
        let drivers = if config.trusted.is_some() { drivers.with_inside() } else { drivers };
        Ok(Self {
            drivers: Arc::new(drivers),
            users: Users::new(config.accounts(), before)?,
            proofs: IdentityMap::of(config)?,
            secret: config.stripes.secret.as_deref().map(Secret::read).transpose()?.map(Arc::new),
            gsi: config.gsi.as_ref().map(own).transpose()?,
            #[cfg(feature = "kerberos")]
            kerberos: config.kerberos.as_ref().map(tickets).transpose()?,
            tls: config.tls.as_ref().map(|files| tls(files, config.data.streams)).transpose()?,
        })
    }
}

/// Loads the server's GSI identity and the authorities that it trusts.
fn own(gsi: &Gsi) -> Result<HostIdentity, ConfigError> {
    let value = |error: &dyn std::fmt::Display| ConfigError::Value(format!("[gsi]: {error}"));
    let provider = provider();
    let credential = files::credential_of_two(&gsi.certificate, &gsi.key, &provider).map_err(|error| value(&error))?;
    let authorities = Arc::new(Authorities::of(gsi).map_err(|error| value(&error))?);
    Ok(HostIdentity { credential, provider, authorities })
}

/// Opens the keytab for Kerberos tickets.
#[cfg(feature = "kerberos")]
fn tickets(kerberos: &super::config::Kerberos) -> Result<phoebus_krb5::Acceptor, ConfigError> {
    let wrong = |error: &dyn std::fmt::Display| {
        ConfigError::Value(format!("kerberos.keytab: {}: {error}", kerberos.keytab.display()))
    };
    let acceptor = phoebus_krb5::Acceptor::of_keytab(&kerberos.keytab).map_err(|error| wrong(&error))?;
    let mode = std::fs::metadata(&kerberos.keytab).map_err(|error| wrong(&error))?.permissions().mode();
    // A group may read it, since services may share a keytab.
    match mode & 0o007 {
        0 => Ok(acceptor),
        _ => Err(wrong(&"holds keys, but everybody can get at it; chmod o= it")),
    }
}

/// Loads the TLS certificate, for transfers with up to `connections` connections.
fn tls(tls: &TlsFiles, streams: u32) -> Result<TlsConfigs, ConfigError> {
    let value = |error: &dyn std::fmt::Display| ConfigError::Value(format!("[tls]: {error}"));
    let named = |path: &Path, error: &dyn std::fmt::Display| value(&format!("{}: {error}", path.display()));
    let mode = std::fs::metadata(&tls.key).map_err(|error| named(&tls.key, &error))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(named(&tls.key, &"holds a private key, but others can read it; chmod 600 it"));
    }
    let certificates =
        CertificateDer::pem_file_iter(&tls.certificate).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let certificates = certificates.map_err(|error| named(&tls.certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| named(&tls.key, &error))?;
    let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.map_err(|error| value(&error))?.with_no_client_auth().with_single_cert(certificates, key);
    let config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            named(&tls.key, &format!("is not the key of the certificate in {}", tls.certificate.display()))
        }
        error => named(&tls.certificate, &error),
    })?;
    Ok(TlsConfigs::new(config, tls.data_must_resume, streams as usize))
}
