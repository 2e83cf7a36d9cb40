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
/// Most addresses of one name that are tried: a name with hundreds must not cost hundreds of connections.
pub(crate) const ATTEMPTS_MAX: usize = 8;

/// The addresses of `name`, in the order in which they are to be tried (RFC 6724, then RFC 8305 §4).
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

/// What a resolver has found, once each, in the order in which it is to be tried.
pub(crate) fn ordered(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for addr in found {
        if !addresses.contains(&addr) {
            addresses.push(addr);
        }
    }
    interleave(addresses)
}

/// The address that this machine has on the way to `peer`. Nothing is sent.
///
/// # Errors
/// There is no way.
pub fn address_towards(peer: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // Any port does; 9 is discard (RFC 863).
    socket.connect((peer, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Connects with TCP to the first of `addresses` that answers; each next one is tried when the one before has failed or has
/// kept us waiting for a while. All within `limit`.
///
/// # Errors
/// Those of all addresses, the one that says most first: a refusal before a silence, a silence before a lack of route.
pub async fn connect(addresses: &[SocketAddr], profile: &Profile, limit: Duration) -> Result<Stream, Error> {
    connect_by(&(Arc::new(Tcp) as Arc<dyn Transport>), &"".into(), addresses, profile, limit).await
}

/// The same by any transport, to whoever can prove to be `name` where the transport wants that proved.
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
        let patience = sleep_until(if more { Instant::now() + ATTEMPT_DELAY } else { deadline });
        tokio::pin!(patience);
        // Until it is time for the next address: results of those under way.
        loop {
            tokio::select! {
                () = &mut patience, if more => break,
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

/// What an attempt that had a part of the time says of all of it.
fn within(error: Error, limit: Duration) -> Error {
    match error {
        Error::Timeout { to, .. } => Error::Timeout { to, limit: Span(limit) },
        other => other,
    }
}

fn nothing(limit: Duration) -> Error {
    Error::Timeout { to: "a name without addresses".to_owned(), limit: Span(limit) }
}

/// Alternates between the families, the first address's family first, each in its own order (RFC 8305 §4).
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
    async fn a_refusing_address_costs_no_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
        let open = listener.local_addr().unwrap();
        let stream = connect(&[closed, open], &Profile::default(), Duration::from_secs(20)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
    }

    #[tokio::test]
    async fn a_refusal_is_the_error_that_is_told() {
        let closed: Vec<_> =
            (2..5).map(|n| TcpListener::bind(format!("127.0.0.{n}:0")).unwrap().local_addr().unwrap()).collect();
        let error = connect(&closed, &Profile::default(), Duration::from_secs(20)).await.unwrap_err();
        assert_eq!(error.code(), phoebus_proto::session::Code::Refused, "{error}");
        assert!(error.to_string().ends_with("connection refused"), "{error}");
    }

    #[test]
    fn what_says_most_is_told_first_and_the_rest_after_it() {
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
    async fn silence_is_told_with_the_whole_time_that_it_had() {
        use socket2::{Domain, Socket, Type};
        let silent = |address: &str| {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            listener.bind(&format!("{address}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
            listener.listen(0).unwrap();
            let at = listener.local_addr().unwrap();
            // Two fill its queue; the kernel drops whoever comes then.
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
    async fn a_name_that_does_not_exist_is_told_as_such() {
        let error = resolve("no-such-host.invalid", 1, Duration::from_secs(20)).await.unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
