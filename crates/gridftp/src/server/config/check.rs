//! Checks the values of a configuration.

use super::{Config, ConfigError, FILES_OF_BATCH, Passwords};
use phoebus_accounts::config::is_anonymous;
use std::time::Duration;

/// Descriptors for other things than clients: listeners, log, roots, keys.
const SPARE: u64 = 64;

/// Descriptors of a client with a transfer: control connection, data connection, file.
const OF_ONE: u64 = 3;

/// Descriptors of a batch: its files, their file system, and a directory.
const OF_BATCH: u64 = FILES_OF_BATCH as u64 + 2;

impl Config {
    /// Warnings about usable but doubtful values, in a process with this many `descriptors`.
    pub fn warnings(&self, descriptors: u64) -> Vec<String> {
        // Nobody logs in to a data node.
        let has_passwords = !self.data_node && self.users.iter().any(|user| user.password.is_some());
        let clear = match &self.tls {
            None => Some("there is no [tls]: users log in with passwords in clear, which others on the way can read"),
            Some(tls) if !tls.required => Some(
                "tls.required is false: users may log in with passwords in clear, which others on the way can read",
            ),
            Some(_) => None,
        };
        let clear = clear.filter(|_| has_passwords).map(str::to_owned);
        clear.into_iter().chain(self.lack_of(descriptors)).collect()
    }

    /// The warning if `descriptors` are not enough for `limits.connections`.
    fn lack_of(&self, descriptors: u64) -> Option<String> {
        let connections = self.limits.connections as u64;
        let batches = (self.limits.batches as u64).saturating_mul(OF_BATCH);
        let needed = connections.saturating_mul(OF_ONE).saturating_add(SPARE).saturating_add(batches);
        (needed > descriptors).then(|| {
            format!(
                "limits.connections is {connections} and limits.batches {}, which with one data connection and one file for each \
                 connection and {FILES_OF_BATCH} files for each batch takes {needed} descriptors; this process may have \
                 {descriptors} (ulimit -n)",
                self.limits.batches
            )
        })
    }

