//! Carries a file or a tree on this machine, and says how long that took: to compare with `cp`, `rsync` and others.
//!
//! `cargo run --release -p phoebus-files --example carry -- FROM TO [none|flight|reread] [FILES AT ONCE]`

use phoebus_files::job::Job;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::plan::Existing;
use phoebus_files::{Links, Verify};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verify = match args.get(2).map(String::as_str) {
        Some("none") => Verify::None,
        None | Some("flight") => Verify::Flight(None),
        Some(_) => Verify::Reread(None),
    };
    let (Some(from), Some(to)) = (args.first(), args.get(1)) else {
        eprintln!("usage: carry FROM TO [none|flight|reread] [FILES AT ONCE]");
        return ExitCode::from(2);
    };
    let place = |path: &String| {
        let path = Path::new(path);
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let key = Key::parse(path.file_name().unwrap_or_default().as_encoded_bytes());
        Some((Arc::new(Local::new(dir, Links::Anywhere).ok()?), key.ok()?))
    };
    let (Some((source, from)), Some((dest, to))) = (place(from), place(to)) else {
        eprintln!("a directory cannot be opened");
        return ExitCode::FAILURE;
    };
    let mut job = Job::new(source, dest);
    job.how.verify = verify;
    job.existing = Existing::Replace;
    job.files = args.get(3).and_then(|files| files.parse().ok()).unwrap_or(4);
    let begin = Instant::now();
    let report = job.run([(from, to)]).await;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} objects, {} bytes, {seconds:.3} s, {:.0} MB/s",
        report.carried,
        report.bytes,
        report.bytes as f64 / seconds / 1e6
    );
    for (key, error) in &report.failures {
        eprintln!("{key}: {error}");
    }
    if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
