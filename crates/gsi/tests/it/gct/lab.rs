//! A temporary authority with a host and a user, made by `openssl`, in the directory layout of Globus, and
//! functions to run the real programs with it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use phoebus_gsi::certificate::Certificate;
use phoebus_gsi::context::Endpoint;
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::files;
use phoebus_gsi::trust::{MissingPolicy, TrustStore, directory};
use tempfile::TempDir;

pub(crate) const USER: &str = "/O=Grid/OU=Lab/CN=Lab User";
pub(crate) const CA: &str = "/O=Grid/OU=Lab/CN=Lab CA";

/// Longer than any step of a test takes, unless something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Lab {
    directory: TempDir,
}

pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

impl Lab {
    /// An authority that may certify names below `/O=Grid/OU=Lab`, with `localhost` and a user. All such labs
    /// share their keys, since generating keys takes time.
    pub(crate) fn new() -> Self {
        static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| Lab::fresh().files());
        let lab = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(lab.path("certs")).unwrap();
        for (name, content) in FILES.iter() {
            fs::write(lab.path(name), content).unwrap();
            if name.ends_with(".key") {
                fs::set_permissions(lab.path(name), fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        lab
    }

    /// As [`Lab::new`], with new keys.
    pub(crate) fn fresh() -> Self {
        let lab = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(lab.path("certs")).unwrap();
        lab.authority("ca", CA, "rsa:2048");
        lab.entity(
            "host",
            "/O=Grid/OU=Lab/CN=localhost",
            "ca",
            "rsa:2048",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        );
        lab.entity("user", USER, "ca", "rsa:2048", "");
        // GCT over OpenSSL 3 accepts legacy proxies only from certificates without key usage.
        lab.entity("plain", USER, "ca", "rsa:2048", "basicConstraints=CA:FALSE");
        let me = run(Command::new("id").arg("-un"));
        fs::write(lab.path("grid-mapfile"), format!("\"{USER}\" {}\n", me.trim())).unwrap();
        lab
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for prefix in ["", "certs/"] {
            for entry in fs::read_dir(self.path(prefix)).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_file() {
                    all.push((format!("{prefix}{}", entry.file_name().to_str().unwrap()), read(&entry.path())));
                }
            }
        }
        all
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn openssl(&self, arguments: &str) -> String {
        run(Command::new("openssl").args(arguments.split(' ')).current_dir(self.directory.path()))
    }

    /// Makes a root, and installs its certificate and signing policy as trusted.
    pub(crate) fn authority(&self, name: &str, subject: &str, key: &str) {
        run(Command::new("openssl").current_dir(self.directory.path()).args([
            "req",
            "-x509",
            "-newkey",
            key,
            "-nodes",
            "-sha256",
            "-days",
            "30",
            "-subj",
            subject,
            "-keyout",
            &format!("{name}.key"),
            "-out",
            &format!("{name}.pem"),
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        ]));
        let hash = self.openssl(&format!("x509 -in {name}.pem -noout -subject_hash"));
        fs::copy(self.path(&format!("{name}.pem")), self.path(&format!("certs/{}.0", hash.trim()))).unwrap();
        self.policy(name, subject, "/O=Grid/OU=Lab/*");
    }

    pub(crate) fn policy(&self, name: &str, subject: &str, pattern: &str) {
        let hash = self.openssl(&format!("x509 -in {name}.pem -noout -subject_hash"));
        let text = format!(
            "access_id_CA  X509    '{subject}'\npos_rights    globus  CA:sign\ncond_subjects globus  '\"{pattern}\"'\n"
        );
        fs::write(self.path(&format!("certs/{}.signing_policy", hash.trim())), text).unwrap();
    }

    /// Issues a certificate: `NAME.pem` and `NAME.key`.
    pub(crate) fn entity(&self, name: &str, subject: &str, by: &str, key: &str, extension: &str) {
        let mut request = vec!["req", "-nodes", "-sha256", "-subj", subject, "-newkey"];
        request.extend(key.split(' '));
        let (key_file, request_file) = (format!("{name}.key"), format!("{name}.csr"));
        request.extend(["-keyout", &key_file, "-out", &request_file]);
        run(Command::new("openssl").current_dir(self.directory.path()).args(request));
        let usage = if extension.contains("basicConstraints") {
            String::new()
        } else {
            "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n".to_owned()
        };
        fs::write(self.path(&format!("{name}.ext")), format!("{usage}{extension}\n")).unwrap();
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -days 20 -sha256 -extfile {name}.ext \
             -out {name}.pem"
        ));
        fs::set_permissions(self.path(&key_file), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A command with the environment of a Globus user, with this proxy or without one.
    pub(crate) fn command(&self, program: &str, proxy: Option<&str>) -> Command {
        let mut command = Command::new(program);
        command
            .env("X509_CERT_DIR", self.path("certs"))
            .env("GRIDMAP", self.path("grid-mapfile"))
            .env("GLOBUS_HOSTNAME", "localhost")
            .env("HOME", self.directory.path())
            .current_dir(self.directory.path());
        match proxy {
            Some(proxy) => command.env("X509_USER_PROXY", self.path(proxy)),
            None => command.env_remove("X509_USER_PROXY"),
        };
        command
    }

    /// Makes a proxy with the real `grid-proxy-init`, from the certificate and key files `from`.
    pub(crate) fn proxy_init(&self, name: &str, from: (&str, &str), arguments: &[&str]) -> PathBuf {
        let out = self.path(name);
        let mut command = self.command("grid-proxy-init", None);
        command.arg("-q").arg("-cert").arg(self.path(from.0)).arg("-key").arg(self.path(from.1));
        run(command.arg("-out").arg(&out).args(arguments));
        out
    }

    pub(crate) fn user_proxy(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let from = if arguments.contains(&"-old") { ("plain.pem", "plain.key") } else { ("user.pem", "user.key") };
        self.proxy_init(name, from, arguments)
    }

    pub(crate) fn credential(&self, file: &str) -> Credential {
        files::credential(&self.path(file), &provider()).unwrap()
    }

    pub(crate) fn credential_of(&self, name: &str) -> Credential {
        let (certificate, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        files::credential_of_two(&certificate, &key, &provider()).unwrap()
    }

    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        let der = self.path(&format!("{name}.der"));
        self.openssl(&format!("x509 -in {name}.pem -outform DER -out {name}.der"));
        Certificate::parse(&fs::read(der).unwrap()).unwrap()
    }

    pub(crate) fn trust(&self) -> Arc<TrustStore> {
        let loaded = directory::load(&self.path("certs"), MissingPolicy::Refuse).unwrap();
        Arc::new(loaded.strict().unwrap())
    }

    pub(crate) fn endpoint(&self, credential: Credential) -> Endpoint {
        Endpoint { credential, trust: self.trust(), provider: provider() }
    }

    pub(crate) fn server(&self) -> Server {
        self.server_with(&[])
    }

    /// Starts the real `globus-gridftp-server` on loopback.
    pub(crate) fn server_with(&self, environment: &[(&str, &str)]) -> Server {
        let log = self.path("server.log");
        let mut command = self.command("globus-gridftp-server", None);
        let mut child = command
            .env("X509_USER_CERT", self.path("host.pem"))
            .env("X509_USER_KEY", self.path("host.key"))
            .envs(environment.iter().copied())
            .args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-p", "0", "-allow-root"])
            .args(["-c", "/dev/null", "-no-detach", "-d", "ALL", "-log-module", "stdio:buffer=0", "-l"])
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("globus-gridftp-server: {error}; scripts/setup test installs it"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Server { port: port.unwrap_or_else(|| panic!("the server said {line:?}")), child, log }
    }
}

pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    log: PathBuf,
}

impl Server {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program that must succeed, and returns its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = attempt(command);
    assert!(output.0, "{command:?} failed:\n{}", output.1);
    output.1
}

/// Runs a program; returns whether it succeeded, and its output.
pub(crate) fn attempt(command: &mut Command) -> (bool, String) {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup test installs it"));
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { (true, text) } else { (false, format!("{text}\n{error}\n{}", output.status)) }
}

/// Reads and writes lines on a connection.
pub(crate) struct Lines {
    reader: BufReader<TcpStream>,
}

impl Lines {
    pub(crate) fn connect(port: u16) -> Self {
        Self::new(TcpStream::connect(("127.0.0.1", port)).unwrap())
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, line: &str) {
        self.reader.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// The next line without its line end; `None` at the end of the stream.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.reader.by_ref().take(1 << 20).read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// A whole reply: its code, and its text with lines separated by `\n`.
    pub(crate) fn reply(&mut self) -> (u16, String) {
        let mut all = Vec::new();
        loop {
            let line = self.line().expect("the connection ended where a reply was due");
            let (code, text) = line.split_at_checked(4).unwrap_or((&line, ""));
            all.push(text.to_owned());
            if let Some(Ok(code)) = code.strip_suffix(' ').map(str::parse) {
                return (code, all.join("\n"));
            }
        }
    }
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
