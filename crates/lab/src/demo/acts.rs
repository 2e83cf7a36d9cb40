//! The programs of the demo, as a user starts them.

use super::stage::Stage;
use super::transfer::{Limit, Outcome, Transfer, TransferRoute};
use super::{Act, Args, SMALL};
use anyhow::{Context, Result};
use phoebus_proto::units::ByteSize;
use std::time::Duration;

/// Runs them all.
pub(super) fn all(stage: &Stage, args: &Args) -> Result<Vec<Act>> {
    let mut acts = vec![
        Act {
            title: format!("iperf3, {}", args.time),
            direct: Some(iperf3(stage, args, TransferRoute::Direct, &[])?),
            session: Some(iperf3(stage, args, TransferRoute::Session, &[])?),
            note: "",
        },
        Act {
            title: "  with bbr on src".to_owned(),
            direct: Some(iperf3(stage, args, TransferRoute::Direct, &["-C", "bbr"])?),
            session: None,
            note: "most hosts do not have it",
        },
        Act {
            title: "  with cubic on src".to_owned(),
            direct: None,
            session: Some(iperf3(stage, args, TransferRoute::StockSession, &[])?),
            note: "where the shim may not choose bbr for the first hop",
        },
        Act {
            title: format!("curl, {}", args.size),
            session: Some(curl(stage, args, TransferRoute::Session)?),
            direct: Some(curl(stage, args, TransferRoute::Direct)?),
            note: "",
        },
    ];
    if stage.has_ssh() {
        let size = ByteSize(args.size.0 / SMALL);
        acts.push(Act {
            title: format!("scp, {size}"),
            session: Some(scp(stage, args, TransferRoute::Session)?),
            direct: Some(scp(stage, args, TransferRoute::Direct)?),
            note: "OpenSSH itself keeps no more than 2 MiB under way",
        });
    }
    Ok(acts)
}

/// Pause before a busy server of iperf3 is asked again.
const BUSY: Duration = Duration::from_millis(250);

fn iperf3(stage: &Stage, args: &Args, way: TransferRoute, more: &[&str]) -> Result<Outcome> {
    let seconds = args.time.0.as_secs().to_string();
    let mut words = vec!["iperf3", "-c", "dst", "-t", &seconds, "-J"];
    words.extend(more);
    let mut attempts = 20;
    let transfer =
        Transfer { stage, way, words: &words, shown: &words[..words.len()], limit: Limit::Itself(args.time.0) };
    let (mut outcome, json) = loop {
        let error = match transfer.run() {
            Err(error) => error.to_string(),
            Ok((outcome, output)) => {
                let json: serde_json::Value = serde_json::from_slice(&output).context("iperf3 gave no JSON")?;
                match json["error"].as_str() {
                    None => break (outcome, json),
                    // With `-J`, the client may report errors with success.
                    Some(error) => format!("{}: failed: {error}", words.join(" ")),
                }
            }
        };
        // The server ends a test a moment after its client, and refuses or resets another one until then.
        if attempts == 0 || !["busy", "control message"].iter().any(|words| error.contains(words)) {
            anyhow::bail!(error);
        }
        attempts -= 1;
        std::thread::sleep(BUSY);
    };
    let sum = &json["end"]["sum_received"];
    let field =
        |name: &str| sum[name].as_f64().with_context(|| format!("iperf3 gave no {name} of what arrived, but {sum}"));
    (outcome.bits_per_second, outcome.bytes) = (field("bits_per_second")?, field("bytes")? as u64);
    outcome.seconds = field("seconds")?;
    stage.say(&outcome.line());
    Ok(outcome)
}

fn curl(stage: &Stage, args: &Args, way: TransferRoute) -> Result<Outcome> {
    let data = stage.file("data").display().to_string();
    let words = ["curl", "-sSf", "-T", &data, "http://dst/received"];
    file(stage, way, &words, &["curl", "-T", "data", "http://dst/received"], "data", args)
}

fn scp(stage: &Stage, args: &Args, way: TransferRoute) -> Result<Outcome> {
    let path = |name: &str| stage.file(name).display().to_string();
    let (key, known, data) = (path("ssh/user"), format!("UserKnownHostsFile={}", path("ssh/known")), path("small"));
    let to = format!("root@dst:{}", path("received/received"));
    let words = ["scp", "-q", "-F", "/dev/null", "-i", &key, "-o", &known, "-o", "BatchMode=yes", &data, &to];
    file(stage, way, &words, &["scp", "small", "dst:received"], "small", args)
}

/// Transfers a file, and compares the received copy.
fn file(stage: &Stage, way: TransferRoute, words: &[&str], shown: &[&str], name: &str, args: &Args) -> Result<Outcome> {
    let (mut outcome, _) = Transfer { stage, way, words, shown, limit: Limit::Stop(args.limit.0) }.run()?;
    if outcome.complete {
        stage.show_progress("comparing");
        outcome.intact = Some(sha256(stage, name)? == sha256(stage, "received/received")?);
    }
    stage.clear()?;
    stage.say(&outcome.line());
    Ok(outcome)
}

fn sha256(stage: &Stage, name: &str) -> Result<String> {
    let output = std::process::Command::new("sha256sum").arg("-b").arg(stage.file(name)).output();
    let output = output.context("cannot run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sum = text.split(' ').next().filter(|sum| sum.len() == 64 && output.status.success());
    sum.map(str::to_owned)
        .with_context(|| format!("sha256sum failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
