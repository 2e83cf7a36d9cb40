//! `phoebus serve` with data nodes.

use super::grid::ok;
use super::serve::{Serve, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A front end, data nodes, and the directory that they serve.
pub struct Site {
    pub front: Serve,
    pub nodes: Vec<Serve>,
    pub dir: TempDir,
}

impl Site {
    /// One with two nodes.
    pub fn new() -> Self {
        Self::with_nodes(2)
    }

    pub fn with_nodes(count: usize) -> Self {
        Self::configured(count, "")
    }

    /// A site with two nodes. Each connection of a node sends at most 10 MB/s.
    pub fn slow() -> Self {
        Self::configured(2, "drivers = [\"tcp\", \"rate\"]\nstack = \"tcp,rate:rate=80mbit\"\n")
    }

    fn configured(count: usize, data: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("shared")).unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "s".repeat(64)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let config = |nodes: &[Serve]| {
            let at: Vec<_> = nodes.iter().map(|node| format!("\"127.0.0.1:{}\"", node.port())).collect();
            format!(
                "[anonymous]\nroot = \"{}\"\nread_only = false\n[data]\nmarkers = \"50ms\"\n{data}\
                 [stripes]\nsecret = \"{}\"\nnodes = [{}]\n",
                dir.path().join("shared").display(),
                secret.display(),
                at.join(", ")
            )
        };
        let nodes: Vec<_> = (0..count).map(|_| Serve::data_node(&config(&[]))).collect();
        let front = Serve::configured(&config(&nodes));
        Self { front, nodes, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("shared").join(name)
    }

    pub fn hidden(&self) -> String {
        ok(&run(Command::new("find").arg(self.path("")).args(["-name", ".*", "-printf", "%P\\n"])))
    }
}
