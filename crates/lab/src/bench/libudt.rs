//! libudt, the reference implementation of UDT: the program of `libudt.cpp`, and the loadable driver of the examples.
//! Both are compiled when first needed, against the system's library (U9).

use super::process::{self, Background};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = include_str!("libudt.cpp");
const DRIVER: &str = include_str!("../../../../examples/drivers/libudt/libudt_driver.cpp");
const HEADER: &str = include_str!("../../../net/include/phoebus_driver.h");

/// Longest wait for the receiver to listen.
const START: Duration = Duration::from_secs(60);

/// The report of one end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct FlowEnd {
    /// Sent and acknowledged, or received.
    pub(crate) bytes: u64,
    /// Up to the last acknowledgement, or from accepting to the last byte, in seconds.
    pub(crate) seconds: f64,
    /// Processor time of the process, in seconds.
    pub(crate) cpu: f64,
    /// Peak memory of the process, in bytes.
    pub(crate) memory: u64,
}

/// Compiles the program into `directory`, and returns its path.
pub(crate) fn program(directory: &Path) -> anyhow::Result<PathBuf> {
    let output = directory.join("libudt");
    if !output.exists() {
        compile(directory, "libudt.cpp", PROGRAM, &output, &["-ludt", "-lpthread"])?;
    }
    Ok(output)
}

/// Compiles the driver into `directory`, and returns its path.
pub(crate) fn driver(directory: &Path) -> anyhow::Result<PathBuf> {
    let output = directory.join("libudt_driver.so");
    if !output.exists() {
        fs::write(directory.join("phoebus_driver.h"), HEADER)?;
        compile(directory, "libudt_driver.cpp", DRIVER, &output, &["-shared", "-fPIC", "-ludt"])?;
    }
    Ok(output)
}

/// Runs a flow of `seconds`, with at most `rate` bits per second if that is not 0. `receiver` and `sender` must run
/// [`program`], the receiver at `host`. Returns the reports of the sender and the receiver.
pub(crate) fn flow(
    mut receiver: Command,
    mut sender: Command,
    host: &str,
    (seconds, rate): (u64, u64),
    limit: Duration,
) -> anyhow::Result<(FlowEnd, FlowEnd)> {
    receiver.args(["receive", host, "0"]);
    let (mut receiver, port) = Background::until_it_says("libudt's receiver", receiver, START)?;
    sender.args(["send", host, port.trim(), &seconds.to_string(), &rate.to_string()]);
    let sent = process::run("libudt's sender", sender, limit)?;
    let received = receiver.next_line(START).context("after the sender was done")?;
    let read = |line: &str| serde_json::from_str::<FlowEnd>(line).context("libudt printed no result");
    let (sent, received) = (read(&sent)?, read(&received)?);
    if sent.bytes != received.bytes {
        bail!("libudt sent {} bytes, and {} arrived", sent.bytes, received.bytes);
    }
    Ok((sent, received))
}

fn compile(directory: &Path, name: &str, source: &str, output: &Path, libraries: &[&str]) -> anyhow::Result<()> {
    const LIMIT: Duration = Duration::from_secs(120);
    let file = directory.join(name);
    fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = Command::new("g++");
    command.args(["-O2", "-I"]).arg(directory).arg("-o").arg(output).arg(file).args(libraries);
    process::run("g++", command, LIMIT).context("libudt needs g++ and libudt-dev, which scripts/setup installs")?;
    // A driver is refused if other users can write to it.
    fs::set_permissions(output, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_report_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let program = program(directory.path()).unwrap();
        let command = || Command::new(&program);
        let (sent, received) = flow(command(), command(), "127.0.0.1", (1, 50_000_000), 2 * START).unwrap();
        assert!(sent.bytes == received.bytes && sent.bytes > 0, "{sent:?} {received:?}");
        assert!(sent.cpu > 0.0 && received.memory > 0, "{sent:?} {received:?}");
        assert!(driver(directory.path()).unwrap().exists());
    }
}
