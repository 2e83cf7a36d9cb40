//! Sessions for programs: path choice and the client side of a session.
