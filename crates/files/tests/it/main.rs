//! All integration tests of this crate, in one program, since linking one is quicker than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod batches;
mod common;
mod confined;
mod holes;
mod job;
mod killed;
mod links;
mod names;
mod private;
mod transfer;
