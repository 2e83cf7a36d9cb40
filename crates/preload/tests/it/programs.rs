//! Real programs through real gateways: bytes arrive complete, programs see ends of files, and errors are those of a
//! direct connection.

#[path = "../../../gridftp/tests/it/support/works.rs"]
mod works;

use crate::common;
use common::gateways::{Gateways, Server, address, payload};
use common::{Ended, plain, program, run};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use works::works;

const MEGABYTE: usize = 1 << 20;
/// The way of programs to the gateways, in the notes for `docs/interop.md`.
const SHIM: &str = "shim";

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    SocketAddr::new(address().ip(), 1)
}

/// nginx with the files in `root`.
fn web(room: &Path, root: &Path) -> (Server, String) {
    let address = address();
    let config = room.join("nginx.conf");
    let text = format!(
        "daemon off; master_process off; pid {0}/nginx.pid; error_log stderr;\nevents {{}}\n\
         http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;\n\
         uwsgi_temp_path {0}/u; scgi_temp_path {0}/s; server {{ listen {address}; root {1}; }} }}\n",
        room.display(),
        root.display()
    );
    fs::write(&config, text).unwrap();
    let mut nginx = plain(program("nginx"));
    nginx.args(["-e", "stderr", "-p"]).arg(room).arg("-c").arg(&config);
    (Server::start(&mut nginx, address), format!("http://{address}"))
}

#[test]
fn curl() {
    let gateways = Gateways::start();
    let bytes = payload(&gateways.file("data"), 32 * MEGABYTE);
    let (_server, url) = web(gateways.room.path(), gateways.room.path());
    let to = gateways.file("copy");
    let curl = || gateways.command(program("curl"));
    run(curl().args(["-sS", "--fail", "-o"]).arg(&to).arg(format!("{url}/data"))).ok();
    assert!(fs::read(&to).unwrap() == bytes);
    gateways.carried(1);

    // Several at a time, each on a connection of its own.
    let mut parallel = curl();
    parallel.args(["-sS", "--fail", "--parallel", "--parallel-immediate", "--no-keepalive"]);
    for i in 0..8 {
        parallel.arg("-o").arg(gateways.file(&format!("copy{i}"))).arg(format!("{url}/data"));
    }
    run(&mut parallel).ok();
    for i in 0..8 {
        assert!(fs::read(gateways.file(&format!("copy{i}"))).unwrap() == bytes);
    }
    gateways.carried(1);

    let refused = run(curl().args(["-sS", "--connect-timeout", "30"]).arg(format!("http://{}/", nobody())));
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    let report = &gateways.reports()[0];
    assert_eq!((&report["event"], &report["errno"]), (&"failed".into(), &111.into()), "{report:#?}");
    works("curl", "nginx", SHIM, "bytes many errors");
}

#[test]
fn wget() {
    let gateways = Gateways::start();
    let bytes = payload(&gateways.file("data"), 8 * MEGABYTE);
    let (_server, url) = web(gateways.room.path(), gateways.room.path());
    let to = gateways.file("copy");
    // With a time limit, wget may leave its connect by a jump out of a signal handler.
    for limit in ["--timeout=0", "--timeout=60"] {
        run(gateways.command(program("wget")).args(["-nv", limit, "-O"]).arg(&to).arg(format!("{url}/data"))).ok();
        assert!(fs::read(&to).unwrap() == bytes);
        gateways.carried(1);
    }
    let url = format!("http://{}/", nobody());
    let refused = run(gateways.command(program("wget")).args(["-nv", "--tries=1", "-O", "/dev/null"]).arg(url));
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(refused.err.contains("Connection refused"), "{refused:?}");
    works("wget", "nginx", SHIM, "bytes errors");
}

