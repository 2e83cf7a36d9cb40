//! As whom this process makes its system calls, as strace(1) sees them.
//!
//! The effective user is followed thread by thread, by each setresuid(2). A thread that is first seen has the user of the thread that made
//! it, which strace does not say: it is taken for the process's own, and a thread that is something else is found by what it does.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What follows a process. Dropped, it lets go of it.
pub struct Watch {
    strace: Child,
    log: PathBuf,
}

impl Watch {
    /// Follows all threads of this process from now on, and writes what they do to `log`.
    pub fn begin(log: &Path) -> Self {
        let mut command = Command::new("strace");
        // Descriptors are shown with their paths.
        command.args(["-f", "-y", "-s", "0", "-e", "trace=%desc,%file,setresuid", "-o"]).arg(log);
        let mut strace = command.args(["-p", &std::process::id().to_string()]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(strace.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "{line}");
        // Nobody else reads what it says of later threads.
        std::thread::spawn(move || said.lines().count());
        Self { strace, log: log.to_owned() }
    }

    /// How often each system call was made by each user with what is in `dir`, and an example of each.
    pub fn calls(mut self, dir: &Path) -> BTreeMap<(String, u32), (usize, String)> {
        Command::new("kill").args(["-INT", &self.strace.id().to_string()]).status().unwrap();
        self.strace.wait().unwrap();
        let text = std::fs::read(&self.log).unwrap();
        let text = String::from_utf8_lossy(&text);
        let mut users = HashMap::new();
        let mut found = BTreeMap::new();
        let within = format!("<{}", dir.display().to_string().trim_end_matches('/'));
        for line in text.lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            let name = call.split('(').next().unwrap_or_default();
            if name == "setresuid" {
                let user = call.split(',').nth(1).and_then(|user| user.trim().parse::<u32>().ok());
                assert!(call.contains("= 0") || call.contains("unfinished"), "{line}");
                users.insert(thread.to_owned(), user.unwrap_or(0));
            } else if call.contains(&within) && name != "close" && !call.starts_with("<...") {
                let user = users.get(thread).copied().unwrap_or(0);
                found.entry((name.to_owned(), user)).or_insert_with(|| (0, line.to_owned())).0 += 1;
            }
        }
        found
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}
