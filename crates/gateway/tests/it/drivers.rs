//! Transports from shared libraries (U9–U12): a hop between gateways over libudt as listed by the administrator, and
//! errors about a list that is invalid.

use crate::support;
use phoebus_gateway::Config;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{ALLOW_ALL, Pg, address, exchange, pattern};
use tempfile::TempDir;

/// Builds the driver of the examples.
fn libudt(dir: &TempDir) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let library = dir.path().join("libudt_driver.so");
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-shared", "-fPIC", "-I"]).arg(root.join("crates/net/include")).arg("-o").arg(&library);
    compiler.arg(root.join("examples/drivers/libudt/libudt_driver.cpp")).arg("-ludt");
    assert!(compiler.status().unwrap().success(), "g++ and libudt-dev are needed; scripts/setup installs them");
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o755)).unwrap();
    library
}

fn driver(library: &Path, options: &str) -> String {
    format!("[[driver]]\nname = \"libudt\"\nlibrary = \"{}\"\noptions = {{ {options} }}\n", library.display())
}

fn peer(name: &str, addr: SocketAddr) -> String {
    format!(
        "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\ntransport = \"libudt\"\nsecurity = \"none\"\n\
         from = [\"127.0.0.0/8\"]\npool = {{ min = 1 }}\n"
    )
}

#[test]
fn session_over_driver_delivers_bytes_and_half_closes() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(&libudt(&dir), "mss = 1400, flow_window = 8192");
    let addrs = [address(), address()];
    let listen = format!("[[listen]]\naddress = \"{}\"\ntransport = \"libudt\"\n", addrs[1]);
    let second = format!("{driver}{listen}{}{ALLOW_ALL}", peer("pg1", addrs[0]).replace("min = 1", "min = 0"));
    let _second = Pg::start_at(addrs[1], "pg2", &second);
    let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
    let first = Pg::start_at(addrs[0], "pg1", &format!("{driver}{}{route}{ALLOW_ALL}", peer("pg2", addrs[1])));
    for (turn, (up, down)) in [(0, 0), (70_001, 0), (0, 70_001), (3_000_017, 1_234_567)].into_iter().enumerate() {
        let (client, server, report) = support::session(&first, |ask| ask);
        assert_eq!(report.carried[0], ("libudt".to_owned(), "none".to_owned()));
        exchange(client, server, &pattern(up, turn as u64), &pattern(down, 90 + turn as u64));
    }
}

#[test]
fn unusable_driver_is_reported_with_file_position() {
    let dir = tempfile::tempdir().unwrap();
    let library = libudt(&dir);
    let error = |text: &str| {
        let text = format!("[[listen]]\naddress = \"127.0.0.1:0\"\n{text}");
        Config::parse(&text, Path::new("gateway.toml")).unwrap_err().to_string()
    };
    let told = error(&driver(&library, "mtu = 1500"));
    assert!(
        told.starts_with("gateway.toml:5:11: cannot use ")
            && told.contains("it has no option mtu; its options are: rate")
    );
    let told = error(&driver(&library, "mss = 10"));
    assert!(told.contains("option mss = \"10\" is not a whole number from 76 to 9000"), "{told}");
    let told = error(&driver(&library, "mss = [1]"));
    assert!(told.contains("option mss is not a text, a number, true or false"), "{told}");
    let told = error(&driver(Path::new("libudt.so"), ""));
    assert!(told.contains("its path must be absolute"), "{told}");
    let told = error(&driver(&library, "").replace("\"libudt\"", "\"udt\""));
    assert!(told.contains("there is a transport \"udt\" already; expected another name"), "{told}");
    let told = error("[[driver]]\nname = \"x\"\n");
    assert!(told.contains("missing field `library`"), "{told}");
}