/// Its connections begin with TCP fast open, and several threads make them.
#[test]
fn wget2() {
    let gateways = Gateways::start();
    let bytes = payload(&gateways.file("data"), 8 * MEGABYTE);
    let (_server, url) = web(gateways.room.path(), gateways.room.path());
    let wget2 = || {
        let mut command = gateways.command(program("wget2"));
        command.args(["-nv", "--tries=1", "--timeout=60"]);
        command
    };
    let to = gateways.file("copy");
    for fast_open in ["--tcp-fastopen", "--no-tcp-fastopen"] {
        run(wget2().args([fast_open, "-O"]).arg(&to).arg(format!("{url}/data"))).ok();
        assert!(fs::read(&to).unwrap() == bytes, "{fast_open}");
        gateways.carried(1);
    }
    // Several at a time, each on a connection of its own.
    let names: Vec<_> = (0..4).map(|n| format!("part{n}")).collect();
    names.iter().for_each(|name| fs::write(gateways.file(name), &bytes).unwrap());
    let to = gateways.file("many");
    let mut many = wget2();
    many.args(["--max-threads=4", "-P"]).arg(&to);
    run(many.args(names.iter().map(|name| format!("{url}/{name}")))).ok();
    for name in &names {
        assert!(fs::read(to.join(name)).unwrap() == bytes, "{name}");
    }
    gateways.carried(4);
    // Version 1.99.1 reports this and exits with 0, also without gateways.
    let refused = run(wget2().args(["-O", "/dev/null"]).arg(format!("http://{}/", nobody())));
    assert!(refused.err.contains("Connection refused"), "{refused:?}");
    works("wget2", "nginx", SHIM, "bytes many errors");
}

/// An OpenSSH server, with a key for the user who runs the test.
struct Ssh {
    _server: Server,
    config: String,
}

impl Ssh {
    fn start(gateways: &Gateways) -> Self {
        let address = SocketAddr::new(address().ip(), 2222);
        let room = gateways.room.path().display();
        for key in ["host", "user"] {
            let mut keygen = plain(program("ssh-keygen"));
            run(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(gateways.file(key))).ok();
        }
        // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
        let sshd = format!(
            "ListenAddress {address}\nHostKey {room}/host\nPidFile none\nAuthorizedKeysFile {room}/user.pub\n\
             StrictModes no\nPermitRootLogin yes\nUsePAM no\nSubsystem sftp internal-sftp\nMaxStartups 100\n\
             SetEnv SHLVL=2\n"
        );
        fs::write(gateways.file("sshd_config"), sshd).unwrap();
        let ssh = format!(
            "Host *\nHostname {}\nPort {}\nIdentityFile {room}/user\nUserKnownHostsFile {room}/known\n\
             StrictHostKeyChecking no\nBatchMode yes\nLogLevel ERROR\n",
            address.ip(),
            address.port()
        );
        let config = gateways.file("ssh_config");
        fs::write(&config, ssh).unwrap();
        // The directory of sshd's privilege separation. Debian creates it when the service starts.
        fs::create_dir_all("/run/sshd").unwrap();
        let mut command = plain(program("sshd"));
        let server = Server::start(command.args(["-D", "-e", "-f"]).arg(gateways.file("sshd_config")), address);
        Self { _server: server, config: config.display().to_string() }
    }
}

#[test]
fn scp_and_sftp() {
    let gateways = Gateways::start();
    let bytes = payload(&gateways.file("data"), 16 * MEGABYTE);
    let ssh = Ssh::start(&gateways);
    let remote = |name: &str| format!("host:{}", gateways.file(name).display());
    let scp = || {
        let mut scp = gateways.command(program("scp"));
        scp.args(["-q", "-F", &ssh.config]);
        scp
    };
    run(scp().arg(gateways.file("data")).arg(remote("up"))).ok();
    assert!(fs::read(gateways.file("up")).unwrap() == bytes);
    run(scp().arg(remote("data")).arg(gateways.file("down"))).ok();
    assert!(fs::read(gateways.file("down")).unwrap() == bytes);
    gateways.carried(2);

    let room = gateways.room.path().display();
    fs::write(gateways.file("batch"), format!("put {room}/data {room}/up2\nget {room}/data {room}/down2\n")).unwrap();
    let batch = gateways.file("batch");
    run(gateways.command(program("sftp")).args(["-q", "-F", &ssh.config, "-b"]).arg(batch).arg("host")).ok();
    assert!(fs::read(gateways.file("up2")).unwrap() == bytes && fs::read(gateways.file("down2")).unwrap() == bytes);
    gateways.carried(1);

    let refused = run(gateways.command(program("ssh")).args(["-F", &ssh.config, "-p", "1", "host", "true"]));
    assert_eq!(refused.status.code(), Some(255), "{refused:?}");
    assert!(refused.err.contains("Connection refused"), "{refused:?}");
    // ssh's other way to connect: non-blocking, with a time limit.
    let mut timed = gateways.command(program("ssh"));
    run(timed.args(["-F", &ssh.config, "-o", "ConnectTimeout=60", "host", "true"])).ok();
    timed.args(["-o", "Port=1"]);
    gateways.carried(1);
    works("ssh, scp, sftp", "OpenSSH", SHIM, "bytes errors");
}

