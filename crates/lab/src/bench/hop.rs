//! The transports of a path's hops with gateways: between them ([`Wan`]) and from `src` to the first.

use super::gateway;
use crate::testbed::{Security, certificates};
use phoebus_wan::testbed::GatewayOptions;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The transport of sessions between the gateways of a bed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wan {
    /// Its name in rows and options.
    pub(crate) name: String,
    transport: &'static str,
    security: Security,
    /// Whether the gateways also accept agents, over QUIC and UDT.
    agents: bool,
    /// Settings of the profile between the gateways, by configuration key.
    profile: BTreeMap<String, String>,
}

/// All named [`Wan`]s: name, transport, and congestion control if it is not the transport's default.
const WANS: [(&str, &str, Option<&str>); 8] = [
    ("tcp", "tcp", None),
    ("bbr", "tcp", Some("bbr")),
    ("cubic", "tcp", Some("cubic")),
    ("reno", "tcp", Some("reno")),
    ("quic", "quic", None),
    ("udt", "udt", None),
    ("udt-native", "udt", Some("native")),
    ("auto", "auto", None),
];

impl Wan {
    /// Plain TCP without protection: comparable to relays that do not protect anything either.
    pub(crate) fn plain(congestion_control: &str) -> Self {
        let wan = Self {
            name: congestion_control.into(),
            transport: "tcp",
            security: Security::None,
            agents: false,
            profile: BTreeMap::new(),
        };
        wan.with("congestion_control", congestion_control)
    }

    /// The same with this protection. QUIC always has its own.
    pub(crate) fn secured(mut self, security: Security) -> Self {
        self.security = if self.transport == "quic" { Security::Encrypt } else { security };
        self
    }

    /// The same with another setting of its profile, such as `rate`.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.profile.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Whether it is TCP without protection.
    fn is_plain(&self) -> bool {
        self.transport == "tcp" && self.security == Security::None && !self.agents
    }

    /// The gateways of a testbed with these `hosts`, which use `lan_cc` towards the ends.
    pub(crate) fn gateways(&self, lan_cc: &str, hosts: &[&str]) -> anyhow::Result<GatewayOptions> {
        // Listeners share the profile of the ends, and other transports have other controls. By default gateways
        // choose bbr: they may, in their own hosts.
        let lan = self.is_plain().then(|| ("congestion_control".to_owned(), lan_cc.to_owned()));
        let hosts = hosts.iter().map(|host| (*host).to_owned());
        Ok(GatewayOptions {
            program: gateway::program(),
            transport: Some(self.transport.to_owned()),
            security: Some(self.security.name().to_owned()),
            certificates: (!self.is_plain()).then(|| certificates(hosts)).transpose()?,
            wan: self.profile.clone(),
            lan: lan.into_iter().collect(),
            ..GatewayOptions::default()
        })
    }

    /// Its protection, as reports name it.
    pub(crate) fn protection(&self) -> &'static str {
        self.security.name()
    }
}

impl FromStr for Wan {
    type Err = String;

    /// Encrypted, the default between gateways.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, transport, control)) = WANS.iter().find(|(name, ..)| *name == text) else {
            let known: Vec<_> = WANS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("expected one of {}", known.join(", ")));
        };
        let profile =
            control.map(|control| ("congestion_control".to_owned(), control.to_owned())).into_iter().collect();
        Ok(Self { name: (*name).to_owned(), transport, security: Security::Encrypt, agents: true, profile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wan_names_give_configurations() {
        let options =
            |name: &str| name.parse::<Wan>().unwrap().with("rate", "500mbit").gateways("bbr", &["pg1"]).unwrap();
        let cubic = options("cubic");
        assert_eq!((cubic.transport.as_deref(), cubic.security.as_deref()), (Some("tcp"), Some("encrypt")));
        assert_eq!((&*cubic.wan["congestion_control"], &*cubic.wan["rate"]), ("cubic", "500mbit"));
        assert_eq!(Wan::plain("reno").gateways("reno", &["pg1"]).unwrap().lan["congestion_control"], "reno");
        assert!(cubic.certificates.is_some_and(|all| all.hosts.contains_key("pg1")));
        assert_eq!((options("quic").wan.get("congestion_control"), options("udt").lan.len()), (None, 0));
        assert_eq!(
            "sctp".parse::<Wan>().unwrap_err(),
            "expected one of tcp, bbr, cubic, reno, quic, udt, udt-native, auto"
        );
    }

    #[test]
    fn wan_omits_protection_only_where_possible() {
        let open = |name: &str| name.parse::<Wan>().unwrap().secured(Security::None);
        assert_eq!((open("udt").protection(), open("quic").protection()), ("none", "encrypt"));
        assert!(Wan::plain("bbr").gateways("bbr", &["pg1"]).unwrap().certificates.is_none());
    }
}
