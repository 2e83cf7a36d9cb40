//! `phoebus run --proxy`: programs that know proxies, such as Go programs and static ones, use an agent as one. The variables that
//! tell them so have the agent's secret, which programs of the same user can read anyway.

use crate::agent::{self, AgentHandle};
use crate::exit::{self, Exit};
use crate::options::{self, Variable};
use anyhow::Result;
use phoebus_config::settings::{Key, Settings};
use phoebus_proto::hex::hex;
use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Command;

/// This host, to which connections do not go through gateways.
const OWN_HOST: &str = "localhost,127.0.0.0/8,127.0.0.1,::1";
/// Longest path: SOCKS has it in place of a user's name (RFC 1929).
const PATH_MAX: usize = 255;

/// Sets the variables of `program` for an agent, which runs while the result lives.
///
/// # Errors
/// One sentence: settings that a proxy cannot carry out, or no agent.
pub(crate) fn set(program: &mut Command, settings: Settings, mut variables: Vec<Variable>) -> Result<AgentHandle> {
    check(&settings)?;
    let path = settings.path.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if path.len() > PATH_MAX {
        let message = format!("--proxy takes a path of at most {PATH_MAX} bytes; this one has {}", path.len());
        return Err(Exit::usage(message));
    }
    let direct = direct(&settings)?;
    if settings.first_hop.is_none() {
        variables.push((Key::FirstHop, Some("tcp".to_owned())));
    }
    let settings = options::settings(&variables)?;
    let (held, running) = agent::for_proxy(&settings, &variables, exit::PREPARE)?;
    let Some(at) = running.addresses.into_iter().flatten().next() else {
        return Err(Exit::with(exit::PREPARE, "the agent has no address".to_owned()));
    };
    let url = |scheme: &str| url(scheme, &path, &hex(&running.secret.0), at);
    // Names are resolved at the far end. Few programs know SOCKS for https, and all know CONNECT.
    for (names, value) in [
        (["ALL_PROXY", "all_proxy"], url("socks5h")),
        (["HTTP_PROXY", "http_proxy"], url("socks5h")),
        (["HTTPS_PROXY", "https_proxy"], url("http")),
        (["NO_PROXY", "no_proxy"], direct),
    ] {
        program.envs(names.map(|name| (name, &value)));
    }
    // They would be used before ALL_PROXY.
    for name in ["FTP_PROXY", "ftp_proxy", "SOCKS_PROXY", "socks_proxy"] {
        program.env_remove(name);
    }
    Ok(held)
}

/// Refuses settings that nobody would carry out.
fn check(settings: &Settings) -> Result<()> {
    let given = [
        (settings.only.is_some(), Key::Only, "--only"),
        (settings.fallback, Key::Fallback, "--fallback"),
        (!settings.bypass_rtt.is_zero(), Key::BypassRtt, "--bypass-rtt"),
        (settings.bandwidth.is_some(), Key::Bandwidth, "--bandwidth"),
        (settings.report.is_some(), Key::Report, "--report"),
        (settings.verbose, Key::Verbose, "--verbose"),
    ];
    match given.into_iter().find(|(is_given, ..)| *is_given) {
        None => Ok(()),
        Some((_, key, option)) => Err(Exit::usage(format!(
            "{option} ({key}) has no effect on a program that uses a proxy; expected no --proxy, or not both"
        ))),
    }
}

/// The value of NO_PROXY: this host, and what the settings except.
fn direct(settings: &Settings) -> Result<String> {
    let mut all = OWN_HOST.to_owned();
    let except = settings.except.as_ref().map(ToString::to_string).unwrap_or_default();
    for entry in except.split(',').filter(|entry| !entry.is_empty()) {
        // A range of IPv6 has its prefix behind the bracket.
        let host = entry.replace(['[', ']'], "");
        let has_ports = entry.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        if has_ports || entry == "*" {
            let message = format!(
                "--except ({}): \"{entry}\" cannot be said to a program that uses a proxy; expected hosts, domains and ranges \
                 without ports",
                Key::Except
            );
            return Err(Exit::usage(message));
        }
        all.push(',');
        all.push_str(&host);
    }
    Ok(all)
}

/// The address of the agent as a proxy.
fn url(scheme: &str, path: &str, secret: &str, at: SocketAddr) -> String {
    let mut user = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' => user.push(byte.into()),
            _ => drop(write!(user, "%{byte:02X}")),
        }
    }
    format!("{scheme}://{user}:{secret}@{at}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;

    fn settings(only_except: &str) -> Settings {
        Settings { except: Some(only_except.parse().unwrap()), ..Settings::default() }
    }

    #[test]
    fn exceptions_become_no_proxy() {
        let all = "10.3.0.0/16,[2001:db8::]/32,[::5],host.example,.example.org";
        let expected = format!("{OWN_HOST},10.3.0.0/16,2001:db8::/32,::5,host.example,.example.org");
        assert_eq!(direct(&settings(all)).unwrap(), expected);
        assert_eq!(direct(&Settings::default()).unwrap(), OWN_HOST);
        for odd in ["host.example:443", "[::5]:1-2", "*", "*:80"] {
            let error = direct(&settings(odd)).unwrap_err().to_string();
            assert!(error.contains("without ports"), "{odd}: {error}");
        }
    }

    #[test]
    fn settings_without_effect_are_refused() {
        let error = |settings: &Settings| check(settings).unwrap_err().to_string();
        assert!(error(&Settings { verbose: true, ..Settings::default() }).starts_with("--verbose (PHOEBUS_VERBOSE)"));
        let only = Settings { only: Some(".example.org".parse().unwrap()), ..Settings::default() };
        assert!(error(&only).starts_with("--only (PHOEBUS_ONLY)"));
        check(&Settings::default()).unwrap();
    }

    #[test]
    fn paths_are_escaped_in_urls() {
        let at = "127.0.0.1:7".parse().unwrap();
        let path = "pg1.example:5006,[::1]:7";
        assert_eq!(url("http", path, "5e", at), "http://pg1.example%3A5006%2C%5B%3A%3A1%5D%3A7:5e@127.0.0.1:7");
    }
}
