//! A gateway that is stopped, as by a debugger or on a suspended host. Its sessions continue after a short stop, and
//! fail at both ends after one longer than the hop's time-out. They never end cleanly (invariant 1, P23).

use crate::support;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;
use support::assert_reset;
use support::path::{Path, transfer};

#[test]
fn over_quic_longer_than_the_time_out_leaves_no_clean_end() {
    longer_than_the_time_out("quic");
}

#[test]
fn over_udt_longer_than_the_time_out_leaves_no_clean_end() {
    longer_than_the_time_out("udt");
}

fn longer_than_the_time_out(transport: &str) {
    let path = Path::by(transport, "idle_timeout = \"3s\"");
    for stopped in [0, 1] {
        let (mut client, mut destination) = path.session();
        client.write_all(b"before").unwrap();
        destination.read_exact(&mut [0; 6]).unwrap();
        path.signal(stopped, libc::SIGSTOP);
        thread::sleep(Duration::from_secs(8));
        path.signal(stopped, libc::SIGCONT);
        assert_reset(&mut client, "client");
        assert_reset(&mut destination, "destination");
        transfer(path.session(), 16, || {});
    }
}

#[test]
fn over_quic_less_than_the_time_out_costs_no_session() {
    less_than_the_time_out("quic");
}

#[test]
fn over_udt_less_than_the_time_out_costs_no_session() {
    less_than_the_time_out("udt");
}

fn less_than_the_time_out(transport: &str) {
    let path = Path::by(transport, "");
    let pause = || {
        for stopped in [0, 1] {
            path.signal(stopped, libc::SIGSTOP);
            thread::sleep(Duration::from_secs(4));
            path.signal(stopped, libc::SIGCONT);
        }
    };
    transfer(path.session(), 256, pause);
}