    /// Checks all values.
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
            ("data.stall", self.data.stall_timeout),
            ("data.patience", self.data.reply_timeout),
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
        let counts = [
            (self.limits.connections, "connections"),
            (self.limits.per_address, "per_address"),
            (self.limits.per_user, "per_user"),
        ];
        if let Some((_, name)) = counts.iter().find(|(count, _)| *count == 0) {
            return value(&format!("limits.{name}: at least 1 was expected: nobody could connect"));
        }
        if !(1..=256).contains(&self.limits.checksums) {
            return value("limits.checksums: 1 to 256 were expected");
        }
        if self.limits.checksums_per_user.is_some_and(|most| !(1..=self.limits.checksums).contains(&most)) {
            return value("limits.checksums_per_user: at least 1 was expected, and no more than limits.checksums");
        }
        if !(1..=64).contains(&self.limits.batches) {
            return value("limits.batches: 1 to 64 were expected");
        }
        if self.limits.batches_per_user.is_some_and(|most| !(1..=self.limits.batches).contains(&most)) {
            return value("limits.batches_per_user: at least 1 was expected, and no more than limits.batches");
        }
        if !((1 << 20)..=(1 << 40)).contains(&self.data.object_memory.0) {
            return value("data.object_memory: 1MiB to 1TiB were expected");
        }
        for (number, name) in [(self.data.readers, "readers"), (self.data.writers, "writers")] {
            if !(1..=64).contains(&number) {
                return value(&format!("data.{name}: 1 to 64 were expected"));
            }
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
            let is_in_file = |passwords: &Passwords| passwords.users.get(&user.name).is_some();
            let has_password = user.password.is_some() || self.passwords.as_ref().is_some_and(is_in_file);
            if !has_password && self.gsi.is_none() && self.kerberos.is_none() {
                let in_file = self.passwords.as_ref().map_or_else(String::new, |passwords| {
                    format!(" (phoebus passwd --users {} {})", passwords.file.display(), user.name)
                });
                let text = format!(
                    "user \"{}\": a password, here or in users.file{in_file}, or [gsi] or [kerberos], was expected",
                    user.name
                );
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
    fn clear_passwords_cause_a_warning() {
        let user = "listen = [\"127.0.0.1:2811\"]\n[[user]]\nname = \"jane\"\nroot = \"/\"\n";
        let (password, gsi) = ("password = \"x\"\n", "[gsi]\n");
        let tls = |required| format!("[tls]\ncertificate = \"c\"\nkey = \"k\"\nrequired = {required}\n");
        for (text, begins) in [
            (format!("{user}{password}"), Some("there is no [tls]: ")),
            (format!("{user}{password}{}", tls(false)), Some("tls.required is false: ")),
            (format!("{user}{password}{}", tls(true)), None),
            (format!("{user}{gsi}"), None),
        ] {
            let warnings = checked(&text).unwrap().warnings(u64::MAX);
            assert_eq!(warnings.len(), usize::from(begins.is_some()), "{text}: {warnings:?}");
            assert!(begins.is_none_or(|begin| warnings[0].starts_with(begin)), "{text}: {warnings:?}");
        }
        let node = Config { data_node: true, ..checked(&format!("{user}{password}")).unwrap() };
        assert!(node.warnings(u64::MAX).is_empty());
    }

    #[test]
    fn too_few_descriptors_cause_a_warning() {
        let text = "listen = [\"127.0.0.1:2811\"]\n[anonymous]\nroot = \"/\"\n[limits]\nconnections = 100\n";
        let config = checked(text).unwrap();
        assert_eq!(config.warnings(636), Vec::<String>::new());
        let warnings = config.warnings(635);
        assert!(
            matches!(&warnings[..], [one] if one.contains("takes 636") && one.contains("have 635")),
            "{warnings:?}"
        );
        // Saturate instead of overflow.
        let limits = crate::server::config::Limits { connections: usize::MAX, ..config.limits };
        assert_eq!(Config { limits, ..config }.warnings(1 << 20).len(), 1);
    }

    #[test]
    fn invalid_settings_are_named() {
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
            ("[anonymous]\nroot = \"/\"\n[limits]\nbatches = 0", "limits.batches: 1 to 64"),
            ("[anonymous]\nroot = \"/\"\n[data]\nreaders = 0", "data.readers: 1 to 64"),
            ("[anonymous]\nroot = \"/\"\n[data]\nwriters = 65", "data.writers: 1 to 64"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nbatches = 2\nbatches_per_user = 3", "limits.batches_per_user"),
            ("[anonymous]\nroot = \"/\"\n[data]\nobject_memory = \"4KiB\"", "data.object_memory: 1MiB to 1TiB"),
            ("[anonymous]\nroot = \"/\"\n[limits]\nidle = \"0s\"", "limits.idle"),
            ("[anonymous]\nroot = \"/\"\n[data]\ngateways = [\"::\"]", "data.gateways"),
            ("[[user]]\nname = \"jane\"\nroot = \"/\"", "a password, here or in users.file, or [gsi] or [kerberos]"),
            ("[gsi]\n[anonymous]\nroot = \"/\"", "[gsi]: at least one"),
            ("[[user]]\nname = \"FTP\"\npassword = \"x\"\nroot = \"/\"", "user \"FTP\""),
        ] {
            let error = checked(&format!("listen = [\"127.0.0.1:2811\"]\n{more}")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(checked("[anonymous]\nroot = \"/\"").unwrap_err().contains("listen"));
        // Defaults that depend on other values.
        for (limits, most) in [("", 20), ("login = \"30s\"", 10), ("failure_delay_max = \"30s\"", 30)] {
            let limits = checked(&format!("{good}[limits]\n{limits}")).unwrap().limits;
            assert_eq!(limits.delays().most, Duration::from_secs(most));
        }
    }
}
