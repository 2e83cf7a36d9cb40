//! epoll in a program while a session is opened, and after (`tests/c/epoll.c`).

use crate::common;
use common::compile;
use common::peer;
use std::path::PathBuf;
use std::sync::OnceLock;

pub fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("epoll", &[]))
}

fn check(rule: &str, gateway: &str) {
    peer::check(program(), rule, gateway);
}

macro_rules! rules {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), "127.0.0.1");
        }
    )*};
}

rules! { level edge once exclusive failure changed others threads many failed_and_closed again copied_set reused_set }

#[test]
fn again_through_a_gateway_of_ipv6() {
    check("again", "::1");
    check("reused_set", "::1");
}