#[test]
fn rsync() {
    let gateways = Gateways::start();
    let from = gateways.file("tree");
    fs::create_dir_all(from.join("deep/er")).unwrap();
    for i in 0..40 {
        payload(&from.join(format!("deep/er/{i}")), i * 70_001);
    }
    let same = |to: &Path| {
        let differ = run(plain(program("diff")).arg("-r").arg(&from).arg(to));
        assert!(differ.status.success(), "{}", differ.out);
    };
    // Through ssh.
    let ssh = Ssh::start(&gateways);
    let shell = format!("{} -F {}", program("ssh").display(), ssh.config);
    let to = gateways.file("by-ssh");
    let mut rsync = gateways.command(program("rsync"));
    run(rsync.args(["-a", "-e", &shell]).arg(from.join("")).arg(format!("host:{}/", to.display()))).ok();
    same(&to);
    gateways.carried(1);
    // To a daemon.
    let address = SocketAddr::new(address().ip(), 8730);
    let config = gateways.file("rsyncd.conf");
    let text = "use chroot = no\nuid = root\ngid = root\n[room]\npath = {}\nread only = no\n";
    fs::write(&config, text.replace("{}", &gateways.room.path().display().to_string())).unwrap();
    let mut daemon = plain(program("rsync"));
    daemon.args(["--daemon", "--no-detach", &format!("--address={}", address.ip()), "--port=8730", "--config"]);
    let _server = Server::start(daemon.arg(&config), address);
    let url = format!("rsync://{address}/room");
    run(gateways.command(program("rsync")).arg("-a").arg(from.join("")).arg(format!("{url}/up/"))).ok();
    same(&gateways.file("up"));
    run(gateways.command(program("rsync")).arg("-a").arg(format!("{url}/tree/")).arg(gateways.file("down/"))).ok();
    same(&gateways.file("down"));
    gateways.carried(2);
    works("rsync", "rsync", SHIM, "bytes");
}

/// git, with an author and no settings of the tester's.
fn git(command: &mut Command, arguments: &[&str]) -> Ended {
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    run(command.args(["-c", "safe.directory=*", "-c", "init.defaultBranch=main"]).args(arguments))
}

#[test]
fn git_over_http_and_ssh() {
    let gateways = Gateways::start();
    let path = |name: &str| gateways.file(name).display().to_string();
    fs::create_dir(gateways.file("work")).unwrap();
    payload(&gateways.file("work/data"), 5 * MEGABYTE);
    git(&mut plain(program("git")), &["init", "-q", &path("work")]).ok();
    git(&mut plain(program("git")), &["-C", &path("work"), "add", "data"]).ok();
    git(&mut plain(program("git")), &["-C", &path("work"), "commit", "-q", "-m", "data"]).ok();
    git(&mut plain(program("git")), &["clone", "-q", "--bare", &path("work"), &path("served.git")]).ok();
    git(&mut plain(program("git")), &["-C", &path("served.git"), "config", "http.receivepack", "true"]).ok();

    // The smart protocol, by git's own CGI program.
    let address = SocketAddr::new(address().ip(), 8000);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/git_http.py");
    let mut server = plain(program("python3"));
    server.arg(script).arg(address.ip().to_string()).arg(gateways.room.path()).env("GIT_CONFIG_NOSYSTEM", "1");
    server.env("HOME", gateways.room.path());
    fs::write(gateways.file(".gitconfig"), "[safe]\n\tdirectory = *\n").unwrap();
    let _server = Server::start(&mut server, address);
    let ssh = Ssh::start(&gateways);
    let urls = [format!("http://{address}/served.git"), format!("host:{}", path("served.git"))];
    for (i, url) in urls.iter().enumerate() {
        let clone = path(&format!("clone{i}"));
        let with_shell = || {
            let mut git = gateways.command(program("git"));
            git.env("GIT_SSH_COMMAND", format!("{} -F {}", program("ssh").display(), ssh.config));
            git
        };
        git(&mut with_shell(), &["clone", "-q", url, &clone]).ok();
        gateways.carried(1);
        assert!(fs::read(format!("{clone}/data")).unwrap() == fs::read(gateways.file("work/data")).unwrap());
        fs::write(format!("{clone}/more"), format!("{i}")).unwrap();
        git(&mut plain(program("git")), &["-C", &clone, "add", "more"]).ok();
        git(&mut plain(program("git")), &["-C", &clone, "commit", "-q", "-m", "more"]).ok();
        git(&mut with_shell(), &["-C", &clone, "push", "-q", "origin", "HEAD"]).ok();
        gateways.carried(1);
        let head = |at: &str| git(&mut plain(program("git")), &["-C", at, "rev-parse", "HEAD"]).ok();
        assert_eq!(head(&clone), head(&path("served.git")));
    }
    works("git", "git, OpenSSH", SHIM, "bytes");
}

