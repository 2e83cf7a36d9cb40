//! The locations of testbeds on this machine, and the environment variables for programs in them.

use super::Error;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the testbed that a command belongs to.
pub const ENV_NAME: &str = "PHOEBUS_TESTBED";
/// Name of the host that a command runs in.
pub const ENV_HOST: &str = "PHOEBUS_TESTBED_HOST";
/// Path of the administration socket of the gateway on the command's host; `phoebus status` connects to it.
pub const ENV_ADMIN: &str = "PHOEBUS_ADMIN_SOCKET";
/// Paths of the host's certificate, its key, and the certificate of the authority of all gateways in a
/// testbed: settings of clients (`phoebus_config::settings`).
const CREDENTIALS: [&str; 3] = ["PHOEBUS_CERT", "PHOEBUS_KEY", "PHOEBUS_CA"];
/// The directory of the state directories, if it is not the default one.
pub const ENV_DIRECTORY: &str = "PHOEBUS_TESTBED_DIR";

/// The directory of the state directories: [`ENV_DIRECTORY`]; else `/run/phoebus/testbeds` for root;
/// `phoebus/testbeds` in `$XDG_RUNTIME_DIR`; `/tmp/phoebus-UID/testbeds`.
pub(super) fn base() -> Result<PathBuf, Error> {
    if let Some(given) = std::env::var_os(ENV_DIRECTORY).filter(|given| !given.is_empty()) {
        return std::path::absolute(&given).map_err(Error::state(given));
    }
    let uid = rustix::process::geteuid();
    let ours = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if uid.is_root() && ours(Path::new("/run")) {
        return Ok("/run/phoebus/testbeds".into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    Ok(match runtime.filter(|path| path.is_absolute() && ours(path)) {
        Some(runtime) => runtime.join("phoebus/testbeds"),
        None => format!("/tmp/phoebus-{}/testbeds", uid.as_raw()).into(),
    })
}

/// The same directory, created if missing. It must be accessible only to this user, because others could
/// impersonate a testbed.
pub(super) fn base_for_writing() -> Result<PathBuf, Error> {
    let base = base()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&base).map_err(Error::state(&base))?;
    let metadata = fs::symlink_metadata(&base).map_err(Error::state(&base))?;
    let uid = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o077 != 0 {
        let expected = format!("expected a directory of user {uid} that is closed to others (mode 700)");
        return Err(Error::state(base)(io::Error::new(io::ErrorKind::PermissionDenied, expected)));
    }
    Ok(base)
}

/// Sets environment variables for a command: the state directory `directory`, and the host that it runs in.
pub(super) fn identify(command: &mut Command, directory: &Path, host: Option<&str>) {
    if let (Some(name), Some(base)) = (directory.file_name(), directory.parent()) {
        command.env(ENV_NAME, name).env(ENV_DIRECTORY, base);
    }
    if let Some(host) = host {
        command.env(ENV_HOST, host);
        let admin = admin_socket(directory, host);
        if admin.exists() {
            command.env(ENV_ADMIN, admin);
        }
        for (variable, file) in CREDENTIALS.into_iter().zip(certificate_files(host)) {
            let file = directory.join(file);
            if file.exists() {
                command.env(variable, file);
            }
        }
    }
}

/// The administration socket of the gateway on `host`.
pub(super) fn admin_socket(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("{host}.socket"))
}

/// The control socket in the state directory `directory`.
pub(super) fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control")
}

/// File names of a host's certificate and key, and of the authority's certificate.
pub(super) fn certificate_files(host: &str) -> [String; 3] {
    [format!("{host}.pem"), format!("{host}.key"), "authority.pem".to_owned()]
}
