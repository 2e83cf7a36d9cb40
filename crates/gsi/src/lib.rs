//! Grid security (U1, S6, P28): single sign-on by proxy certificates, delegation, and GSSAPI tokens, wire-compatible with the
//! Grid Community Toolkit (GCT), over rustls. It uses no socket, no clock and no OpenSSL.
//!
//! `docs/protocol/gsi.md` describes the protocol. Reading order:
//!
//! - [`context`]: two ends authenticate each other. [`Context`](context::Context) consumes and produces tokens.
//! - [`control`]: these tokens on a control channel (`AUTH GSSAPI`, `ADAT`, `ENC`, 632); [`channel`]: on a data channel
//!   (`DCAU`, `PROT`).
//! - [`proxy`]: proxy certificates: their verification and issuance.
//! - [`trust`]: authorities, signing policies, revocation lists.
//! - [`certificate`], [`name`], [`credential`]: the building blocks; [`gridmap`]: local users of a subject.
//! - [`files`]: the usual file locations. It, [`trust::directory`] and [`trust::kept`] are the only modules that read files.

pub mod certificate;
pub mod channel;
pub mod context;
pub mod control;
pub mod credential;
mod der;
pub mod files;
pub mod gridmap;
mod host;
mod kind;
pub mod name;
mod pem;
pub mod proxy;
mod sign;
mod time;
pub mod trust;
