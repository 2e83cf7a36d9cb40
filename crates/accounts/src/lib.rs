//! Users of file servers: logins, roots, permissions and limits. Independent of any file protocol.
//!
//! ```text
//!   config (User, Anonymous, Trusted) ──► Users ── login ──► Served: an Account and the Store of its root
//!                                                              └── quota::Limited, where the root has a quota
//!   logins::Checks: when a password is verified         count::Counts, memory::Memory: what connections use
//! ```
//!
//! - [`config`]: the part of a server's configuration about users.
//! - [`Users`]: all users; [`Served`]: a logged-in user with an [`Account`] and a store.
//! - [`password`]: password hashes.
//! - [`logins`]: limits and delays against guessed passwords.
//! - [`quota`]: limits on what a user has below a root.
//! - [`count`], [`memory`]: limits on connections, and on the memory that they use.

mod account;
pub mod config;
pub mod count;
mod error;
pub mod logins;
pub mod memory;
pub mod password;
pub mod quota;
mod served;
mod users;

pub use account::Account;
pub use error::Unusable;
pub use quota::Quota;
pub use served::Served;
pub use users::{ChecksumTurns, Users, UsersConfig};
