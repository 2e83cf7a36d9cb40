//! The server (`phoebus serve`): GridFTP and FTP for directories of this machine.
//!
//! ```text
//!   serve ──► connection: lines ──► session (a state machine) ──► replies
//!                 │                      │ tasks
//!                 └── monitor, during a task ──► work: names, listings · transfer: data channels
//! ```
//!
//! - [`Config`]: what is served to whom. [`Server`]: accepts, counts and shuts down. [`Reloader`]: replaces the
//!   configuration.
//! - `session`: the control channel as a state machine, without socket, file or clock.
//! - `connection`: one client, with its sockets and time limits. `monitor`, `command_queue`: its control connection
//!   during a task.
//! - `authorities`: certificate authorities that clients' certificates are verified against.
//! - `stripes`: data nodes, which move data on behalf of this server; `node_auth`: how both prove who they are.
//! - `identity`: maps certificates and tickets to users.
//! - `drivers`: transports of data connections.
//! - `work` and `transfer`: tasks of sessions that need stores and data channels.
//! - `shutdown`, `drain`: the end of the server, and which sessions it waits for.
//!
//! Invariants: 226 follows only after the file engine has published the file; a cut transfer gets 426, and its file
//! never has the name of a complete one; no path leads out of a root; data connections go only to the address of the
//! client, unless the account allows others.

mod authorities;
mod command_queue;
pub mod config;
mod connection;
mod current;
mod drain;
mod drivers;
mod failure;
mod hub;
mod identity;
mod loaded;
mod monitor;
mod names;
mod node_auth;
mod serve;
mod session;
mod shutdown;
mod stripes;
mod sweep;
mod transfer;
mod work;
mod worker;

pub use config::Config;
pub use drivers::Gateways;
pub use hub::socket_of;
pub use phoebus_accounts::Quota;
pub use phoebus_accounts::password::hash_password;
pub use serve::{Reloader, Server, StartError};

/// Target of log lines with text of the client (`SITE CLIENTINFO`), which it may repeat without limit.
pub const CLIENT_SAYS: &str = "phoebus::client";

/// Target of log lines about failed or refused transfers and changes, which a client may repeat without limit.
pub const NOT_DONE: &str = "phoebus::failed";
