//! Transports of a hop: sockets, their options, splicing and statistics.
