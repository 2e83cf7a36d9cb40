//! libphoebus: sessions for C programs (S2, S16, S18–S20, P31).
//!
//! `include/phoebus.h` is the interface and says what everything means; the documentation here is about how it is done.
//!
//! Reading order:
//!
//! - `boundary`: what comes in from C and what goes out: pointers, texts, panics.
//! - `failure`, `report`: errors and reports as C programs hold them. `options`: names and values.
//! - `handshake`: the opening of a session as a machine, over [`phoebus_client::Opening`].
//! - `session`: an open session, which is a socket of the program's.
//! - `context`: one thread with a runtime, and callbacks that wait for `phoebus_process()`; `attempt`: sessions that are opened
//!   there, or at once; `listener`: a destination of sessions, which is a gateway that connects to nothing.
//!
//! A session is a TCP connection of the program's own from the moment it is open: the first hop itself, to a gateway or to the
//! user's agent, or a connection within the process where it has come to its destination. So reading and writing are system calls
//! and nothing else, in whatever thread or child process the program likes.
//!
//! `unsafe` is the first module's, and that of the functions which C calls: each says on what promise of its caller it relies.

#[macro_use]
mod boundary;
mod attempt;
mod bell;
mod context;
mod failure;
mod handshake;
#[cfg(test)]
mod header;
mod listener;
mod options;
mod report;
mod session;
