//! Lets the path between two honest ends of TLS do anything to the bytes that travel.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| phoebus_net::tls::hostile::play(data));
