//! All integration tests of this crate, in one program, since linking one is quicker than linking many.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on has failed; nobody links a test")]

mod addresses;
mod batches;
mod client_hostile;
mod drafts;
mod ends;
mod extended;
mod fake;
mod floods;
mod ftp;
mod gct;
mod getput;
mod gone;
mod gsi;
mod kerberos;
mod keys;
mod limits;
mod objects;
mod other_clients;
mod pipelined_files;
mod plain;
mod predecessors;
mod stacks;
mod strangers;
mod stripes;
mod support;
mod tls;
