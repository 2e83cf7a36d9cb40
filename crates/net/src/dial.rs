//! From a name to a connection in bounded time: resolution, and Happy Eyeballs over IPv4 and IPv6 (RFC 8305).

use crate::error::Error;
use crate::profile::Profile;
use crate::stream::Stream;
use crate::tcp::Tcp;
use crate::transport::{Target, Transport};
use phoebus_proto::units::Span;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Pause before the next address is tried beside the ones under way (RFC 8305 §5 recommends 250 ms).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Most addresses of one name that are tried: a name with hundreds of addresses must not cost hundreds of
/// connections.
pub(crate) const ATTEMPTS_MAX: usize = 8;

/// Resolves `name` to its addresses, in the order in which to try them (RFC 6724, then RFC 8305 §4).
///
/// # Errors
/// [`Error::Resolve`], and [`Error::Timeout`] when the resolver does not answer within `limit`.
pub async fn resolve(name: &str, port: u16, limit: Duration) -> Result<Vec<SocketAddr>, Error> {
    match timeout(limit, tokio::net::lookup_host((name, port))).await {
        Ok(Ok(found)) => Ok(ordered(found)),
        Ok(Err(source)) => Err(Error::Resolve { name: name.to_owned(), source }),
        Err(_) => Err(Error::Timeout { to: format!("the resolver for {name}"), limit: Span(limit) }),
    }
}

/// Removes duplicates from a resolver's answer and puts the addresses in the order in which to try them.
pub(crate) fn ordered(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for addr in found {
        if !addresses.contains(&addr) {
            addresses.push(addr);
        }
    }
    interleave(addresses)
}

