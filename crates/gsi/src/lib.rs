//! Grid security (U1, S6, P28): single sign-on by proxy certificates, delegation, and the tokens of GSSAPI, wire-compatible
//! with the Grid Community Toolkit (GCT), over rustls. No socket, no clock, no OpenSSL.
//!
//! `docs/protocol/gsi.md` says what is spoken. Read in this order:
//!
//! - [`context`]: two ends agree who they are. [`Context`](context::Context) takes tokens and gives tokens.
//! - [`control`]: those tokens on a control channel (`AUTH GSSAPI`, `ADAT`, `ENC`, 632); [`channel`]: on a data channel
//!   (`DCAU`, `PROT`).
//! - [`proxy`]: what proxies are, whether a chain of them holds, how one is made.
//! - [`trust`]: authorities, signing policies, revocation lists.
//! - [`certificate`], [`name`], [`credential`]: the parts; [`gridmap`]: who a subject is here.
//! - [`files`]: where all of it is kept on disk. It, [`trust::directory`] and [`trust::kept`] are the only modules that read files.

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