/// Runs a script of `tests/`, which prints `ok` when all went as it should.
fn script(gateways: &Gateways, interpreter: &str, name: &str, arguments: &[String]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    assert_eq!(run(gateways.command(program(interpreter)).arg(file).args(arguments)).ok(), "ok\n");
}

#[test]
fn python() {
    let gateways = Gateways::start();
    payload(&gateways.file("data"), 4 * MEGABYTE);
    let (_server, url) = web(gateways.room.path(), gateways.room.path());
    let echo = common::peer::echo(address().ip());
    let path = gateways.file("data").display().to_string();
    let arguments = [url, path, echo.to_string(), nobody().to_string()];
    script(&gateways, "python3", "python/requests_client.py", &arguments);
    gateways.carried(1);
    script(&gateways, "python3", "python/asyncio_client.py", &arguments);
    gateways.carried(50);
    works("Python (requests, asyncio)", "nginx, echo", SHIM, "bytes many ends errors");
}

#[test]
fn node() {
    let gateways = Gateways::start();
    payload(&gateways.file("data"), 4 * MEGABYTE);
    let (_server, url) = web(gateways.room.path(), gateways.room.path());
    let echo = common::peer::echo(address().ip());
    let path = gateways.file("data").display().to_string();
    let arguments = [url, path, echo.to_string(), nobody().to_string()];
    script(&gateways, "node", "node/client.js", &arguments);
    gateways.carried(50);
    // With io_uring in libuv, if it has it. Sockets registered there would bypass the shim.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/client.js");
    let mut rings = gateways.command(program("node"));
    assert_eq!(run(rings.arg(file).args(arguments).env("UV_USE_IO_URING", "1")).ok(), "ok\n");
    gateways.carried(50);
    works("Node", "nginx, echo", SHIM, "bytes many ends errors");
}

#[test]
fn java_nio() {
    let gateways = Gateways::start();
    let echo = common::peer::echo(address().ip());
    script(&gateways, "java", "java/NioClient.java", &[echo.to_string(), nobody().to_string()]);
    gateways.carried(51);
    works("Java NIO", "echo", SHIM, "bytes many ends errors");
}

#[test]
fn redis_cli() {
    let gateways = Gateways::start();
    let address = SocketAddr::new(address().ip(), 6379);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut server = plain(program("redis-server"));
    server
        .args(["--bind", &ip, "--port", &port, "--save", "", "--appendonly", "no", "--dir"])
        .arg(gateways.room.path());
    let _server = Server::start(&mut server, address);
    let cli = |program_name: &str, port: &str, arguments: &[&str]| {
        let mut cli = gateways.command(program(program_name));
        cli.args(["-h", &ip, "-p", port]).args(arguments);
        cli
    };
    let value: String =
        payload(&gateways.file("data"), 3 * MEGABYTE).iter().map(|byte| char::from(byte % 26 + b'a')).collect();
    fs::write(gateways.file("value"), &value).unwrap();
    let mut set = cli("redis-cli", &port, &["-x", "SET", "key"]);
    let set = set.stdin(fs::File::open(gateways.file("value")).unwrap()).output().unwrap();
    assert!(set.status.success() && set.stdout == b"OK\n", "{set:?}");
    assert!(run(&mut cli("redis-cli", &port, &["GET", "key"])).ok().trim_end() == value);
    gateways.carried(2);
    run(&mut cli("redis-benchmark", &port, &["-q", "-c", "20", "-n", "2000", "-t", "set,get"])).ok();
    gateways.carried(20);
    let refused = run(&mut cli("redis-cli", "1", &["PING"]));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.err.contains("Connection refused"), "{refused:?}");
    works("redis-cli", "Redis", SHIM, "bytes errors");
    works("redis-benchmark", "Redis", SHIM, "bytes many");
}