/// The local address that packets to `peer` would carry as their source. Sends nothing.
///
/// # Errors
/// When no route to `peer` exists.
pub fn address_towards(peer: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // The port does not matter, because nothing is sent; 9 is discard (RFC 863).
    socket.connect((peer, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Connects with TCP to the first of `addresses` that answers. The next address is tried when the previous
/// one has failed or has not answered for a while. `limit` bounds the whole.
///
/// # Errors
/// The errors of all addresses, the most informative first: a refusal before a time-out, a time-out before a
/// missing route.
pub async fn connect(addresses: &[SocketAddr], profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    connect_by(&(Arc::new(Tcp) as Arc<dyn Transport>), &"".into(), addresses, profile, limit).await
}

/// As [`connect`], over any transport. `name` is what the peer's certificate must prove, where the transport
/// verifies one.
///
/// # Errors
/// As for [`connect`].
pub async fn connect_by(
    transport: &Arc<dyn Transport>,
    name: &Arc<str>,
    addresses: &[SocketAddr],
    profile: &Profile,
    limit: Duration,
) -> Result<Stream, Error> {
    let target = |addr| Target { addr, name: name.clone(), early: false };
    if let [only] = addresses {
        return transport.connect(&target(*only), profile, limit).await;
    }
    let deadline = Instant::now() + limit;
    let mut waiting = addresses.iter().copied().take(ATTEMPTS_MAX);
    let mut attempts = JoinSet::new();
    let mut failed: Vec<Error> = Vec::new();
    loop {
        let next = waiting.next();
        let more = next.is_some();
        if let Some(addr) = next {
            let (transport, target, profile) = (transport.clone(), target(addr), profile.clone());
            let left = deadline.saturating_duration_since(Instant::now());
            attempts.spawn(async move { transport.connect(&target, &profile, left).await });
        }
        let time_limit = sleep_until(if more { Instant::now() + ATTEMPT_DELAY } else { deadline });
        tokio::pin!(time_limit);
        // Collects results of the attempts under way until the next address is due.
        loop {
            tokio::select! {
                () = &mut time_limit, if more => break,
                result = attempts.join_next() => match result {
                    Some(Ok(Ok(stream))) => return Ok(stream),
                    Some(Ok(Err(error))) => {
                        failed.push(within(error, limit));
                        if more {
                            break;
                        }
                    }
                    Some(Err(_)) => {}
                    None if more => break,
                    None => return Err(Error::of_several(failed).unwrap_or_else(|| nothing(limit))),
                },
            }
        }
    }
}

/// Replaces the time limit of a single attempt with that of the whole.
fn within(error: Error, limit: Duration) -> Error {
    match error {
        Error::Timeout { to, .. } => Error::Timeout { to, limit: Span(limit) },
        other => other,
    }
}

fn nothing(limit: Duration) -> Error {
    Error::Timeout { to: "a name without addresses".to_owned(), limit: Span(limit) }
}

/// Alternates between the address families, starting with the first address's family, and keeps the order
/// within each (RFC 8305 §4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first_is_v6) = addresses.first().map(SocketAddr::is_ipv6) else { return addresses };
    let (mut preferred, mut other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|addr| addr.is_ipv6() == first_is_v6);
    let mut order = Vec::with_capacity(preferred.len() + other.len());
    let (mut preferred, mut other) = (preferred.drain(..), other.drain(..));
    loop {
        let pair = (preferred.next(), other.next());
        if pair == (None, None) {
            return order;
        }
        order.extend(pair.0.into_iter().chain(pair.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate_in_their_own_order() {
        let got = interleave(addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"]));
        assert_eq!(got, addresses(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1", "[::3]:1"]));
        assert!(interleave(Vec::new()).is_empty());
    }

    #[tokio::test]
    async fn next_address_is_tried_at_once_after_a_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
        let open = listener.local_addr().unwrap();
        let stream = connect(&[closed, open], &Profile::default(), Duration::from_secs(20)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }

    #[tokio::test]
    async fn refusal_is_reported_before_other_errors() {
        let closed: Vec<_> =
            (2..5).map(|n| TcpListener::bind(format!("127.0.0.{n}:0")).unwrap().local_addr().unwrap()).collect();
        let error = connect(&closed, &Profile::default(), Duration::from_secs(20)).await.unwrap_err();
        assert_eq!(error.code(), phoebus_proto::session::Code::Refused, "{error}");
        assert!(error.to_string().ends_with("connection refused"), "{error}");
    }

    #[test]
    fn most_informative_error_comes_first() {
        let refused =
            |to: &str| Error::Connect { to: to.parse().unwrap(), source: io::ErrorKind::ConnectionRefused.into() };
        let untrusted = Error::Untrusted { to: "192.0.2.1:5006".to_owned(), reason: "it is for another".to_owned() };
        let all = vec![refused("[2001:db8::1]:5006"), untrusted, refused("[2001:db8::2]:5006")];
        let error = Error::of_several(all).unwrap();
        assert_eq!(error.code(), phoebus_proto::session::Code::AuthFailed);
        assert_eq!(
            error.to_string(),
            "cannot trust 192.0.2.1:5006: it is for another; cannot connect to [2001:db8::1]:5006: connection refused; \
             cannot connect to [2001:db8::2]:5006: connection refused"
        );
        assert!(matches!(Error::of_several(vec![refused("192.0.2.1:1")]), Some(Error::Connect { .. })));
    }

    #[tokio::test]
    async fn timeout_reports_the_whole_time_limit() {
        use socket2::{Domain, Socket, Type};
        let silent = |address: &str| {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            listener.bind(&format!("{address}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
            listener.listen(0).unwrap();
            let at = listener.local_addr().unwrap();
            // Two connections fill the queue; the kernel drops every later SYN.
            let waiting = [(); 2].map(|()| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&at);
                socket
            });
            (at.as_socket().unwrap(), listener, waiting)
        };
        let both = [silent("127.0.0.2"), silent("127.0.0.3")];
        let limit = Duration::from_millis(400);
        let error = connect(&[both[0].0, both[1].0], &Profile::default(), limit).await.unwrap_err();
        assert!(error.to_string().ends_with(": no answer within 400ms"), "{error}");
    }

    #[tokio::test]
    async fn unknown_name_is_named_in_the_error() {
        let error = resolve("no-such-host.invalid", 1, Duration::from_secs(20)).await.unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
