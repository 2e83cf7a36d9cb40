//! Runs the blocks of `docs/guide/gateway/` as printed: commands on hosts of their own, configurations with `--check`.

use crate::support::serve::with_input;
use crate::support::{PATIENCE, phoebus, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The pages of the guide, in the order in which they are read.
const PAGES: [&str; 5] = ["first.md", "two-sites.md", "operating.md", "rules.md", "reference.md"];

/// The guide's code blocks in a language, below the heading with this beginning or below all.
fn blocks(language: &str, heading: &str) -> Vec<String> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/gateway");
    let text = PAGES.map(|page| fs::read_to_string(guide.join(page)).unwrap()).concat();
    let (mut found, mut block, mut inside) = (Vec::new(), None::<String>, heading.is_empty());
    for line in text.lines() {
        match &mut block {
            Some(open) if line == "```" => {
                found.push(std::mem::take(open));
                block = None;
            }
            Some(open) => *open += &format!("{line}\n"),
            None if line.starts_with("## ") && !heading.is_empty() => inside = line[3..].starts_with(heading),
            None if inside && line == format!("```{language}") => block = Some(String::new()),
            None => {}
        }
    }
    assert!(!found.is_empty(), "no block of {language} under {heading}");
    found
}

/// Three hosts in a row, as network namespaces: clients with the first gateway, the second gateway, the destination.
struct Hosts {
    names: [String; 3],
    processes: Vec<Child>,
    dir: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Self {
        let pid = std::process::id();
        let names = ["a", "b", "c"].map(|host| format!("phg{pid}{host}"));
        let hosts = Self { names, processes: Vec::new(), dir: tempfile::tempdir().unwrap() };
        let [a, b, c] = &hosts.names;
        for name in &hosts.names {
            tool("ip", &["netns", "add", name]);
            tool("ip", &["-n", name, "link", "set", "lo", "up"]);
            let etc = etc(name);
            fs::create_dir_all(&etc).unwrap();
            fs::write(
                etc.join("hosts"),
                "127.0.0.1 localhost\n10.1.0.1 pg1.example\n10.1.0.2 pg2.example\n10.3.0.7 dtn.example\n",
            )
            .unwrap();
        }
        for (left, right, addresses) in [(a, b, ["10.1.0.1/16", "10.1.0.2/16"]), (b, c, ["10.3.0.1/16", "10.3.0.7/16"])]
        {
            let link = |from: &str| format!("to{}", &from[from.len() - 1..]);
            let (near, far) = (link(right), link(left));
            tool("ip", &["-n", left, "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", right]);
            for (host, link, address) in [(left, &near, addresses[0]), (right, &far, addresses[1])] {
                tool("ip", &["-n", host, "address", "add", address, "dev", link]);
                tool("ip", &["-n", host, "link", "set", link, "up"]);
            }
        }
        hosts
    }

    /// A command on a host, in the directory of the files.
    fn on(&self, host: usize, command: &str) -> Command {
        let mut shell = Command::new("ip");
        shell.args(["netns", "exec", &self.names[host], "sh", "-c", &format!("exec {command}")]);
        let own = Path::new(env!("CARGO_BIN_EXE_phoebus")).parent().unwrap();
        shell.env("PATH", format!("{}:{}", own.display(), std::env::var("PATH").unwrap()));
        shell.current_dir(self.dir.path()).stdin(Stdio::null()).env("HOME", "/nonexistent");
        shell.env_remove("XDG_CONFIG_HOME");
        shell
    }

    fn start(&mut self, host: usize, command: &str, port: u16) {
        let log = fs::File::create(self.dir.path().join(format!("log{host}"))).unwrap();
        self.processes.push(self.on(host, command).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let log = || fs::read_to_string(self.dir.path().join(format!("log{host}"))).unwrap();
        let listening = format!(":{port:04X} 00000000:0000 0A");
        let known = || text(&self.on(host, "cat /proc/net/tcp").output().unwrap().stdout);
        wait_until(|| known().contains(&listening), || format!("{command}: does not listen: {}", log()));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
            let _ = fs::remove_dir_all(etc(name));
        }
    }
}

/// A file that `ip netns exec` mounts over one in /etc.
fn etc(name: &str) -> PathBuf {
    Path::new("/etc/netns").join(name)
}

