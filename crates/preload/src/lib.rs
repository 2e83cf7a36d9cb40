//! The LD_PRELOAD shim: programs use sessions without knowing (P29–P33, S9, S23).
//!
//! `LD_PRELOAD=libphoebus_preload.so PHOEBUS_GW=host/port COMMAND` is all it takes. The descriptor that the program connects
//! is connected to the first gateway instead, and the handshake runs on it inside the program's own connect, poll, select
//! and epoll calls. There is no thread, no runtime and no other descriptor. After OPENED the shim is out of the way: the
//! program reads and writes the socket itself.
//!
//! # Rules for everything in this crate
//!
//! A hook may run in a signal handler, between fork and exec, or in a program that replaces malloc. After the constructor
//! has run, hooks do not allocate, do not wait for locks, do not read the environment, and use no thread-locals with
//! destructors. The two exceptions are named where they are: resolving the gateway's name once, and writing a report.
//!
//! State belongs to sockets, not to descriptors: it is kept under the kernel's SO_COOKIE, and so survives dup, fork, and
//! closes that nobody saw. A child of vfork shares this memory with its parent: it changes nothing.
//!
//! Reading order: [`connect`] starts a session, [`pending`] holds it until it is open, [`progress`] moves its handshake;
//! [`poll`], [`select`] and [`epoll`] let the program wait for it; [`io`] and [`options`] answer for it meanwhile.

#![allow(unsafe_code, reason = "every function here replaces one of C and talks to the next one in line")]
#![allow(unreachable_pub, reason = "the C names are what this library exports")]

mod config;
mod connect;
mod epoll;
mod io;
mod names;
mod options;
mod pending;
mod poll;
mod progress;
mod real;
mod replace;
mod report;
mod select;
mod sessions;
mod sys;
