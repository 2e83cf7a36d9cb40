//! The client (U1–U7): servers of FTP (RFC 959) and GridFTP (GFD.20) as stores.
//!
//! ```text
//!   Remote ── a Store ──► Object ──flow──► retrieve: REST, RETR ──► a flow, which ends only after 226
//!      │                  Draft ◄─write─── store: ALLO, REST, STOR of a draft's name; CKSM, MFMT, RNFR, RNTO
//!      └─ sessions: one control connection for each thing that goes on at the same time
//! ```
//!
//! - [`Options`]: which server, who logs in, what protects it, how data goes.
//! - [`Remote`]: a server that is logged in to (`known`: what is found out of it), of which `as_store` makes the store.
//!   It has as many control connections as it needs, and keeps them for the next that need one. `pool` has them and
//!   `pipe` those that many files share; `commands` is what goes over them in a line or two, `modes` the permissions
//!   that files get, `source_modes` those that files have where MLST tells none, `partial` the directories that drafts
//!   may have.
//! - `draft` is a file that is being written, of which `as_draft` makes the file engine's.
//! - `session` is one control connection: lines out, answers in, each within its time. `login` is how it begins.
//! - `batch` carries many short files at once, if the server can (`pipelining`: what is known about that).
//! - `data` says where data connections lead, `retrieve` and `store` carry files (`task` is a command that makes a
//!   server send, `take` what becomes of what it sends, `preliminary` how long replies alone keep this end waiting),
//!   `third` has them carried between servers; `listing` is of directories. `upload_journal` is what is remembered of
//!   files that were cut, `begun` by what names, and `resume` what of them is gone on with; `lost` looks what became of
//!   commands whose answers did not come, `absent` whether a server says that something is not there, and `twins`
//!   whether two names are one file's.
//! - [`Route`]: how connections come about where it is not by TCP directly: through gateways. [`NetStack`]: by what data
//!   goes in the place of TCP, where the server has it, too.
//!
//! What a server says is believed as far as it concerns the server: where data connections lead to is its own address,
//! whatever it says, unless its data connections prove who they are ([`Options::data_elsewhere`]).

mod absent;
mod ahead;
mod as_draft;
mod as_store;
mod batch;
mod begun;
mod commands;
mod connection_limit;
mod data;
mod draft;
mod error;
mod farewell;
mod gated;
mod hard_links;
mod inside;
mod known;
mod ledger;
mod lines;
mod links;
mod listing;
mod login;
mod lost_replies;
mod ls_lines;
mod modes;
mod names;
mod object;
mod options;
mod partial;
mod pipe;
mod pipelining;
mod pool;
mod preliminary;
mod private;
mod remote;
mod request;
mod resume;
mod retrieve;
mod route;
mod session;
mod source_modes;
mod stack;
mod store;
mod take;
mod task;
mod third;
mod tls;
mod tls_tickets;
mod upload_journal;
mod upload_lock;

pub use farewell::farewells;
pub use inside::Inside;
pub use options::{Grid, Login, Options, Password, Security, Segment};
pub use remote::Remote;
pub use route::{ControlStream, RelayStream, Route};
pub use stack::NetStack;
pub use tls::{TlsError, trusting};
