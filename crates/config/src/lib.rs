//! The configuration that programs, the preload shim and the C library share: settings, and what they select.
//!
//! - [`settings`]: settings of a user and an administrator, in variables and files; [`environment`] reads them.
//! - [`select`]: which destinations use gateways.
//! - [`first_hop`]: the transport of the hop to the first gateway.
//! - [`agent`]: how to ask for and find a client-side agent.
//! - [`logins`]: what a user keeps for gateways that want a password.
//! - [`bearer`]: where a user's bearer token is.
//! - [`users`]: who may log in to a gateway or server with a password.
//! - [`bypass`]: the clients' memory of short paths.
//!
//! The preload shim runs this inside other programs: nothing here starts a thread, opens a socket or logs.

pub mod agent;
pub mod bearer;
pub mod bypass;
pub mod environment;
pub mod first_hop;
pub mod logins;
mod private_file;
pub mod select;
pub mod settings;
pub mod users;
