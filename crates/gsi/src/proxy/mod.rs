//! Proxy certificates: what they are (RFC 3820, and its two predecessors), [`verify`] and [`issue`].
//!
//! A proxy is signed not by an authority but by the holder of a certificate, who lends another key some of his rights
//! for some hours. Three formats are in use, and one chain has only one of them:
//!
//! - RFC 3820: a critical extension says what is lent, the last common name is a number;
//! - its draft (Globus Toolkit 3): the same extension by another number and in another order;
//! - legacy (Globus Toolkit 2): no extension; the last common name is `proxy` or `limited proxy`.

pub mod issue;
pub mod request;
pub mod verify;

pub use crate::kind::{Format, Kind, Proxy, Rights};
