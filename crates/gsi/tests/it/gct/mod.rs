//! Tests against the real programs: Debian's Grid Community Toolkit and OpenSSL. A missing program is an
//! error (`scripts/setup test` installs them).

mod control;
mod data;
mod lab;
mod proxies;
mod serving;
mod trust;
