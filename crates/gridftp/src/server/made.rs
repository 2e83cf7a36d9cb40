//! What a configuration comes to before anything is listened on: directories, keys, secrets and drivers, all of which are opened.

use super::authorities::{Authorities, Own};
use super::config::{Config, ConfigError, Gsi, Tls as TlsFiles};
use super::drivers::{Drivers, Gateways};
use super::session::Shown;
use super::stripes::proof::Secret;
use super::users::Users;
use phoebus_gsi::credential::provider;
use phoebus_gsi::files;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// All that is opened.
pub(super) struct Made {
    pub(super) drivers: Arc<Drivers>,
    pub(super) users: Users,
    /// By which a front end and its data nodes know each other.
    pub(super) secret: Option<Arc<Secret>>,
    pub(super) gsi: Option<Own>,
    #[cfg(feature = "kerberos")]
    pub(super) kerberos: Option<phoebus_krb5::Acceptor>,
    pub(super) tls: Option<Shown>,
}

impl Made {
    /// That of a configuration; what users of a quota have is counted on from `before`.
    ///
    /// # Errors
    /// [`ConfigError`]: what cannot be used, or could be used by others.
    pub(super) fn of(
        config: &Config,
        gateways: Option<Arc<dyn Gateways>>,
        before: Option<(&Config, &Users)>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let drivers = Drivers::new(&config.data, gateways)?;
        let drivers = if config.trusted.is_some() { drivers.with_inside() } else { drivers };
        Ok(Self {
            drivers: Arc::new(drivers),
            users: Users::new(config, before)?,
            secret: config.stripes.secret.as_deref().map(Secret::read).transpose()?.map(Arc::new),
            gsi: config.gsi.as_ref().map(own).transpose()?,
            #[cfg(feature = "kerberos")]
            kerberos: config.kerberos.as_ref().map(tickets).transpose()?,
            tls: config.tls.as_ref().map(|files| tls(files, config.data.streams)).transpose()?,
        })
    }
}

/// Who the server is, and whom it believes.
fn own(gsi: &Gsi) -> Result<Own, ConfigError> {
    let value = |error: &dyn std::fmt::Display| ConfigError::Value(format!("[gsi]: {error}"));
    let provider = provider();
    let credential = files::credential_of_two(&gsi.certificate, &gsi.key, &provider).map_err(|error| value(&error))?;
    let authorities = Arc::new(Authorities::of(gsi).map_err(|error| value(&error))?);
    Ok(Own { credential, provider, authorities })
}

/// Whose tickets are taken.
#[cfg(feature = "kerberos")]
fn tickets(kerberos: &super::config::Kerberos) -> Result<phoebus_krb5::Acceptor, ConfigError> {
    let wrong = |error: &dyn std::fmt::Display| {
        ConfigError::Value(format!("kerberos.keytab: {}: {error}", kerberos.keytab.display()))
    };
    let acceptor = phoebus_krb5::Acceptor::of_keytab(&kerberos.keytab).map_err(|error| wrong(&error))?;
    let mode = std::fs::metadata(&kerberos.keytab).map_err(|error| wrong(&error))?.permissions().mode();
    // A group may have it: services that share a keytab do.
    match mode & 0o007 {
        0 => Ok(acceptor),
        _ => Err(wrong(&"holds keys, but everybody can get at it; chmod o= it")),
    }
}

/// What the server shows under TLS, where a transfer may have so many connections.
fn tls(tls: &TlsFiles, streams: u32) -> Result<Shown, ConfigError> {
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
    Ok(Shown::new(config.map_err(|error| value(&error))?, tls.data_must_resume, streams as usize))
}
