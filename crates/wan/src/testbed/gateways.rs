//! The gateways of a testbed: their configurations and processes.
//!
//! Every gateway host runs a `phoebus gateway` that is a peer of all others, listens on the session port, and
//! admits sessions from every end (a host that is no gateway) to every other end. A session without an
//! explicit path goes to the gateway nearest its destination.

use super::configuration::configuration;
use super::environment::{self, certificate_files};
use super::gateway_options::{Certificates, GatewayOptions};
use super::{Error, GatewayReport, Testbed};
use phoebus_proto::endpoint::DEFAULT_PORT;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Running gateways. Dropping it kills them.
#[derive(Debug, Default)]
pub struct Gateways(Vec<Gateway>);

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    /// The host that it runs on.
    pub host: String,
    /// Its process.
    pub child: Child,
    /// Its configuration.
    pub config: PathBuf,
    /// Its administration socket.
    pub admin: PathBuf,
    /// The file with its output.
    pub log: PathBuf,
}

/// Longest wait until a gateway accepts connections: thousands of times what it needs on an idle machine.
const START_TIME: Duration = Duration::from_secs(20);

impl Testbed {
    /// Starts a gateway on every gateway host and waits until each accepts connections.
    ///
    /// # Errors
    ///
    /// [`Error::Gateway`], with the end of its log, if a gateway ends or does not accept connections.
    pub fn start_gateways(&self, options: &GatewayOptions) -> Result<Gateways, Error> {
        let scenario = self.scenario();
        if !scenario.hosts.iter().any(|host| host.gateway) {
            return Err(Error::scenario(
                "gateways were asked for, but no [[host]] of the scenario says `gateway = true`",
            ));
        }
        let logs = options.logs.as_deref().unwrap_or(self.directory());
        fs::create_dir_all(logs).map_err(Error::state(logs))?;
        if let Some(certificates) = &options.certificates {
            self.write_certificates(certificates)?;
        }
        let mut gateways = Gateways::default();
        for (index, host) in scenario.hosts.iter().enumerate().filter(|(_, host)| host.gateway) {
            let name = &host.name;
            let admin = environment::admin_socket(self.directory(), name);
            let text = configuration(scenario, index, self.addresses(name)?, &admin, options);
            let config = self.state.write(&format!("{name}.toml"), &text)?;
            let log = logs.join(format!("{name}.log"));
            let output = File::create(&log).map_err(Error::state(&log))?;
            let errors = output.try_clone().map_err(Error::state(&log))?;
            let mut command = self.exec(name, &options.program)?;
            command.arg("gateway").arg("--config").arg(&config);
            command.stdin(Stdio::null()).stdout(output).stderr(errors);
            let what = format!("cannot start {} on {name}", options.program.display());
            let child = command.spawn().map_err(Error::system(what))?;
            gateways.0.push(Gateway { host: name.clone(), child, config, admin, log });
        }
        for gateway in &mut gateways.0 {
            gateway.await_listening(self)?;
        }
        Ok(gateways)
    }

    /// Writes the certificates of all hosts, ends included: programs there find them through variables
    /// ([`super::Remote::identify`]).
    fn write_certificates(&self, certificates: &Certificates) -> Result<(), Error> {
        for (host, (certificate, key)) in &certificates.hosts {
            let [certificate_file, key_file, authority_file] = certificate_files(host);
            self.state.write(&certificate_file, certificate)?;
            self.state.write_secret(&key_file, key)?;
            self.state.write(&authority_file, &certificates.authority)?;
        }
        Ok(())
    }
}

impl Gateways {
    /// The gateway on `host`.
    pub fn get(&mut self, host: &str) -> Option<&mut Gateway> {
        self.0.iter_mut().find(|gateway| gateway.host == host)
    }

    /// The gateways, with the exit status of those that have ended.
    pub fn report(&mut self) -> Vec<GatewayReport> {
        self.0.iter_mut().map(Gateway::report).collect()
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for gateway in &mut self.0 {
            // Both calls fail harmlessly for a gateway that has ended.
            let _ = gateway.child.kill();
            let _ = gateway.child.wait();
        }
    }
}

impl Gateway {
    fn report(&mut self) -> GatewayReport {
        let ended = self.child.try_wait().ok().flatten().map(|status| format!("{status}{}", self.log_tail()));
        GatewayReport { host: self.host.clone(), pid: self.child.id(), ended }
    }

    fn await_listening(&mut self, testbed: &Testbed) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIME;
        // Reads the kernel's table instead of connecting, which the gateway would count as a failed
        // handshake.
        while testbed.run_in(&self.host, listeners)? < testbed.addresses(&self.host)?.len() {
            let failed = |what: String| Error::Gateway { host: self.host.clone(), what };
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(format!("ended at its start, {status}{}", self.log_tail())));
            }
            if Instant::now() > deadline {
                let waited = START_TIME.as_secs();
                return Err(failed(format!("accepts no connections after {waited} s{}", self.log_tail())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The end of its log, to stand in a sentence.
    fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        match &lines[lines.len().saturating_sub(5)..] {
            [] => "; it said nothing".into(),
            last => format!("; it said: {}", last.join(" | ")),
        }
    }
}

/// Number of sockets that listen on the session port in the calling thread's network namespace
/// (`proc_pid_net(5)`).
fn listeners() -> usize {
    let port = format!(":{DEFAULT_PORT:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        // Local address, remote address, state; 0A is LISTEN.
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    };
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter(|line| listens(line)).count()
}
