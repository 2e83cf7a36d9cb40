//! An open file together with the user as whom it is used.
//!
//! The rights to an open file were checked when it was opened, but the kernel looks at the thread again when it writes: a set-user-ID
//! bit is cleared, a quota holds and the blocks reserved for root are refused only if the thread that writes is no root (`file_remove_privs`
//! and `dquot_alloc_space` in Linux). So the file is not given away without its user.

use crate::identity::Identity;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// An open file of this machine, and as whom it is used. Clones are the same open file.
#[derive(Debug, Clone)]
pub struct UserFile {
    file: Arc<File>,
    user: Option<Arc<Identity>>,
}

impl UserFile {
    /// `file`, used as `user`, or as the process if there is none.
    pub fn new(file: Arc<File>, user: Option<Arc<Identity>>) -> Self {
        Self { file, user }
    }

    /// As whom it is used, if not as the process.
    pub fn user(&self) -> Option<&Arc<Identity>> {
        self.user.as_ref()
    }

    /// Makes `call` with the file as its user. Costs one system call where the thread [acts](Identity::act) as him already.
    ///
    /// # Errors
    /// Those of `call`, and when the system does not let this thread become the user.
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
