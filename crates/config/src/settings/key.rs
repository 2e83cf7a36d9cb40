//! The names of settings.

use std::fmt;

/// Declares the names once: in the environment, in files, and in [`Key::ALL`].
macro_rules! keys {
    ($($(#[doc = $doc:literal])+ $key:ident = $name:literal;)+) => {
        /// The name of a setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Key { $($(#[doc = $doc])+ $key,)+ }

        impl Key {
            /// Every setting.
            pub const ALL: &[Self] = &[$(Self::$key),+];

            /// The variable that holds it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$key => $name,)+ }
            }
        }
    };
}

keys! {
    /// The first gateway.
    Gateway = "PHOEBUS_GW";
    /// The whole path.
    Path = "PHOEBUS_PATH";
    /// Destinations that use gateways.
    Only = "PHOEBUS_ONLY";
    /// Destinations that do not.
    Except = "PHOEBUS_EXCEPT";
    /// E-mail address of anonymous sessions.
    User = "PHOEBUS_USER";
    /// Whether Phoebus is switched off.
    Disable = "PHOEBUS_DISABLE";
    /// Congestion control of the first hop.
    CongestionControl = "PHOEBUS_CC";
    /// Destinations with a shorter round trip are connected directly.
    BypassRtt = "PHOEBUS_BYPASS_RTT";
    /// Whether to connect directly without a gateway.
    Fallback = "PHOEBUS_FALLBACK";
    /// The file for reports.
    Report = "PHOEBUS_REPORT";
    /// Whether to report on standard error.
    Verbose = "PHOEBUS_VERBOSE";
    /// The file that remembers round trips.
    Cache = "PHOEBUS_CACHE";
    /// The transport of the first hop.
    FirstHop = "PHOEBUS_FIRST_HOP";
    /// Trusted authorities for the first gateway.
    Authorities = "PHOEBUS_CA";
    /// The user's certificate.
    Certificate = "PHOEBUS_CERT";
    /// Its key.
    PrivateKey = "PHOEBUS_KEY";
    /// Bandwidth of each session.
    Bandwidth = "PHOEBUS_BANDWIDTH";
    /// How long an idle agent runs.
    AgentIdle = "PHOEBUS_AGENT_IDLE";
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
