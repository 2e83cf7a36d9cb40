//! Everything of Grid security that reads what others wrote: certificates, requests, lists, policies, grid-mapfiles.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_gsi::certificate::Certificate;
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::gridmap::GridMap;
use phoebus_gsi::proxy::request;
use phoebus_gsi::proxy::verify::verify;
use phoebus_gsi::trust::policy::SigningPolicy;
use phoebus_gsi::trust::{MissingPolicy, TrustStore};

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 6 {
        0 => {
            if let Ok(certificate) = Certificate::parse(bytes) {
                let mut trust = TrustStore::new(MissingPolicy::Allow);
                // Trusted or not, the chain is verified: that is where most is read.
                let _ = trust.add_authority(&certificate);
                let _ = verify(vec![certificate.clone(), certificate], &trust, &provider(), 1_800_000_000);
            }
        }
        1 => drop(request::read(bytes, &provider())),
        2 => drop(TrustStore::new(MissingPolicy::Allow).add_list(bytes)),
        3 => drop(Credential::from_pem(bytes, "fuzz", &provider())),
        4 => {
            if let Ok(policy) = SigningPolicy::parse(&String::from_utf8_lossy(bytes), "fuzz") {
                policy.allows("/CN=a", "/O=b/CN=c");
            }
        }
        _ => drop(GridMap::parse(&String::from_utf8_lossy(bytes), "fuzz")),
    }
});
