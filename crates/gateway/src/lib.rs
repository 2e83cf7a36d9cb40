//! The Phoebus gateway: accept, authenticate, admit, route, dial, relay (P4–P8, P17–P24, P37–P39).
//!
//! # The life of a session
//!
//! 1. [`gateway`](Gateway) accepts a connection and gives it a task of its own on one of the `workers`: `connection`, which
//!    reads the handshake within time and number limits.
//! 2. `session` counts it, refuses a repeated one, and asks `hop` for the next hop.
//! 3. `hop` asks `admit` for the way (the client's path or the routes) and whether the rules allow it, then takes a warm
//!    connection from the peer's `pool`, or resolves and dials the destination.
//! 4. OPENED goes back, with a report of every hop. `relay` splices bytes both ways until both directions have ended, or
//!    until one hop fails, which resets the other.
//! 5. `record` writes one line to the log. A framed connection goes back to its pool.
//!
//! Where a hop consists of several connections, `bundle` says who may bring further ones, and hands them to the relay.
//!
//! A peer with `transport = "auto"` is reached by what suits the segment to it: `survey` keeps what connections have measured of
//! it, `choose` has the rules, and the peer's pool goes over to what they say.
//!
//! A session-aware destination is a gateway that connects to nothing: its sessions go into its own process, by an [`Inlet`].
//! One that has its connections itself is asked for each session, by the last gateway: `aware`.
//!
//! [`Config`] is the configuration, [`Status`] what `phoebus status` shows, [`serve`] the whole with its signals.
//!
//! The paths by which a session ends are few on purpose. Everything but the success of step 4 drops the connections, and a
//! dropped connection is reset ([`phoebus_net`]): a panic, a cancelled task, an error nobody thought of.

mod admin;
mod admit;
mod aware;
mod bundle;
mod caller;
mod choose;
pub mod config;
mod connection;
mod counters;
mod ear;
mod gateway;
mod handshake;
mod hop;
mod inlet;
mod keeper;
mod listening;
mod live;
mod pool;
mod quota;
mod record;
mod refusal;
mod relay;
mod request;
mod reserve;
mod seen;

mod serve;
mod session;
mod shared;
mod status;
mod survey;
mod suspicion;
mod transports;
mod workers;

pub use config::{Config, ConfigError, transports};
pub use counters::Totals;
pub use gateway::{Gateway, StartError, check};
pub use inlet::{Arrival, Guard, Inlet};
pub use pool::{ChoiceStatus, PoolStatus};
pub use serve::{Outcome, serve};
pub use status::{CertificateStatus, HopStatus, SessionStatus, Status};
pub use survey::SegmentStatus;
