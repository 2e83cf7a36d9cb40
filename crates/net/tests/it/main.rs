//! All integration tests of this crate in one program, since linking one is faster than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod certificates;
mod clock;
mod driver_files;
mod driver_leaks;
mod driver_libudt;
mod drivers;
mod objects;
mod quic;
mod rates;
mod streams;
mod support;
mod tls;
mod tls_openssl;
mod udt;
mod udt_batches;
mod udt_survival;
mod wrapblock;
