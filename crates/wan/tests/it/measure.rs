//! Runs the emulator's measurements briefly, and checks that they yield results, not which. Needs root,
//! `/dev/net/tun` and iperf3.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use phoebus_wan::measure::{Bound, Finding, Options, all};

#[test]
fn every_property_is_measured() {
    let options = Options { runs: 1, seconds: 1, segments: 20_000 };
    let mut reported = Vec::new();
    let findings = all(&options, |finding: &Finding| reported.push(finding.clone()))
        .unwrap_or_else(|error| panic!("measuring needs root, /dev/net/tun and iperf3: {error}"));
    assert_eq!(findings, reported);
    assert_eq!(findings.len(), 8);
    for finding in &findings {
        assert_eq!(finding.runs, [finding.median], "{finding}");
        assert!(finding.median.is_finite() && finding.median >= 0.0, "{finding}");
        if let Bound::AtLeast(_) = finding.wanted {
            assert!(finding.median > 0.0, "{finding}");
        }
        let json = serde_json::to_string(finding).unwrap();
        assert_eq!(serde_json::from_str::<Finding>(&json).unwrap().what, finding.what);
    }
}
