//! libphoebus: sessions for C programs (S2, S16, S18–S20, P31).
//!
//! The interface and its meaning are in `include/phoebus.h`; the documentation here describes the implementation.
//!
//! Reading order:
//!
//! - `boundary`: the boundary to C: pointers, strings, panics.
//! - `failure`, `report`: errors and reports for C programs. `options`: names and values.
//! - `handshake`: the opening of a session as a state machine, over [`phoebus_client::Opening`].
//! - `session`: an open session, which is a socket of the program.
//! - `context`: one thread with a runtime, and callbacks that wait for `phoebus_process()`. `attempt`: sessions
//!   opened there, or blocking. `listener`: a destination of sessions, which is a gateway that opens no connections.
//!
//! From the moment it is open, a session is a TCP connection that the program owns: the first hop itself, to a
//! gateway or to the user's agent, or, at its destination, a connection within the process. So reading and writing
//! are plain system calls, in any thread or child process of the program.
//!
//! Only `boundary` and the functions that C calls use `unsafe`; each states the promise of its caller that it relies
//! on.

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
