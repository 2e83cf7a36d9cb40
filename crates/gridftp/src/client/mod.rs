//! The client (U1–U7): servers of FTP (RFC 959) and GridFTP (GFD.20) as stores.
//!
//! ```text
//!   Remote ── a Store ──► Object ──flow──► retrieve: REST, RETR ──► a flow, which ends only after 226
//!      │                  Draft ◄─write─── store: ALLO, REST, STOR of a draft's name; CKSM, MFMT, RNFR, RNTO
//!      └─ sessions: one control connection for each thing that goes on at the same time
//! ```
//!
//! The store of the file engine:
//! - `remote`: [`Remote`], a server after login, with its pool of control connections.
//! - `as_store`: the server as a store.
//! - `object`: a file on the server as an object.
//! - `draft`: an upload in progress, under a hidden name.
//! - `as_draft`: the upload as a draft of the file engine.
//! - `options`: [`Options`], that is server, login, protection, limits.
//! - `error`: converts refusals of servers to errors of the file engine.
//!
//! Transfers:
//! - `retrieve`: retrieves files.
//! - `request`: a request to retrieve a file, and its destination.
//! - `gated`: a flow that waits for permission.
//! - `take`: passes on the wanted blocks, each byte once.
//! - `task`: runs a command that makes the server send.
//! - `store`: uploads.
//! - `ledger`: checks the blocks of an upload, and computes its checksum.
//! - `batch`: many short files at once.
//! - `pipelining`: what is known about batches by pipelined commands with a server.
//! - `third`: transfers between two servers.
//! - `preliminary`: the bound on waiting for a server that sends only preliminary replies.
//!
//! Resuming uploads:
//! - `begun`: records the names of drafts that this machine has begun.
//! - `upload_journal`: records what a server has synced of an upload.
//! - `upload_lock`: locks an upload on this machine.
//! - `resume`: decides which uploads are resumed, and from where.
//!
//! Names, listings, attributes:
//! - `commands`: operations on files that take one or two commands.
//! - `listing`: listings by MLSD or LIST.
//! - `ls_lines`: parses lines of LIST.
//! - `links`: detects symbolic links in listings.
//! - `known`: what the client has learnt about a server.
//! - `names`: detects names that a server would alter.
//! - `absent`: decides whether a refusal means that a name does not exist.
//! - `hard_links`: two names of one file (hard links).
//! - `lost_replies`: finds out whether commands without a reply were carried out.
//! - `modes`: permissions of uploaded files.
//! - `source_modes`: permissions of source files on servers whose MLST lacks them.
//! - `private`: keeps an upload private before its first byte arrives.
//! - `partial`: directories for drafts.
//!
//! Control connections:
//! - `session`: one control connection, that is commands, replies, time limits.
//! - `login`: opens a control connection.
//! - `pool`: the control connections of a server.
//! - `connection_limit`: the limit on control connections in use.
//! - `pipe`: short commands about many files, pipelined on one control connection.
//! - `ahead`: whether commands may be pipelined.
//! - `lines`: classifies command lines.
//! - `farewell`: ends control connections through gateways.
//!
//! Connections and their protection:
//! - `data`: endpoints and protection of data connections.
//! - `carry`: sets the stack of drivers of data connections on the server, and the keys that drivers need.
//! - `carrier`, `choosing`: what carries a file, where that is left to the program.
//! - `stack`: [`NetStack`], the drivers of data connections.
//! - `route`: [`Route`], connections through gateways.
//! - `inside`: data connections inside SSH.
//! - `tls`: the certificates that TLS accepts.
//! - `tls_tickets`: TLS sessions that data connections resume.
//!
//! The client believes what a server says about itself, with one exception. A data connection goes to the server's own
//! address, whatever the server says, unless data connections are authenticated ([`Options::data_elsewhere`]).

mod absent;
mod ahead;
mod as_draft;
mod as_store;
mod batch;
mod begun;
mod carrier;
mod carry;
mod choosing;
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

pub use carrier::{AutoObjects, CarriedFiles, Carrier, Segment};
pub use farewell::farewells;
pub use inside::Inside;
pub use options::{Grid, Login, Options, Password, Security};
pub use remote::Remote;
pub use route::{ControlStream, RelayStream, Route};
pub use stack::NetStack;
pub use tls::{TlsError, trusting};
