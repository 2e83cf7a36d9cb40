//! Proxy certificates (RFC 3820 and its two predecessors): [`verify`] and [`issue`].
//!
//! A proxy is not signed by an authority but by the holder of a certificate, who delegates some rights to another key for
//! some hours. Three formats are in use, and one chain uses only one of them:
//!
//! - RFC 3820: a critical extension states the rights, and the last common name is a number;
//! - its draft (Globus Toolkit 3): the same extension with another identifier and another order of fields;
//! - legacy (Globus Toolkit 2): no extension; the last common name is `proxy` or `limited proxy`.

pub mod issue;
pub mod request;
pub mod verify;

pub use crate::kind::{Format, Kind, Proxy, Rights};
