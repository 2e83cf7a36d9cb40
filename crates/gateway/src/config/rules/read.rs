//! `[[rule]]` and `[[allow]]` as they are read from the file.

use super::super::carriage::Carriage;
use super::super::reader::Reader;
use super::super::{ConfigError, Listen, Pattern, Peer, pattern, raw};
use super::{Action, Rule, RulePlace, Rules, Source, Table, read_method};
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, Host};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use toml::Spanned;

/// What rules may name.
pub(in super::super) struct Nameable<'a> {
    /// This gateway's name.
    pub(in super::super) name: &'a str,
    pub(in super::super) listeners: &'a [Listen],
    pub(in super::super) peers: &'a BTreeMap<String, Peer>,
    pub(in super::super) carriage: &'a Carriage,
    /// Whether there can be users.
    pub(in super::super) has_users: bool,
}

impl Reader<'_> {
    /// All rules, in the order in which they are judged.
    pub(in super::super) fn rules(
        &self,
        rules: &[Spanned<raw::Rule>],
        allows: &[Spanned<raw::Allow>],
        nameable: &Nameable<'_>,
    ) -> Result<Rules, ConfigError> {
        let rules = (1..).zip(rules).map(|(number, rule)| self.rule(number, rule, nameable));
        let allows = (1..).zip(allows).map(|(number, allow)| self.allow(number, allow, nameable));
        rules.chain(allows).collect::<Result<_, _>>().map(Rules::new)
    }

    fn rule_place<T>(&self, table: Table, number: u32, value: &Spanned<T>) -> RulePlace {
        RulePlace { table, number, line: self.line(value.span()) }
    }

    fn allow(&self, number: u32, raw: &Spanned<raw::Allow>, nameable: &Nameable<'_>) -> Result<Rule, ConfigError> {
        let place = self.rule_place(Table::Allow, number, raw);
        let raw = raw.get_ref();
        let from = raw.from.iter().map(|text| self.allowed_source(text, nameable));
        Ok(Rule {
            action: Action::Allow,
            who: vec![from.collect::<Result<_, _>>()?],
            to: raw.to.iter().map(|to| self.parse(to)).collect::<Result<_, _>>()?,
            ports: self.ports(raw.ports.as_ref(), "allows nothing")?,
            reason: String::new(),
            place,
        })
    }

    /// An entry of `from` in `[[allow]]`.
    fn allowed_source(&self, text: &Spanned<String>, nameable: &Nameable<'_>) -> Result<Source, ConfigError> {
        let name = text.get_ref().to_ascii_lowercase();
        if let Some(proved) = name.strip_prefix("certificate:") {
            self.needs_certificates(text, nameable.carriage)?;
            return proved.parse().map(Source::Certificate).map_err(|message: String| self.at(text, message));
        }
        // Names of users and groups keep their case.
        let named = |kind: &str| text.get_ref().strip_prefix(kind).filter(|name| !name.is_empty()).map(str::to_owned);
        if let Some(source) = named("user:").map(Source::User).or_else(|| named("group:").map(Source::Group)) {
            self.needs_users(text, nameable)?;
            return Ok(source);
        }
        match text.get_ref().parse() {
            Ok(net) => Ok(Source::Net(net)),
            Err(_) if nameable.peers.contains_key(&name) => Ok(Source::Peer(name)),
            Err(_) => Err(self.at(
                text,
                format!(
                    "\"{}\" is neither an address range such as 10.1.0.0/16 nor a configured peer, nor \
                     certificate:NAME, user:NAME or group:NAME",
                    text.get_ref()
                ),
            )),
        }
    }

    fn rule(&self, number: u32, raw: &Spanned<raw::Rule>, nameable: &Nameable<'_>) -> Result<Rule, ConfigError> {
        let place = self.rule_place(Table::Rule, number, raw);
        let raw = raw.get_ref();
        let action = self.action(raw, nameable)?;
        let to = self.names(raw.to.as_ref(), "fits no destination", Pattern::from_str)?.unwrap_or_default();
        if action == Action::Allow && to.is_empty() {
            let expected = "expected to = [\"192.0.2.0/24\"], say, or [\"*\"] for every public address";
            return Err(self.at(&raw.action, format!("this rule does not say what it allows; {expected}")));
        }
        if let (Some(reason), Action::Allow) = (&raw.reason, &action) {
            let message = "reason is what those are told who are refused; expected none in a rule that allows";
            return Err(self.at(reason, message));
        }
        Ok(Rule {
            who: self.who(raw, nameable)?,
            to,
            ports: self.ports(raw.ports.as_ref(), "fits no port")?,
            reason: raw.reason.as_ref().map(|reason| reason.get_ref().clone()).unwrap_or_default(),
            action,
            place,
        })
    }

    fn action(&self, raw: &raw::Rule, nameable: &Nameable<'_>) -> Result<Action, ConfigError> {
        let known = ["allow", "deny", "redirect"].map(str::to_owned);
        let action = match (raw.action.get_ref().as_str(), &raw.gateway) {
            ("redirect", Some(gateway)) => return self.target(gateway, nameable).map(Action::Redirect),
            ("redirect", None) => {
                let message =
                    "this rule does not say where to; expected gateway = \"HOST:PORT\" beside action = \"redirect\"";
                return Err(self.at(&raw.action, message));
            }
            ("allow", _) => Action::Allow,
            ("deny", _) => Action::Deny,
            _ => return Err(self.unknown(&raw.action, "action", known.iter())),
        };
        match &raw.gateway {
            None => Ok(action),
            Some(gateway) => {
                let message = format!(
                    "only a rule with action = \"redirect\" names a gateway, and this one has \"{}\"; expected that action, or no \
                     gateway",
                    action.name()
                );
                Err(self.at(gateway, message))
            }
        }
    }

    /// The gateway that a rule or a limit redirects to: any but this one.
    pub(in super::super) fn target(
        &self,
        given: &Spanned<String>,
        nameable: &Nameable<'_>,
    ) -> Result<Endpoint, ConfigError> {
        let target = raw::endpoint(given.get_ref()).map_err(|message| self.at(given, message))?;
        let is_own = match &target.host {
            Host::Name(name) => name == nameable.name,
            Host::Addr(addr) => {
                // The address of an interface is known only while it is up. Where the kernel says nothing, none is known.
                let near = phoebus_net::route::is_own(*addr).unwrap_or(false);
                let is_at = |listen: &Listen| {
                    let own = listen.address.ip();
                    listen.address.port() == target.port && (own == addr.to_canonical() || own.is_unspecified() && near)
                };
                nameable.listeners.iter().any(is_at)
            }
        };
        if is_own {
            let message = format!("{target} is this gateway itself; expected another one");
            return Err(self.at(given, message));
        }
        Ok(target)
    }

    /// The requirements on who asks, and on how.
    fn who(&self, raw: &raw::Rule, nameable: &Nameable<'_>) -> Result<Vec<Vec<Source>>, ConfigError> {
        for names in [&raw.user, &raw.group].into_iter().flatten() {
            self.needs_users(names, nameable)?;
        }
        if let Some(certificates) = &raw.certificate {
            self.needs_certificates(certificates, nameable.carriage)?;
        }
        let text = |kind: fn(String) -> Source| {
            move |name: &str| match name {
                "" => Err("an empty name fits nobody; expected a name".to_owned()),
                name => Ok(kind(name.to_owned())),
            }
        };
        let listed = |what: &str, name: &str, known: &[String]| {
            format!("there is no {what} \"{name}\"; expected one of: {}", known.join(", "))
        };
        let peers: Vec<String> = nameable.peers.keys().cloned().collect();
        let peer = |name: &str| {
            let name = name.to_ascii_lowercase();
            if peers.contains(&name) { Ok(Source::Peer(name)) } else { Err(listed("peer", &name, &peers)) }
        };
        let addresses: Vec<String> = nameable.listeners.iter().map(|listen| listen.address.to_string()).collect();
        let listener = |text: &str| {
            let own = text.parse().ok().filter(|addr: &SocketAddr| addresses.contains(&addr.to_string()));
            own.map(Source::Listener).ok_or_else(|| listed("[[listen]] with address", text, &addresses))
        };
        let transport = |name: &str| {
            let known = &nameable.carriage.names;
            if known.iter().any(|own| own == name) {
                Ok(Source::Transport(name.to_owned()))
            } else {
                Err(listed("transport", name, known))
            }
        };
        let security = |name: &str| {
            let all = [Security::Encrypt, Security::Auth, Security::None];
            let found = all.into_iter().find(|security| security.name() == name).map(Source::Security);
            found.ok_or_else(|| listed("security", name, &all.map(|security| security.name().to_owned())))
        };
        const NOBODY: &str = "fits nobody";
        let who = [
            self.names(raw.from.as_ref(), NOBODY, |text| text.parse().map(Source::Net))?,
            self.names(raw.peer.as_ref(), NOBODY, peer)?,
            self.names(raw.certificate.as_ref(), NOBODY, |text| {
                text.to_ascii_lowercase().parse().map(Source::Certificate)
            })?,
            self.names(raw.user.as_ref(), NOBODY, text(Source::User))?,
            self.names(raw.group.as_ref(), NOBODY, text(Source::Group))?,
            self.names(raw.method.as_ref(), NOBODY, |name| read_method(name).map(Source::Method))?,
            self.names(raw.listener.as_ref(), NOBODY, listener)?,
            self.names(raw.transport.as_ref(), NOBODY, transport)?,
            self.names(raw.security.as_ref(), NOBODY, security)?,
        ];
        Ok(who.into_iter().flatten().collect())
    }

    pub(in super::super) fn needs_users<T>(
        &self,
        text: &Spanned<T>,
        nameable: &Nameable<'_>,
    ) -> Result<(), ConfigError> {
        if nameable.has_users {
            return Ok(());
        }
        let expected = "expected [users] with file = \"FILE\" (phoebus passwd makes it), an [[issuer]], [grid], or a [[peer]] with speaks_for";
        Err(self.at(text, format!("there are no users; {expected}")))
    }

    /// The entries of a list, each read by `read`; `None` without the key. An empty list is an error, since it `fits_nothing`.
    fn names<T>(
        &self,
        list: Option<&Spanned<raw::Names>>,
        fits_nothing: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, ConfigError> {
        let Some(list) = list else { return Ok(None) };
        let entries = match list.get_ref() {
            raw::Names::One(name) => std::slice::from_ref(name),
            raw::Names::Several(names) if names.is_empty() => {
                return Err(self.at(list, format!("an empty list {fits_nothing}; expected entries, or no such key")));
            }
            raw::Names::Several(names) => names,
        };
        let read = |name: &String| read(name).map_err(|message| self.at_entry(list, name, message));
        entries.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    fn ports(
        &self,
        list: Option<&Spanned<Vec<Spanned<raw::Ports>>>>,
        fits_nothing: &str,
    ) -> Result<Vec<RangeInclusive<u16>>, ConfigError> {
        let ports = |ports: &Spanned<raw::Ports>| match ports.get_ref() {
            raw::Ports::One(0) => Err(self.at(ports, "0 is no port")),
            raw::Ports::One(port) => Ok(*port..=*port),
            raw::Ports::Text(text) => pattern::ports(text).map_err(|message| self.at(ports, message)),
        };
        match list {
            None => Ok(Vec::new()),
            Some(list) if list.get_ref().is_empty() => {
                Err(self.at(list, format!("ports = [] {fits_nothing}; expected ports, or no such key")))
            }
            Some(list) => list.get_ref().iter().map(ports).collect(),
        }
    }
}
