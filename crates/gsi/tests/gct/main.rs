//! Against the real programs: Debian's Grid Community Toolkit and OpenSSL. What is not installed is an error
//! (`scripts/setup test` installs it).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod control;
mod data;
mod lab;
mod proxies;
mod serving;
mod trust;
