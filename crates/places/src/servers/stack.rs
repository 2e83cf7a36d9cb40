//! `--stack`: what carries data connections, as GCT writes it (U9–U12): drivers with commas between, the lowest first,
//! each with options after a colon, in which `%` and two hexadecimal digits are a character.
//!
//! | driver | is | the server is told |
//! |---|---|---|
//! | `tcp`, `udt`, `quic` | the transport of that name; between keys that the two ends tell each other, for `quic` | yes |
//! | `rate:rate=RATE` | how much of it either end sends at most | yes |
//! | `ssh` | connections of SSH, for servers that it starts | yes |
//! | `gsi` | what `--data-auth own` asks for anyway | yes |
//! | `tls` | what `ftps://` asks for anyway; elsewhere TLS between keys that the two ends tell each other | yes |
//! | `auto` alone | TCP or `object`, as [`crate::auto`] chooses for each file | for each file |
//! | `phoebus:gw=HOST/PORT`, `phoebus:path=HOST/PORT\|HOST/PORT` | sessions through gateways, as by `--gateways`; `udt`, `quic` or `tls` beside it is their first hop | no: its own end is a TCP connection of the last gateway |

use crate::error::{Error, Result};
use phoebus_config::first_hop::FirstHop;
use phoebus_gridftp::client::NetStack;
use phoebus_gridftp::data::stack::{self, OBJECT, SESSIONS};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::inside;

/// The name that leaves the choice to this end.
const AUTO: &str = "auto";

/// A stack, as it concerns this end.
#[derive(Debug, Clone)]
pub(crate) enum Stack {
    /// The drivers of both ends.
    Net(NetStack),
    /// Whether data goes inside SSH.
    Inside,
    /// Connections or objects, as this end chooses for each file. The stack is that of objects.
    Auto(NetStack),
    /// Gateways, as in `--gateways`.
    Gateways {
        /// All of them, the first hop first.
        path: Vec<Endpoint>,
        /// Transport of the first hop, if given.
        first_hop: Option<FirstHop>,
    },
}

impl Stack {
    /// Parses a stack.
    ///
    /// # Errors
    /// An unavailable driver, named ([`Error::Request`]).
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::read(text).map_err(|why| Error::request(format!("--stack {text}: {why}")))
    }

    fn read(text: &str) -> Result<Self, String> {
        if text.trim() == inside::DRIVER {
            return Ok(Self::Inside);
        }
        if text.trim() == AUTO {
            return NetStack::new(OBJECT, &stack::parse(OBJECT)?).map(Self::Auto);
        }
        let layers = stack::parse(text)?;
        if layers.iter().any(|layer| layer.name == AUTO) {
            return Err(format!("{AUTO} stands alone, without options and other drivers"));
        }
        let Some(at) = layers.iter().position(|layer| layer.name == SESSIONS) else {
            return NetStack::new(text, &layers).map(Self::Net);
        };
        let path = stack::gateways(&layers[at])?;
        let path =
            path.ok_or_else(|| format!("driver {SESSIONS} wants gateways here, as in {SESSIONS}:gw=pg1.example/5006"))?;
        let mut first_hop = None;
        for (i, layer) in layers.iter().enumerate().filter(|(i, _)| *i != at) {
            let name = layer.name.as_str();
            match name {
                _ if !layer.options.is_empty() => {
                    return Err(format!("driver {name} takes no options beside {SESSIONS}"));
                }
                // Authentication is set elsewhere.
                "gsi" if i > at => {}
                _ if first_hop.is_some() => return Err(format!("driver {name}: the first hop is given twice")),
                _ => first_hop = Some(name.parse().map_err(|_| format!("driver {name} cannot be beside {SESSIONS}"))?),
            }
        }
        Ok(Self::Gateways { path, first_hop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_read_of_stacks() {
        let gateways = |text: &str| match Stack::parse(text).unwrap() {
            Stack::Gateways { path, first_hop } => {
                let path: Vec<_> = path.iter().map(Endpoint::to_string).collect();
                (path.join(","), first_hop.map(|hop| hop.to_string()))
            }
            other => panic!("{other:?}"),
        };
        let hop = |name: &str| Some(name.to_owned());
        assert_eq!(gateways("phoebus:path=a/1|b"), ("a:1,b:5006".to_owned(), None));
        assert_eq!(gateways("tcp,phoebus:gw=a%2F1,gsi"), ("a:1".to_owned(), hop("tcp")));
        for text in ["phoebus:gw=a/1,udt", "udt,phoebus:gw=a/1"] {
            assert_eq!(gateways(text), ("a:1".to_owned(), hop("udt")));
        }
        assert!(matches!(Stack::parse("udt").unwrap(), Stack::Net(net) if net.text() == "udt"));
        for (text, words) in [
            ("mux", "--stack mux: driver mux is not available"),
            ("auto:x=1", "auto stands alone"),
            ("auto,rate:rate=1gbit", "auto stands alone"),
            ("phoebus", "driver phoebus wants gateways"),
            ("phoebus:gw=", "driver phoebus: gw: "),
            ("udt:mss=1400,phoebus:gw=a", "driver udt takes no options beside phoebus"),
            ("udt,phoebus:gw=a,tcp", "driver tcp: the first hop is given twice"),
            ("phoebus:gw=a,rate", "driver rate cannot be beside phoebus"),
        ] {
            let error = Stack::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
