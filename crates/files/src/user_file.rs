//! An open file together with the user as whom it is used.
//!
//! Access was checked when the file was opened, but the kernel checks the thread again on writes: set-user-ID bits are
//! cleared, quotas hold and reserved blocks are refused only if the writing thread is not root (`file_remove_privs` and
//! `dquot_alloc_space` in Linux). So the file is only used as its user.

use crate::identity::Identity;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// An open local file with its user. Clones share the open file.
#[derive(Debug, Clone)]
pub struct UserFile {
    file: Arc<File>,
    user: Option<Arc<Identity>>,
}

impl UserFile {
    /// `file` with its user; `None` is the process's.
    pub fn new(file: Arc<File>, user: Option<Arc<Identity>>) -> Self {
        Self { file, user }
    }

    /// The user, if not the process's.
    pub fn user(&self) -> Option<&Arc<Identity>> {
        self.user.as_ref()
    }

    /// Makes `call` as the file's user. Costs one system call if the thread [acts](Identity::act) as that user already.
    ///
    /// # Errors
    /// Those of `call`, or the change of identity is refused.
    pub fn act<T>(&self, call: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &self.user {
            Some(user) => user.act(|| call(&self.file))?,
            None => call(&self.file),
        }
    }

    /// Whether both are the same open file.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }
}

impl From<File> for UserFile {
    fn from(file: File) -> Self {
        Self::new(Arc::new(file), None)
    }
}
