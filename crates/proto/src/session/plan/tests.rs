//! What clients do after failures.

use super::*;

const POLICY: Policy = Policy { redirects: 2, fallback: true };
const AGENT: Hop = Hop::Agent { demanded: false };

fn path(text: &str) -> Vec<Endpoint> {
    Endpoint::parse_path(text).unwrap()
}

fn plan(policy: Policy, path: &[Endpoint]) -> Plan<Vec<Endpoint>> {
    Plan::new(policy, path[..1].to_vec())
}

/// The gateway that is asked, and those behind it.
fn way(plan: &Plan<Vec<Endpoint>>, path: &[Endpoint]) -> String {
    plan.onward(path, true).map(|gateway| gateway.to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn absent_gateway_is_bypassed_only_if_permitted() {
    let path = path("pg1,pg2");
    assert_eq!(plan(POLICY, &path).failed(&path, Hop::Gateway, Failure::Absent), Next::Destination);
    assert_eq!(plan(POLICY, &path).failed(&path, Hop::Gateway, Failure::Broken), Next::Over(None));
    assert_eq!(plan(POLICY, &path).failed(&path, Hop::Gateway, Failure::Refused(None)), Next::Over(None));
    assert_eq!(plan(POLICY, &path).failed(&path, Hop::Destination, Failure::Absent), Next::Over(None));
    let strict = Policy { fallback: false, ..POLICY };
    assert_eq!(plan(strict, &path).failed(&path, Hop::Gateway, Failure::Absent), Next::Over(None));
}

#[test]
fn vanished_agent_is_replaced_unless_demanded() {
    let path = path("pg1,pg2");
    let mut either = plan(POLICY, &path);
    assert_eq!(either.failed(&path, AGENT, Failure::Absent), Next::Gateway);
    assert_eq!(either.failed(&path, Hop::Gateway, Failure::Absent), Next::Destination);
    let demanded = Hop::Agent { demanded: true };
    assert_eq!(plan(POLICY, &path).failed(&path, demanded, Failure::Absent), Next::Over(None));
    assert_eq!(way(&either, &path), "pg1:5006 pg2:5006");
    assert_eq!(either.onward(&path, false).map(|gateway| gateway.to_string()).collect::<Vec<_>>(), ["pg2:5006"]);
}

#[test]
fn redirect_replaces_the_gateway() {
    let (path, better) = (path("pg1,pg2,pg3"), path("pg9,pg2"));
    let mut plan = plan(POLICY, &path);
    assert_eq!(plan.redirected(), None);
    assert_eq!(plan.failed(&path, Hop::Gateway, Failure::Refused(Some(better[0].as_ref()))), Next::Better);
    assert_eq!(way(&plan, &path), "pg9:5006 pg2:5006 pg3:5006");
    // The one that was to come next anyway is not asked to ask itself.
    assert_eq!(plan.failed(&path, AGENT, Failure::Refused(Some(better[1].as_ref()))), Next::Better);
    assert_eq!(way(&plan, &path), "pg2:5006 pg3:5006");
    assert_eq!(plan.redirected(), Some((path[0].as_ref(), path[1].as_ref())));
}

#[test]
fn redirects_end_somewhere() {
    let (path, others) = (path("pg1"), path("pg2,pg3,pg4"));
    let mut plan = plan(POLICY, &path);
    let mut refused = |better: &Endpoint| plan.failed(&path, Hop::Gateway, Failure::Refused(Some(better.as_ref())));
    assert_eq!(refused(&path[0]), Next::Over(Some(RedirectEnd::Circle)));
    assert_eq!(refused(&others[0]), Next::Better);
    assert_eq!(refused(&path[0]), Next::Over(Some(RedirectEnd::Circle)));
    assert_eq!(refused(&others[1]), Next::Better);
    assert_eq!(refused(&others[2]), Next::Over(Some(RedirectEnd::Limit)));
    // Not even a fallback goes direct past a gateway that is there.
    assert_eq!(plan.failed(&path, Hop::Gateway, Failure::Absent), Next::Over(Some(RedirectEnd::Failed)));
    let said = trail(plan.asked().all(), Some(others[2].as_ref()), RedirectEnd::Limit).to_string();
    assert_eq!(said, "gave up, for the limit of redirects, 2, is reached: pg1:5006 → pg2:5006 → pg3:5006 → pg4:5006");
    // Whoever follows none is told of it by the refusal alone.
    let mut none = Plan::new(Policy { redirects: 0, ..POLICY }, path.clone());
    assert_eq!(none.failed(&path, Hop::Gateway, Failure::Refused(Some(others[0].as_ref()))), Next::Over(None));
}

#[test]
fn agent_gets_its_secret_and_gateway_the_address() {
    assert!(matches!(credential(Some(b"secret"), None, Some("ada@example.org")), Some(Credential::Agent(b"secret"))));
    assert!(matches!(credential(None, None, Some("ada@example.org")), Some(Credential::Anonymous("ada@example.org"))));
    assert!(credential(None, None, None).is_none());
}

#[test]
fn far_gateways_name_none_of_this_host() {
    let here = "127.0.0.1/6379,0.0.0.0/80,169.254.169.254/80,[::1]/80,[::ffff:127.0.0.1]/80,[fe80::1]/80,localhost/80";
    for near in &path(here) {
        let refused = Failure::Refused(Some(near.as_ref()));
        for far in ["pg1", "192.0.2.1"] {
            let far = path(far);
            assert_eq!(plan(POLICY, &far).failed(&far, Hop::Gateway, refused), Next::Over(None), "{near}");
        }
        let own = path("127.0.0.1");
        assert_eq!(plan(POLICY, &own).failed(&own, Hop::Gateway, refused), Next::Better, "{near}");
    }
}
