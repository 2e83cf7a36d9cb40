//! Where testbeds are on this machine, and the environment variables that tell the programs in them.

use super::Error;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the testbed that commands in it and beside it belong to.
pub const ENV_NAME: &str = "PHOEBUS_TESTBED";
/// Names the host that a command runs in.
pub const ENV_HOST: &str = "PHOEBUS_TESTBED_HOST";
/// Names the administration socket of the gateway in the host that a command runs in; `phoebus status` asks there.
pub const ENV_ADMIN: &str = "PHOEBUS_ADMIN_SOCKET";
/// Name the certificate of the host that a command runs in, its key, and the authority that all of a testbed's gateways have:
/// settings of clients (`phoebus_proto::settings`).
const CREDENTIALS: [&str; 3] = ["PHOEBUS_CERT", "PHOEBUS_KEY", "PHOEBUS_CA"];
/// The directory that testbeds' state directories are in, should it not be the usual one.
pub const ENV_DIRECTORY: &str = "PHOEBUS_TESTBED_DIR";

/// The directory that state directories are in: what [`ENV_DIRECTORY`] says; else `/run/phoebus/testbeds` for root;
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

/// The same directory, made if need be, and only this user's: others could put words into a testbed's mouth.
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

/// Puts into a command's environment where it is: the state directory `directory`, and the host that it is in.
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

/// Names of the files with the certificate and the key of a host, and of the one with the authority's certificate.
pub(super) fn certificate_files(host: &str) -> [String; 3] {
    [format!("{host}.pem"), format!("{host}.key"), "authority.pem".to_owned()]
}
