//! The server (`phoebus serve`): GridFTP and FTP for directories of this machine.
//!
//! ```text
//!   serve ──► connection: lines ──► session (a state machine) ──► answers
//!                 │                      │ tasks
//!                 └── while it works ──► work: names, listings · moving: what goes over the data channel
//! ```
//!
//! - [`Config`]: what is served to whom; [`Server`]: accepts, counts, and ends when told to; [`Reloader`]: has it serve something else.
//! - `session`: the control channel, without socket, file or clock.
//! - `connection`: one client, with its sockets and time limits.
//! - `authorities`: whom clients with certificates are issued by.
//! - `stripes`: data nodes, which move data in this server's place.
//! - `quota`: how much a user may have.
//! - `drivers`: what may carry data connections.
//! - `work` and `moving`: what sessions leave to be done with stores and data channels.
//!
//! What holds throughout: a file is told to be there (226) only after the file engine has published it; what was cut is 426
//! and never has the name of what is whole; no path leads out of a root; and nobody is connected to whom the control
//! connection does not come from, unless his account says so.

mod amid;
mod answer;
mod authorities;
mod beside;
pub mod config;
mod connection;
mod count;
mod current;
mod drivers;
mod hex;
mod hub;
mod logins;
mod made;
mod memory;
mod moving;
mod quota;
mod serve;
mod session;
mod stripes;
mod sweep;
mod users;
mod waiting;
mod work;

pub use config::Config;
pub use drivers::Gateways;
pub use hub::socket_of;
pub use quota::Quota;
pub use serve::{Reloader, Server, StartError};
pub use users::hash_password;

/// The target of log lines in which clients say something of themselves, as often as they like (`SITE CLIENTINFO`).
pub const CLIENT_SAYS: &str = "phoebus::client";
