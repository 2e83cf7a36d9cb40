//! How a connection ends that goes direct after all.

use super::*;
use std::process::Command;

/// Runs the ignored test `name` of this program on a network where nobody answers. Needs root.
fn where_nobody_is(name: &str) {
    let script = "ip link set lo up && ip link add near type veth peer name far && ip address add 192.0.2.1/24 dev near && ip link set near up \
        && ip link set far up && echo 10 >/proc/sys/net/ipv4/neigh/near/retrans_time_ms \
        && exec \"$0\" --exact \"$1\" --ignored --nocapture";
    let mut command = Command::new("unshare");
    let output =
        command.args(["-n", "sh", "-c", script]).arg(std::env::current_exe().unwrap()).arg(name).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn failed_direct_connection_reports_its_error() {
    where_nobody_is("connect::tests::missing_neighbour_is_an_error");
}

#[test]
#[ignore = "for a network of its own"]
fn missing_neighbour_is_an_error() {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let nobody = RawAddr::new(([192, 0, 2, 2], 9).into(), libc::AF_INET);
    socket::start_plain(fd, &nobody).unwrap();
    let mut failed = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one valid descriptor.
    assert_eq!(unsafe { libc::poll(&raw mut failed, 1, -1) }, 1);
    // Another socket's error is left to it.
    let cookie = sys::cookie(fd);
    assert_eq!(fall_back(fd, cookie.map(|cookie| cookie + 1), &nobody), GIVEN_UP);
    assert_eq!(fall_back(fd, cookie, &nobody), libc::EHOSTUNREACH);
    // As after any connect that failed.
    socket::start_plain(fd, &nobody).unwrap();
    sys::close(fd);
}

#[test]
fn abandoned_connection_is_reported() {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    assert_eq!(fall_back(fd, sys::cookie(fd), &RawAddr::new(([127, 0, 0, 1], 9).into(), libc::AF_INET)), GIVEN_UP);
    sys::close(fd);
}
