//! All integration tests of this crate, in one program, since linking one is quicker than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod agent;
mod audit;
mod auto;
mod beacons;
mod bundles;
mod configuration;
mod datagrams;
mod drivers;
mod entries;
mod floods;
mod lifecycle;
mod limits;
mod origin;
mod passwords;
mod rates;
mod refusals;
mod renewal;
mod rules;
mod security;
mod sessions;
mod support;
mod transports;
