//! Passwords and verifiers with the programs of others.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod gsasl;
mod postgres;
