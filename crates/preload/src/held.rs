//! A descriptor of this library's own for a socket of the program.
//!
//! Until the table has an entry for a socket, nothing stops another thread from closing the program's descriptor, and a
//! new socket may then have its number. A call on the held descriptor reaches the socket that was meant, or none.

use crate::sys::{self, Errno};
use libc::c_int;

/// The descriptor. Its destructor closes it.
pub(crate) struct Held {
    fd: c_int,
    owned: bool,
}

impl Held {
    /// Holds the socket with this cookie, which was behind `fd` a moment ago. A program without a free descriptor uses
    /// its own: its connect would otherwise fail for a reason that connect(2) does not know.
    ///
    /// # Errors
    /// EBADF if another thread has closed `fd`, also if its number belongs to another socket by now.
    pub(crate) fn new(fd: c_int, cookie: u64) -> Result<Self, Errno> {
        let held = match sys::duplicate(fd) {
            Ok(fd) => Self { fd, owned: true },
            Err(libc::EBADF) => return Err(libc::EBADF),
            Err(_) => Self { fd, owned: false },
        };
        if sys::cookie(held.fd) == Some(cookie) { Ok(held) } else { Err(libc::EBADF) }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.owned {
            sys::close(self.fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn number_of_another_socket_is_not_held() {
        let [first, second] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let cookie = sys::try_cookie(first.as_raw_fd()).unwrap();
        assert!(Held::new(second.as_raw_fd(), cookie).is_err_and(|errno| errno == libc::EBADF));
        let held = Held::new(first.as_raw_fd(), cookie).unwrap();
        drop(first);
        assert_eq!(sys::cookie(held.fd()), Some(cookie), "it outlives the program's descriptor");
    }
}
