//! The Phoebus gateway: accept, authenticate, admit, route, dial, relay (P4–P8, P17–P24, P37–P39).
//!
//! # The life of a session
//!
//! One file per step, in this order:
//!
//! 1. `accept`: `listening` accepts a connection, which gets a task of its own on one of the `workers`.
//! 2. `handshake`: reads the greeting and the request, within limits of time and number (`connection`).
//! 3. `connection::authenticate`: identifies the client or peer, its proven names, and its request (`request`).
//! 4. `admit`: counts the session, refuses a duplicate, and applies the `rules`, which decide who may connect to what.
//! 5. `route`: chooses the next hop, by the client's path or the routes; `requirements` checks that it can provide what
//!    the client requires.
//! 6. `dial`: takes a warm connection from the peer's `pool`, or resolves the destination's name and connects to it.
//! 7. `connection::answer`: sends OPENED, with a report of every hop, or REFUSED.
//! 8. `relay`: splices bytes both ways until both directions have ended, or until one hop fails, which resets the
//!    other.
//! 9. `audit`: writes who was allowed or refused, by which rule, to a file of its own.
//! 10. `record`: writes one line to the log. A framed connection returns to its pool.
//!
//! `session` performs steps 4 to 10. The trait `session::WayIn` abstracts how a request arrives; `connection` implements
//! it. So does `entry`, for programs that come by SOCKS or HTTP: by the first byte it tells them from those that speak the
//! session protocol. `passwords` checks what they show. `origin` says to destinations who the client is, and learns it from relays
//! in front of listeners.
//!
//! If a hop consists of several connections, `bundle` decides which ones may join, and passes them to the relay.
//!
//! A peer with `transport = "auto"` is reached by the transport that suits the segment. `path_metrics` keeps what
//! connections have measured, `choose` has the rules, and the peer's pool follows their decision.
//!
//! A session-aware destination is a gateway that connects to nothing: a [`LocalAcceptor`] takes its sessions into its
//! own process. For a destination that accepts connections itself, the last gateway asks it about each session:
//! `aware`.
//!
//! # Limits
//!
//! `config::raw` has every limit with its default and the reason for it. `admission` counts pending handshakes,
//! connections and sessions against them, in all and by source (`slots`). `quota` does so by user, group, source and peer. `budget` says how many sessions the
//! descriptors are enough for. The memory of a session is bounded where the configuration is read (`config::read` sizes
//! the sockets' buffers, `Config::hold` the pipe), and divided among the connections of a bundle by
//! `listener_settings`. `monitor` ends sessions that are silent for too long.
//!
//! # The whole
//!
//! [`Config`] is the configuration, [`Status`] is what `phoebus status` shows, and [`serve`] runs a gateway with its
//! signals.
//!
//! A session can end in only a few ways, on purpose. Everything but the success of step 8 drops the connections, and a
//! dropped connection is reset ([`phoebus_net`]). That covers panics, cancelled tasks and unforeseen errors.

mod accept;
mod admin;
mod admission;
mod admit;
mod audit;
mod aware;
mod budget;
mod bundle;
mod choose;
pub mod config;
mod connection;
mod counters;
mod data_plane;
mod datagrams;
mod dial;
mod entry;
mod explain;
mod failure;
mod gateway;
mod grid;
mod guesses;
mod handshake;
mod handshake_slots;
mod issuers;
mod listener_settings;
mod listening;
mod liveness;
mod local_acceptor;
mod mechanisms;
mod monitor;
mod origin;
mod passwords;
mod path_metrics;
mod peer_identity;
mod pool;
mod quota;
mod record;
mod refusal;
mod relay;
mod replay;
mod request;
mod requirements;
mod reserve;
mod route;
mod rules;
mod serve;
mod session;
mod sessions;
mod shared;
mod slots;
mod start_error;
mod status;
mod suspicion;
mod transports;
mod workers;

pub use audit::AuditStatus;
pub use budget::check;
pub use config::{Config, ConfigError, transports};
pub use counters::Totals;
pub use explain::{AddressExplanation, Explanation, explain};
pub use gateway::Gateway;
pub use local_acceptor::{Guard, IncomingSession, LocalAcceptor};
pub use path_metrics::SegmentStatus;
pub use pool::{ChoiceStatus, PoolStatus};
pub use quota::AccountStatus;
pub use serve::{Outcome, serve};
pub use session::REFUSED;
pub use start_error::StartError;
pub use status::{CertificateStatus, DatagramStatus, HopStatus, PrincipalStatus, SessionStatus, Status};
pub use suspicion::SUSPICION;
