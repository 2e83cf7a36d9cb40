//! All integration tests of this crate, in one program, since linking one is quicker than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod agent;
mod common;
mod epoll;
mod fallback;
mod families;
mod killed;
mod programs;
mod redirects;
mod rules;
mod settings;
