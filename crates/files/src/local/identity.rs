//! Whose calls of the system are: a process that is root can do what it does with files as the user whom it serves, so that the kernel
//! itself says what he may, and files are his.
//!
//! On Linux a thread has an identity of its own, and what the POSIX calls change is each thread's (setresuid(2), C library/kernel
//! differences). Each call of a store runs on one thread from its beginning to its end, which takes the user's identity before
//! and the process's after. Threads that read or write an open file by themselves do the same ([`UserFile`](super::UserFile)). A helper process for each user would do the same with a process more for everybody who logs in, and all
//! bytes going through it. Real and saved identity stay the process's: the user can neither signal nor trace it.

use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::process::Command;

/// A user of the system, with his groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// The identity of the process, to which a thread returns.
struct Own {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Identity {
    /// The user of this name, as the system's own sources of names have him.
    ///
    /// # Errors
    /// There is no such user, or this process is not root and could not become him.
    pub fn named(user: &str) -> io::Result<Self> {
        let ids = |what: &str| {
            // Of the name service, which has more than files; `--` before what might look like an option.
            let output = Command::new("id").args([what, "--", user]).output()?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::new(io::ErrorKind::NotFound, said.trim().to_owned()));
            }
            let text = String::from_utf8_lossy(&output.stdout);
            let ids = text.split_whitespace().map(str::parse::<u32>).collect::<Result<Vec<_>, _>>();
            // -1 is nobody's: it means "as it is".
            let ids = ids.ok().filter(|ids| !ids.is_empty() && !ids.contains(&u32::MAX));
            ids.ok_or_else(|| {
                io::Error::other(format!("id {what}: numbers were expected, and \"{}\" came", text.trim()))
            })
        };
        let (uid, gid, groups) = (ids("-u")?[0], ids("-g")?[0], ids("-G")?);
        let groups = groups.into_iter().map(Gid::from_raw).collect();
        let identity = Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), groups };
        if geteuid().is_root() || geteuid() == identity.uid {
            return Ok(identity);
        }
        let error = format!("only root can become {user}, and this process is user {}", geteuid().as_raw());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
    }

    /// Makes `call` as this user, on this thread. Within such a call another one as the same user costs one system call.
    ///
    /// # Errors
    /// When the system does not let this thread become him.
    pub fn act<T>(&self, call: impl FnOnce() -> T) -> io::Result<T> {
        if geteuid() == self.uid {
            return Ok(call());
        }
        let _back = Own { uid: geteuid(), gid: getegid(), groups: getgroups()? };
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(None, self.gid, None)?;
        set_thread_res_uid(None, self.uid, None)?;
        Ok(call())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let back = || {
            set_thread_res_uid(None, self.uid, None)?;
            set_thread_res_gid(None, self.gid, None)?;
            set_thread_groups(&self.groups)
        };
        if back().is_err() {
            // What the thread does next would be done as somebody else.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Needs root, as the tests of networks do.
    #[test]
    fn a_thread_is_somebody_else_for_one_call() {
        let nobody = Identity::named("nobody").unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(dir.path().join("roots"), "x").unwrap();
        fs::set_permissions(dir.path().join("roots"), fs::Permissions::from_mode(0o600)).unwrap();
        let denied = nobody.act(|| fs::read(dir.path().join("roots"))).unwrap();
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        nobody.act(|| fs::write(dir.path().join("his"), "x")).unwrap().unwrap();
        let meta = fs::metadata(dir.path().join("his")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (nobody.uid.as_raw(), nobody.gid.as_raw()));
        // A call that panics leaves nothing behind either.
        let panicked = std::panic::catch_unwind(|| nobody.act(|| panic!("of the test")).unwrap_or(()));
        assert!(panicked.is_err() && geteuid().is_root() && getegid().is_root());
        assert!(fs::read(dir.path().join("roots")).is_ok());
        assert!(Identity::named("no such user").is_err() && Identity::named("-n").is_err());
    }
}
