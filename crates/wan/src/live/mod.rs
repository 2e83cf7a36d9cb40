//! Links between real hosts: two TUN devices, usually in network namespaces of their own, with the link's
//! [model](crate::model) between them and a thread that forwards packets when they are due.
//!
//! ```no_run
//! # use phoebus_wan::{live, model};
//! # fn in_namespace<T>(_: &str, open: impl FnOnce() -> T) -> T { open() }
//! # fn main() -> std::io::Result<()> {
//! let a = in_namespace("src", || live::open_tun("wan0", 1500))?;
//! let b = in_namespace("dst", || live::open_tun("wan0", 1500))?;
//! let link = live::LiveLink::start(model::LinkConfig::default(), a, b)?;
//! // ... the devices get addresses, programs run ...
//! println!("{:?}", link.counters());
//! # Ok(())
//! # }
//! ```

mod link;
mod pool;
mod pump;
mod shared;
mod syscall;
mod tun;

pub use link::LiveLink;
pub(crate) use syscall::run_first;
pub use tun::{TRANSMIT_QUEUE_PACKETS, Tun, open_tun};
