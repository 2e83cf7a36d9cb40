//! Values that make no sense.

use super::{Config, ConfigError, is_anonymous};
use std::time::Duration;

impl Config {
    /// Looks for values that make no sense.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        let value = |text: &str| Err(ConfigError::Value(text.to_owned()));
        let listens = self.trusted.is_none();
        if listens && self.listen.is_empty() {
            return value("listen: at least one address to listen on was expected");
        }
        if listens && self.anonymous.is_none() && self.users.is_empty() {
            return value("nobody may log in: [anonymous] or [[user]] was expected");
        }
        if self.data.ports.is_some_and(|(first, last)| first == 0 || first > last) {
            return value("data.ports: [first, last] was expected, the first not 0 and not above the last");
        }
        if self.data.gateways.iter().any(|gateway| gateway.is_unspecified() || gateway.is_multicast()) {
            return value("data.gateways: addresses of hosts were expected");
        }
        if !(1..=1024).contains(&self.data.streams) {
            return value("data.streams: 1 to 1024 were expected");
        }
        if !(1..=256).contains(&self.data.threads) {
            return value("data.threads: 1 to 256 were expected");
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&self.data.turn.0) {
            return value("data.turn: 1ms to 1s were expected");
        }
        for (name, span) in [
            ("data.stall", self.data.stall),
            ("data.patience", self.data.patience),
            ("data.markers", self.data.markers),
            ("limits.accounts", self.limits.accounts),
            ("limits.login", self.limits.login),
            ("limits.idle", self.limits.idle),
        ] {
            if span.0 < Duration::from_millis(1) {
                return Err(ConfigError::Value(format!(
                    "{name}: at least 1ms was expected: nothing would ever be in time"
                )));
            }
        }
        if !self.drafts.keep.0.is_zero() && self.drafts.keep.0 < Duration::from_secs(1) {
            return value("drafts.keep: at least 1s was expected, or 0s, which keeps drafts for ever");
        }
        if self.limits.failure_delay_max.is_some_and(|most| most.0 > self.limits.login.0 / 2) {
            return value(
                "limits.failure_delay_max: no more than half of limits.login was expected: who shares an address with one who guesses at \
                 passwords would be shut out",
            );
        }
        if self.limits.failure_delay_max.is_some_and(|most| most.0 < self.limits.failure_delay.0) {
            return value(
                "limits.failure_delay_max: at least limits.failure_delay was expected, which is the shortest delay",
            );
        }
        if self.limits.password_checks == 0 {
            return value("limits.password_checks: at least 1 was expected: nobody could log in");
        }
        if !(1..=256).contains(&self.limits.checksums) {
            return value("limits.checksums: 1 to 256 were expected");
        }
        if self.limits.checksums_per_user.is_some_and(|most| !(1..=self.limits.checksums).contains(&most)) {
            return value("limits.checksums_per_user: at least 1 was expected, and no more than limits.checksums");
        }
        if !((64 << 10)..=(1 << 30)).contains(&self.limits.checksum_step.0) {
            return value("limits.checksum_step: 64KiB to 1GiB were expected");
        }
        if !((4 << 10)..=(64 << 20)).contains(&self.data.block.0) {
            return value("data.block: 4KiB to 64MiB were expected");
        }
        if !(512..=1 << 20).contains(&self.limits.line.0) {
            return value("limits.line: 512B to 1MiB were expected");
        }
        if self.stripes.secret.is_none() && (self.data_node || self.stripes.at()?.is_some()) {
            return value("stripes.secret: the file by which front end and data nodes know each other was expected");
        }
        if self.gsi.is_some() && self.users.is_empty() {
            return value("[gsi]: at least one [[user]] was expected, whom certificates can be mapped to");
        }
        if let Some(kerberos) = &self.kerberos {
            if !cfg!(feature = "kerberos") {
                return value("[kerberos]: this program was built without Kerberos (cargo build --features kerberos)");
            }
            if kerberos.realms.is_empty() && kerberos.principals.is_empty() {
                return value("[kerberos]: realms or principals were expected, by which principals are users");
            }
            if self.users.is_empty() {
                return value("[kerberos]: at least one [[user]] was expected, who principals can be");
            }
        }
        for (i, user) in self.users.iter().enumerate() {
            let twice = self.users[..i].iter().any(|other| other.name == user.name);
            if twice || user.name.is_empty() || is_anonymous(&user.name) {
                return Err(ConfigError::Value(format!(
                    "user \"{}\": a name was expected that no other user has, nor anonymous logins",
                    user.name
                )));
            }
            if user.password.is_none() && self.gsi.is_none() && self.kerberos.is_none() {
                let text = format!("user \"{}\": a password, or [gsi] or [kerberos], was expected", user.name);
                return Err(ConfigError::Value(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = "listen = [\"127.0.0.1:2811\"]\n[anonymous]\nroot = \"/srv\"\n";
        let config = checked(good).unwrap();
        assert!(config.anonymous.is_some_and(|all| all.read_only && !all.third_party));
        for (more, says) in [
            ("", "nobody may log in"),
            ("[anonymous]\nroot = \"/\"\nsecure = true", "unknown field `secure`"),
            ("[anonymous]\nroot = \"/\"\n[data]\nports = [9, 8]", "data.ports"),
            ("[anonymous]\nroot = \"/\"\n[data]\nstreams = 0", "data.streams"),
            ("[anonymous]\nroot = \"/\"\n[data]\nthreads = 0", "data.threads"),
            ("[anonymous]\nroot = \"/\"\n[data]\nturn = \"2s\"", "data.turn"),
            ("[anonymous]\nroot = \"/\"\n[data]\nstall = \"0s\"", "data.stall"),
            ("[anonymous]\nroot = \"/\"\n[data]\nmarkers = \"0s\"", "data.markers"),
            (
                "[anonymous]\nroot = \"/\"\n[limits]\nlogin = \"30s\"\nfailure_delay_max = \"16s\"",
                "half of limits.login",
            ),
            (
                "[anonymous]\nroot = \"/\"\n[limits]\nfailure_delay = \"5s\"\nfailure_delay_max = \"2s\"",
                "limits.failure_delay_max: at least limits.failure_delay",
            ),
            ("[anonymous]\nroot = \"/\"\n[limits]\npassword_checks = 0", "limits.password_checks"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nchecksums = 0", "limits.checksums"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nchecksums = 2\nchecksums_per_user = 3", "limits.checksums_per_user"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nchecksum_step = \"1KiB\"", "limits.checksum_step"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nidle = \"0s\"", "limits.idle"),
            ("[anonymous]\nroot = \"/\"\n[data]\ngateways = [\"::\"]", "data.gateways"),
            ("[[user]]\nname = \"jane\"\nroot = \"/\"", "a password, or [gsi] or [kerberos]"),
            ("[gsi]\n[anonymous]\nroot = \"/\"", "[gsi]: at least one"),
            ("[[user]]\nname = \"FTP\"\npassword = \"x\"\nroot = \"/\"", "user \"FTP\""),
        ] {
            let error = checked(&format!("listen = [\"127.0.0.1:2811\"]\n{more}")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(checked("[anonymous]\nroot = \"/\"").unwrap_err().contains("listen"));
        // What is not said follows from what is.
        for (limits, most) in [("", 20), ("login = \"30s\"", 10), ("failure_delay_max = \"30s\"", 30)] {
            let limits = checked(&format!("{good}[limits]\n{limits}")).unwrap().limits;
            assert_eq!(limits.delays().most, Duration::from_secs(most));
        }
    }
}
