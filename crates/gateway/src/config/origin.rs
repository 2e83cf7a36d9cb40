//! Settings about the client's address: `proxy_from` of a listener, `proxy` and `source` of a route.

use super::reader::Reader;
use super::{ConfigError, Net, raw};

impl Reader<'_> {
    /// Where relays come from that name their clients to a listener.
    pub(super) fn proxy_from(&self, listen: &raw::Listen, transport: &str) -> Result<Vec<Net>, ConfigError> {
        let Some(given) = &listen.proxy_from else { return Ok(Vec::new()) };
        if transport != "tcp" {
            let message =
                format!("proxy_from is for connections by TCP, not {transport}; expected transport = \"tcp\"");
            return Err(self.at(given, message));
        }
        if given.get_ref().is_empty() {
            return Err(self.at(given, "proxy_from is empty; expected ranges such as \"10.0.0.0/24\""));
        }
        let range = |net: &toml::Spanned<String>| {
            let range: Net = self.parse(net)?;
            if range.to_string().ends_with("/0") {
                let message =
                    format!("proxy_from = \"{range}\" would let anybody name any client; expected your proxies");
                return Err(self.at(net, message));
            }
            Ok(range)
        };
        given.get_ref().iter().map(range).collect()
    }

    /// What the destinations of a route learn of clients: whether a PROXY header names them, and whether connections come from
    /// their addresses.
    pub(super) fn shown(&self, route: &raw::Route, is_direct: bool) -> Result<(bool, bool), ConfigError> {
        let expect = |given: &Option<toml::Spanned<String>>, name: &str, only: &str| match given {
            None => Ok(false),
            Some(given) if given.get_ref() != only => {
                Err(self.at(given, format!("{name} is \"{}\"; expected \"{only}\", or no {name}", given.get_ref())))
            }
            Some(given) if !is_direct => {
                let message =
                    format!("{name} is for the gateway that connects to the destination; expected via = \"direct\"");
                Err(self.at(given, message))
            }
            Some(_) => Ok(true),
        };
        Ok((expect(&route.proxy, "proxy", "v2")?, expect(&route.source, "source", "client")?))
    }
}
