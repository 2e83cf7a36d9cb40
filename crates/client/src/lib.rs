//! Sessions for programs: path choice and the client side of a session (S16, S19, P8, P38).
//!
//! ```no_run
//! use phoebus_client::{Options, connect, environment};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = environment::load(environment::variable)?; // PHOEBUS_GW and the others
//! let mut session = connect(&Options::from(&settings), &"dtn.example:7".parse()?).await?;
//! session.write_all(b"hello").await?;
//! session.shutdown().await?; // ends this direction only
//! let mut answer = Vec::new();
//! session.read_to_end(&mut answer).await?;
//! session.finish().await?; // every byte was delivered
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: [`Options`]; [`Opening`], the opening of a session without its I/O; [`connect`], which adds the
//! I/O; [`Session`] and its [`Report`]; [`Error`]. [`Sessions`] offers the same as a transport. [`environment`] reads
//! variables and files, [`Agents`] finds a running agent, and `bypass` remembers short paths. [`Accepting`] is the
//! other side of an opening, for an aware destination. [`LoginAt`] turns a password into what openings need of it.

mod accepting;
mod agent;
mod bypass;
mod connect;
mod demands;
mod error;
mod login;
mod opening;
mod options;
mod report;
mod session;
mod sessions;
mod talk;

pub use accepting::{AcceptError, AcceptOptions, Accepting};
pub use agent::Agents;
pub use connect::{connect, open};
pub use demands::Demands;
pub use error::Error;
pub use login::LoginAt;
pub use opening::{FirstHop, Opening, Step};
pub use options::Options;
pub use phoebus_config::environment;
pub use phoebus_net::reason;
pub use phoebus_proto::session::plan::RedirectEnd;
pub use report::{Hop, Report};
pub use session::Session;
pub use sessions::Sessions;
