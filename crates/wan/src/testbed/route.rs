//! Addresses and routes: every host's addresses, and the link on which it sends towards each other host.

use super::Scenario;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The addresses of the host at `index`: IPv4 in 10.9.0.0/24, IPv6 in the unique local prefix fd09::/64.
pub(super) fn addresses(index: usize) -> [IpAddr; 2] {
    // `Scenario::HOSTS_MAX` keeps the number within the last byte.
    let number = (index + 1) as u8;
    [Ipv4Addr::new(10, 9, 0, number).into(), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, number.into()).into()]
}

/// For the host at `from`, the first link towards each host, on the path with the least delay; among equals,
/// with the fewest links; then with the links that come first in the scenario.
pub(super) fn first_links(scenario: &Scenario, from: usize) -> Vec<Option<usize>> {
    paths(scenario, from).into_iter().map(|path| path.and_then(|path| path.first)).collect()
}

/// The distance of each host from the one at `from`: propagation delay, and number of links.
pub(super) fn distances(scenario: &Scenario, from: usize) -> Vec<Option<(Duration, usize)>> {
    paths(scenario, from).into_iter().map(|path| path.map(|path| (path.delay, path.links))).collect()
}

/// The best paths from one host to all others, by Dijkstra's algorithm.
fn paths(scenario: &Scenario, from: usize) -> Vec<Option<Path>> {
    let count = scenario.hosts.len();
    let mut best: Vec<Option<Path>> = vec![None; count];
    let mut done = vec![false; count];
    best[from] = Some(Path { delay: Duration::ZERO, links: 0, first: None });
    // The nearest unfinished host cannot get any nearer.
    while let Some((nearest, path)) = (0..count)
        .filter(|&host| !done[host])
        .filter_map(|host| best[host].map(|path| (host, path)))
        .min_by_key(|(_, path)| (path.delay, path.links))
    {
        done[nearest] = true;
        let name = &scenario.hosts[nearest].name;
        for (index, link) in scenario.links.iter().enumerate() {
            let [a, b] = &link.ends;
            let (other, delay) = match () {
                () if a == name => (b, link.config.forward.delay.0),
                () if b == name => (a, link.config.backward.delay.0),
                () => continue,
            };
            let Some(other) = scenario.host(other) else { continue };
            let delay = path.delay.saturating_add(delay);
            let longer = Path { delay, links: path.links + 1, first: path.first.or(Some(index)) };
            if best[other].is_none_or(|known| (longer.delay, longer.links) < (known.delay, known.links)) {
                best[other] = Some(longer);
            }
        }
    }
    best
}

#[derive(Clone, Copy)]
struct Path {
    delay: Duration,
    links: usize,
    /// The first link; `None` for the host itself.
    first: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the first links from `from`, in the order of the hosts.
    fn towards<'a>(scenario: &'a Scenario, from: &str) -> Vec<&'a str> {
        let links = first_links(scenario, scenario.host(from).unwrap());
        links.into_iter().map(|link| link.map_or("-", |index| scenario.links[index].name.as_str())).collect()
    }

    #[test]
    fn row_of_hosts_is_routed_both_ways() {
        let scenario = Scenario::sc09();
        assert_eq!(towards(&scenario, "src"), ["-", "lan1", "lan1", "lan1"]);
        assert_eq!(towards(&scenario, "pg1"), ["lan1", "-", "wan", "wan"]);
        assert_eq!(towards(&scenario, "dst"), ["lan2", "lan2", "lan2", "-"]);
    }

    #[test]
    fn least_delay_wins_in_each_direction_separately() {
        let text = r#"
            host = [{ name = "a" }, { name = "b" }, { name = "c" }]
            [[link]]
            name = "slow"
            ends = ["a", "c"]
            forward = { delay = "50ms" }
            backward = { delay = "5ms" }
            [[link]]
            name = "ab"
            ends = ["a", "b"]
            delay = "10ms"
            [[link]]
            name = "bc"
            ends = ["b", "c"]
            delay = "10ms"
        "#;
        let scenario = Scenario::parse(text, "test").unwrap();
        assert_eq!(towards(&scenario, "a"), ["-", "ab", "ab"]);
        assert_eq!(towards(&scenario, "c"), ["slow", "bc", "-"]);
    }
}