fn tool(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn two_gateways_are_joined_as_in_the_guide() {
    let mut hosts = Hosts::new();
    let commands = blocks("sh", "Join two gateways");
    let [init, rest] = &commands[..] else { panic!("{commands:?}") };
    let output = hosts.on(0, init.trim()).output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("  gateways/pg2.example-key.pem\n"), "{output:?}");
    for block in blocks("toml", "Join two gateways") {
        let (name, printed) = block.split_once('\n').unwrap();
        let written = hosts.dir.path().join("gateways").join(name.trim_start_matches("# "));
        assert_eq!(fs::read_to_string(written).unwrap(), printed);
    }
    hosts.start(2, "sh -c \"printf 'SSH-2.0-test' | nc -N -l 10.3.0.7 22\"", 22);
    for line in rest.lines() {
        let (command, place) = line.split_once('#').unwrap();
        match place.trim() {
            "on pg1.example" => hosts.start(0, command, 5006),
            "on pg2.example" => hosts.start(1, command, 5006),
            "on a client" => {
                let command = format!("timeout {} {command}", PATIENCE.as_secs());
                let output = hosts.on(0, &command).output().unwrap();
                let said = text(&output.stderr);
                assert!(output.status.success() && output.stdout == b"SSH-2.0-test", "{output:?}");
                assert!(said.contains(" pg1.example –") && said.contains(" pg2.example –"), "{said}");
            }
            other => panic!("{other}: no host of this test"),
        }
    }
    // The destination is reached through both gateways by its name, too.
    hosts.start(2, "sh -c \"printf 'SSH-2.0-test' | nc -N -l 10.3.0.7 22\"", 22);
    let command = "phoebus connect -v --gateway pg1.example dtn.example:22";
    let output = hosts.on(0, &format!("timeout {} {command}", PATIENCE.as_secs())).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && output.stdout == b"SSH-2.0-test", "{output:?}");
    assert!(said.contains(" pg1.example –") && said.contains(" pg2.example –"), "{said}");
    // A second run overwrites nothing, also no key.
    let again = hosts.on(0, init.trim()).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(
        text(&again.stderr).contains("gateways/pg1.example.toml is there already; --force replaces it"),
        "{again:?}"
    );
}

#[test]
fn every_configuration_of_the_guide_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let made = phoebus().args(["cert", "init", "--dir"]).arg(dir.path()).arg("pg1").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    with_input(phoebus().arg("passwd").arg("--users").arg(dir.path().join("users")).arg("ada"), b"a secret\n");
    let own = blocks("toml", "Join two gateways");
    for block in blocks("toml", "").into_iter().filter(|block| !own.contains(block)) {
        // Parts of the configuration from earlier in the guide.
        let tls = "[tls]\ncertificate = \"pg1.pem\"\nkey = \"pg1-key.pem\"\nauthorities = \"ca.pem\"\n";
        let mut whole = "name = \"pg1\"\n".to_owned();
        for (mark, part) in [
            ("[tls]", tls),
            ("[[listen]]", "[[listen]]\naddress = \"127.0.0.1:5006\"\n"),
            ("[[peer]]", "[[peer]]\nname = \"pg2\"\naddress = \"pg2.example/5006\"\n"),
            ("[profile.lan]", "[profile.lan]\n"),
            ("[users]", "[users]\nfile = \"users\"\n"),
        ] {
            if !block.contains(mark) {
                whole += part;
            }
        }
        whole += &block;
        let file = dir.path().join("gateway.toml");
        fs::write(&file, &whole).unwrap();
        let output = check(&file);
        assert!(output.status.success(), "{whole}\n{}", text(&output.stderr));
    }
}

fn check(file: &Path) -> Output {
    phoebus().args(["gateway", "--check", "--config"]).arg(file).output().unwrap()
}

#[test]
fn limits_beyond_the_process_s_descriptors_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    fs::write(&file, "[[listen]]\naddress = \"127.0.0.1:5006\"\n[limits]\nsessions = 4000000000\n").unwrap();
    let output = check(&file);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("gateway.toml:4:12: limits.sessions is 4000000000") && said.contains("ulimit -n"), "{said}");
}

#[test]
fn faults_in_arguments_of_init_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (["192.0.2.1", "--peer=pg2", "--from=10.1.0.0/16", "--to=*"], "\"192.0.2.1\" is no name for a gateway"),
        (["pg1", "--peer=PG1", "--from=10.1.0.0/16", "--to=*"], "both gateways are called \"pg1\""),
        (["pg1", "--peer=pg2", "--from=campus", "--to=*"], "--from: \"campus\" is not an address or a range"),
        (["pg1", "--peer=pg2=a b", "--from=10.1.0.0/16", "--to=*"], "gateway pg2: "),
        (["pg1", "--peer=pg2", "--from=10.1.0.0/16", "--to=a b"], "--to: "),
    ] {
        let output = phoebus().args(["gateway", "init"]).args(arguments).current_dir(dir.path()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn unavailable_congestion_control_is_refused() {
    for command in [
        &["run", "--gateway", "127.0.0.1", "--cc", "nosuch", "--", "true"][..],
        &["connect", "--gateway", "127.0.0.1", "--cc", "nosuch", "192.0.2.1:7"],
    ] {
        let output =
            phoebus().args(command).env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("this host's kernel has no \"nosuch\"; expected one of ") && said.contains("cubic"),
            "{said}"
        );
    }
}