/// A program of PostgreSQL's server, which Debian keeps by version.
fn postgres(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let found = versions.map(|version| version.unwrap().path().join("bin").join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| panic!("PostgreSQL's {name} is not installed: run `scripts/setup test`"))
}

#[test]
fn psql() {
    /// PostgreSQL's server does not run as root.
    const NOBODY: u32 = 65534;
    let gateways = Gateways::start();
    let data = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(data.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let server = |name: &str| {
        let mut server = plain(postgres(name));
        server.arg("-D").arg(data.path().join("cluster")).uid(NOBODY).gid(NOBODY).current_dir("/");
        server
    };
    run(server("initdb").args(["--no-sync", "-A", "trust", "-U", "ada", "-E", "UTF8"])).ok();
    let address = SocketAddr::new(address().ip(), 5432);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut postgres = server("postgres");
    postgres.args(["-h", &ip, "-p", &port, "-k", "", "-c", "fsync=off", "-c", "shared_buffers=8MB"]);
    let _server = Server::start(&mut postgres, address);
    let psql = |port: &str, script: &str| {
        let mut psql = gateways.command(program("psql"));
        psql.args([
            "-X",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            &ip,
            "-p",
            port,
            "-U",
            "ada",
            "-d",
            "postgres",
            "-c",
            script,
        ]);
        run(&mut psql)
    };
    let rows: String = (0..100_000).map(|row| format!("{row}\t{}\n", row * 7919)).collect();
    fs::write(gateways.file("rows"), &rows).unwrap();
    psql(&port, "CREATE TABLE numbers (row int, value bigint)").ok();
    psql(&port, &format!("\\copy numbers FROM '{}'", gateways.file("rows").display())).ok();
    assert_eq!(psql(&port, "SELECT count(*), sum(value) FROM numbers").ok(), "100000|39594604050000\n");
    psql(&port, &format!("\\copy (SELECT * FROM numbers ORDER BY row) TO '{}'", gateways.file("back").display())).ok();
    assert!(fs::read_to_string(gateways.file("back")).unwrap() == rows);
    gateways.carried(4);
    let refused = psql("1", "SELECT 1");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.err.contains("Connection refused"), "{refused:?}");
    works("psql", "PostgreSQL", SHIM, "bytes errors");
}

#[test]
fn iperf3() {
    let gateways = Gateways::start();
    let address = SocketAddr::new(address().ip(), 5201);
    // A server for each run. After a run, it listens anew, and the test could not tell when.
    for arguments in [&["-P", "1"][..], &["-P", "8"], &["-P", "8", "-R"], &["-P", "2", "--bidir"]] {
        let mut command = plain(program("iperf3"));
        let server = Server::start(command.args(["-s", "-B", &address.ip().to_string()]), address);
        let mut client = gateways.command(program("iperf3"));
        client.args(["-J", "-n", "64M", "-c", &address.ip().to_string()]).args(arguments);
        let report: serde_json::Value = serde_json::from_str(&run(&mut client).ok()).unwrap();
        assert!(report.get("error").is_none(), "{report:#}");
        // Both directions stop after a common total, however they share it.
        let bidirectional = arguments.contains(&"--bidir");
        let least = if bidirectional { 1 } else { 64 << 20 };
        let sums = ["sum_sent", "sum_received"].map(|sum| report["end"][sum]["bytes"].as_u64().unwrap());
        assert!(sums[0] >= least && sums[1] > 0, "{report:#}");
        drop(server);
        let streams = arguments[1].parse::<usize>().unwrap() * if bidirectional { 2 } else { 1 };
        // And the control connection.
        gateways.carried(streams + 1);
    }
    works("iperf3", "iperf3", SHIM, "bytes many");
}

#[test]
fn nc_closes_one_direction() {
    let gateways = Gateways::start();
    let sent = payload(&gateways.file("data"), 3 * MEGABYTE);
    // A server that answers only after it has received everything.
    let listener = TcpListener::bind(SocketAddr::new(address().ip(), 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let expected = sent.clone();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == expected);
        got.reverse();
        stream.write_all(&got).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    });
    let mut nc = gateways.command(program("nc"));
    nc.args(["-N", &to.ip().to_string(), &to.port().to_string()]).stdin(fs::File::open(gateways.file("data")).unwrap());
    let child = nc.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    server.join().unwrap();
    assert!(ended.stdout.iter().rev().eq(sent.iter()));
    gateways.carried(1);
    works("nc", "the test itself", SHIM, "bytes ends");
}
