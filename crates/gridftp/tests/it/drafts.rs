//! Drafts that clients write on the server under names of their own: who may read them, and which directories may hold
//! them.

use crate::support;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::{Error, ErrorKind, Links, TransferOptions, transfer};
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use support::{Serve, ok, python};

#[test]
fn draft_is_private_until_it_is_published() {
    let serve = Serve::writable();
    let script = r#"
import stat
root = os.path.join(os.path.dirname(dir), 'root')
mode = lambda name: stat.S_IMODE(os.stat(os.path.join(root, name)).st_mode)
usual = 0o666 & ~os.umask(0o077)
part, other = '.x.0123456789abcdef.phoebus-part', '.y.0123456789abcdef.phoebus-part'
f = login(); f.voidcmd('TYPE I')
def stored():
    f.storbinary('STOR ' + part, io.BytesIO(b'secret')); assert mode(part) & 0o777 == 0o600, oct(mode(part))
def becomes(name, expected):
    f.rename(part, name); assert mode(name) == expected, (name, oct(mode(name)))
stored(); stored(); f.rename(part, other); assert mode(other) & 0o777 == 0o600, oct(mode(other))
f.rename(other, part); becomes('new', usual)
stored(); f.sendcmd('SITE CHMOD 600 ' + part); becomes('private', 0o600)
stored(); f.sendcmd('SITE CHMOD 640 ' + part); f.sendcmd('MFMT 20260102030405 ' + part); becomes('new', 0o640)
# A replaced file keeps its permissions.
stored(); becomes('private', 0o600)
# A draft that does not get its name stays private.
f.mkd('d'); stored(); f.sendcmd('RNFR ' + part); refused(f, 'RNTO d', '550'); assert mode(part) & 0o777 == 0o600, oct(mode(part))
becomes('last', usual)
f.storbinary('STOR x', io.BytesIO(b'no draft')); assert mode('x') == usual, oct(mode('x'))
"#;
    ok(&python(&serve, script));
}

#[test]
fn private_draft_whose_mode_cannot_be_set_is_not_published() {
    let serve = Serve::writable();
    let script = r#"
import stat
root = os.path.join(os.path.dirname(dir), 'root')
path = lambda name: os.path.join(root, name)
mode = lambda name: stat.S_IMODE(os.lstat(path(name)).st_mode)
part, other = '.x.0123456789abcdef.phoebus-part', '.y.0123456789abcdef.phoebus-part'
f = login(); f.voidcmd('TYPE I')
for shared in (0o777, 0o700):
    os.chmod(root, shared)
    # A second name (hard link), as a snapshot of hard links has.
    f.storbinary('STOR ' + part, io.BytesIO(b'secret')); os.link(path(part), path('snapshot'))
    f.sendcmd('RNFR ' + part); assert 'permissions cannot be set' in refused(f, 'RNTO x', '550')
    assert mode(part) == 0o1600 and not os.path.exists(path('x')), oct(mode(part))
    os.unlink(path('snapshot')); f.rename(part, 'x'); assert mode('x') & 0o7000 == 0; os.unlink(path('x'))
    # A symbolic link to a draft does not count as the draft.
    f.storbinary('STOR ' + part, io.BytesIO(b'secret')); os.symlink(part, path(other))
    f.rename(other, 'x'); assert mode(part) == 0o1600 and os.path.islink(path('x')), oct(mode(part))
    os.unlink(path('x')); os.unlink(path(part))
if os.geteuid() == 0:
    f.storbinary('STOR ' + part, io.BytesIO(b'secret')); os.chown(path(part), 65534, -1); os.chmod(path(part), 0o1600)
    f.sendcmd('RNFR ' + part); assert 'its owner is not' in refused(f, 'RNTO x', '550')
"#;
    ok(&python(&serve, script));
}

/// Uploads a file, with drafts in directories of their own.
fn send(serve: &Serve, to: &str) -> Result<(), Error> {
    fs::write(serve.local().join("x"), "bytes").unwrap();
    let key = |path: &str| Key::parse(path).unwrap();
    let mut options = Options::new("ftp://serve", Endpoint::parse(&serve.addr().to_string(), None).unwrap());
    options.partial_dir = Some(key(".partial"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let remote = Remote::connect(options).await?;
        let local = Local::new(serve.local(), Links::Beneath)?;
        transfer(&local, &key("x"), &remote, &key(to), &TransferOptions::default()).await.map(drop)
    })
}

#[test]
fn modes_of_drafts_in_shared_directories_are_refused() {
    let serve = Serve::writable();
    for name in ["theirs", "open", "linked", "own"] {
        fs::create_dir_all(serve.path(name).join(".partial")).unwrap();
    }
    chown(serve.path("theirs/.partial"), Some(65_534), Some(65_534)).unwrap();
    fs::set_permissions(serve.path("open/.partial"), Permissions::from_mode(0o777)).unwrap();
    fs::remove_dir(serve.path("linked/.partial")).unwrap();
    fs::create_dir(serve.path("elsewhere")).unwrap();
    symlink("../elsewhere", serve.path("linked/.partial")).unwrap();
    for name in ["theirs", "open", "linked"] {
        let error = send(&serve, &format!("{name}/x")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && error.to_string().contains("name another directory"),
            "{name}: {error}"
        );
        // The upload is refused before any draft exists.
        assert_eq!(fs::read_dir(serve.path(name).join(".partial")).unwrap().count(), 0, "{name}");
    }
    send(&serve, "own/x").unwrap();
    assert_eq!(fs::read(serve.path("own/x")).unwrap(), b"bytes");
}
