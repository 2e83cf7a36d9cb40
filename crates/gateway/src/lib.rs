//! The Phoebus gateway: accept, authenticate, admit, route, dial, relay.
