//! Pure state machines and codecs of Phoebus: no socket, no clock, no file.
