//! User identities for system calls. A process of root can act on files as the user that it serves: the kernel checks
//! permissions, and new files are the user's.
//!
//! On Linux each thread has its own identity, which the raw system calls change (setresuid(2), "C library/kernel
//! differences"). Each call of a store runs on one thread, which takes the user's identity before and returns to the
//! process's after. Threads that use an open file directly do the same ([`UserFile`](crate::local::UserFile)). The
//! alternative, a process for each user, would copy all bytes once more. Real and saved identity stay the process's, so
//! the user can neither signal nor trace it.

use rustix::fs::{Gid, Uid};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, getgroups, pidfd_open, pidfd_send_signal};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A user of the system with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// The identity of the process, to which threads return.
struct RestoreIdentity {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Identity {
    /// Looks up the user `name` in the system's name service, within a time limit.
    ///
    /// # Errors
    /// There is no such user, the name service is too slow, or the process is not root and cannot act as the user.
    pub fn named(user: &str, time_limit: Duration) -> io::Result<Self> {
        let until = Instant::now() + time_limit;
        let ids = |what: &str| {
            // `id` uses the name service, not only files. `--` protects names that look like options.
            let output = said_by(Command::new("id").args([what, "--", user]), until)?;
            let output = output.ok_or_else(|| {
                io::Error::new(io::ErrorKind::TimedOut, format!("id {what} has not answered within {time_limit:?}"))
            })?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::new(io::ErrorKind::NotFound, said.trim().to_owned()));
            }
            let text = String::from_utf8_lossy(&output.stdout);
            let ids = text.split_whitespace().map(str::parse::<u32>).collect::<Result<Vec<_>, _>>();
            // -1 means "unchanged" to the kernel.
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

    /// Makes `call` as this user, on this thread. A nested call as the same user costs one system call.
    ///
    /// # Errors
    /// The system refuses the change of identity.
    pub fn act<T>(&self, call: impl FnOnce() -> T) -> io::Result<T> {
        if geteuid() == self.uid {
            return Ok(call());
        }
        let _back = RestoreIdentity { uid: geteuid(), gid: getegid(), groups: getgroups()? };
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(None, self.gid, None)?;
        set_thread_res_uid(None, self.uid, None)?;
        Ok(call())
    }
}

/// The output of a program, or `None` if it does not end in time; then it is killed. Name services may be remote and
/// silent.
fn said_by(command: &mut Command, until: Instant) -> io::Result<Option<Output>> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let (says, said) = mpsc::channel();
    // Waits for the program's children too, if they take longer.
    std::thread::Builder::new().spawn(move || says.send(child.wait_with_output()))?;
    if let Ok(output) = said.recv_timeout(until.saturating_duration_since(Instant::now())) {
        return output.map(Some);
    }
    if let Ok(process) = process {
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
    Ok(None)
}

impl Drop for RestoreIdentity {
    fn drop(&mut self) {
        let back = || {
            set_thread_res_uid(None, self.uid, None)?;
            set_thread_res_gid(None, self.gid, None)?;
            set_thread_groups(&self.groups)
        };
        if back().is_err() {
            // Otherwise the thread's next work would run as somebody else.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Needs root, as the tests of networks do.
    #[test]
    fn thread_has_another_identity_for_one_call() {
        let nobody = Identity::named("nobody", PATIENCE).unwrap();
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
        assert!(Identity::named("no such user", PATIENCE).is_err() && Identity::named("-n", PATIENCE).is_err());
    }

    #[test]
    fn endless_program_is_not_waited_for() {
        let said =
            |script: &str, time_limit| said_by(Command::new("sh").args(["-c", script]), Instant::now() + time_limit);
        let output = said("echo it; echo that >&2; exit 3", PATIENCE).unwrap().unwrap();
        assert_eq!(
            (&output.stdout[..], &output.stderr[..], output.status.code()),
            (&b"it\n"[..], &b"that\n"[..], Some(3))
        );
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark").display().to_string();
        let script = format!("echo $$ >{mark}.new; mv {mark}.new {mark}; exec sleep 1000");
        let begin = Instant::now();
        let mut time_limit = Duration::from_millis(50);
        let pid = loop {
            assert!(said(&script, time_limit).unwrap().is_none() && begin.elapsed() < PATIENCE);
            match fs::read_to_string(&mark) {
                Ok(pid) => break pid,
                // It had not come so far yet.
                Err(_) => time_limit *= 2,
            }
        };
        // It is killed, and nothing of it is left.
        while fs::exists(format!("/proc/{}", pid.trim())).unwrap() {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }
}
