//! Ports for programs that need a fixed one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port. From here up to the kernel's ephemeral range; services have the ports below.
const FIRST: u32 = 10_240;

/// A port on 127.0.0.1 and 127.0.0.2 that stays free until it is used: the kernel assigns it only to a request by
/// number.
#[allow(dead_code, reason = "each test file uses its own part")]
pub fn free() -> u16 {
    free_beside(1)
}

/// The first of so many beside each other.
#[allow(dead_code, reason = "each test file uses its own part")]
pub fn free_beside(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let given = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let last: u32 = given.split_whitespace().next().unwrap().parse().unwrap();
    let all = last.checked_sub(FIRST + u32::from(count)).expect("the kernel gives away all ports");
    for _ in 0..1000 {
        // Concurrent processes start far from each other.
        let offset =
            std::process::id().wrapping_mul(997).wrapping_add(NEXT.fetch_add(u32::from(count), Ordering::Relaxed));
        let first = (FIRST + offset % all) as u16;
        let is_free = |port| ["127.0.0.1", "127.0.0.2"].iter().all(|host| TcpListener::bind((*host, port)).is_ok());
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("there are no {count} free ports beside each other");
}
