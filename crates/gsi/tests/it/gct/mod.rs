//! Against the real programs: Debian's Grid Community Toolkit and OpenSSL. What is not installed is an error
//! (`scripts/setup test` installs it).

mod control;
mod data;
mod lab;
mod proxies;
mod serving;
mod trust;
