//! From text and credentials to stores, and what to do between them: the base of `phoebus cp` and the other commands
//! about files, and of any other front end that moves files.
//!
//! - [`Url`] is a place as people write it. [`Stores`] resolves it to a [`Place`] in a store and connects to servers as
//!   [`ServerOptions`] and [`Carried`] say.
//! - [`plan`] finds which source goes to which destination, and refuses what would lose files.
//! - [`choose`] chooses what nobody has set: how many files are copied at a time, and over how many connections each
//!   goes.
//! - [`moving`], [`removing`] and [`listing`] work on whole trees. [`Outcomes`] receives the result of each item.
//!
//! This crate reads no environment variable, no command line and no terminal, and it ends no process. Whatever only the
//! program can do, such as starting an agent for the first hop, is asked of the [`Caller`]. Relative paths count from
//! the process's working directory. [`enum@Error`] tells by its kind what failed; its sentences use the names of the
//! command line's options.

mod auto;
pub mod choose;
mod error;
pub mod listing;
pub mod moving;
mod options;
mod outcomes;
mod place;
pub mod plan;
pub mod removing;
mod servers;
mod stores;
mod url;

pub use error::{Error, Result};
pub use options::{Carried, DataAuth, DataProtection, Logins, ServerOptions, SshOptions};
pub use outcomes::Outcomes;
pub use phoebus_gridftp::client::Password;
pub use place::{Place, shown};
pub use servers::{AgentHandle, Caller, Paths, Variable};
pub use stores::Stores;
pub use url::{Far, Scheme, Url, UrlError};
