//! This crate as a client of a real `globus-gridftp-server`: login with each kind of credential, delegation,
//! protected commands, and refusals.

use phoebus_gsi::context::{Delegation, Expect};
use phoebus_gsi::control::{ClientLogin, ControlError, Next, Protected};
use phoebus_gsi::credential::{Credential, provider};
use phoebus_gsi::proxy::Format;
use phoebus_gsi::proxy::issue::{ProxyProfile, create};

use crate::gct::lab::{Lab, Lines, now};

/// A secured control channel to the server.
pub(crate) struct Client {
    pub(crate) lines: Lines,
    pub(crate) protected: Protected,
}

pub(crate) fn login(
    lab: &Lab,
    port: u16,
    credential: Credential,
    server: Expect,
    delegation: Delegation,
) -> Result<Client, ControlError> {
    let mut lines = Lines::connect(port);
    assert_eq!(lines.reply().0, 220);
    let (mut login, mut line) = ClientLogin::begin(&lab.endpoint(credential), server, delegation, now())?;
    loop {
        lines.send(&line);
        let (code, text) = lines.reply();
        match login.reply(code, &text)? {
            Next::Send(next) => line = next,
            Next::Done => return Ok(Client { lines, protected: login.finish().unwrap() }),
        }
    }
}

impl Client {
    /// Sends a protected command and returns the whole reply, with lines separated by `\n`.
    pub(crate) fn command(&mut self, command: &str) -> String {
        let line = self.protected.command(command).unwrap();
        self.lines.send(&line);
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> String {
        let mut reply = String::new();
        loop {
            let line = self.lines.line().expect("the connection ended where a reply was due");
            reply.push_str(str::from_utf8(&self.protected.open_reply(&line).unwrap()).unwrap());
            let last = reply.trim_end().rsplit('\n').next().unwrap_or_default();
            if last.len() > 3 && last.as_bytes()[3] == b' ' && last[..3].parse::<u16>().is_ok() {
                return reply.trim_end().replace("\r\n", "\n");
            }
        }
    }

    /// Completes the login as the user from the grid-mapfile.
    pub(crate) fn enter(&mut self) {
        let reply = self.command("USER :globus-mapping:");
        assert!(reply.starts_with("331") || reply.starts_with("232") || reply.starts_with("230"), "{reply}");
        if reply.starts_with("331") {
            let reply = self.command("PASS dummy");
            assert!(reply.starts_with("230"), "{reply}");
        }
    }
}

fn localhost() -> Expect {
    Expect::Host("localhost".into())
}

#[test]
fn login_works_with_every_kind_of_proxy() {
    let lab = Lab::new();
    let server = lab.server();
    for (name, arguments) in
        [("rfc", &["-rfc"][..]), ("limited", &["-rfc", "-limited"]), ("draft", &["-draft"]), ("legacy", &["-old"])]
    {
        lab.user_proxy(name, arguments);
        let mut client = login(&lab, server.port, lab.credential(name), localhost(), Delegation::None)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{}", server.log()));
        client.enter();
        assert!(client.command("PWD").starts_with("257 "), "{name}");
        assert!(client.command("NOOP").starts_with("200 "), "{name}");
        let features = client.command("FEAT");
        assert!(features.contains("DCAU") && features.ends_with("211 End."), "{name}: {features}");
        assert!(client.command("QUIT").starts_with("221"), "{name}");
    }
}

#[test]
fn login_works_with_certificates_and_our_proxies() {
    let lab = Lab::new();
    let server = lab.server();
    let user = lab.credential_of("plain");
    let mut credentials = vec![("certificate", user.clone()), ("limited use", lab.credential_of("user"))];
    for (name, format) in [("rfc", Format::Rfc), ("draft", Format::Draft), ("legacy", Format::Legacy)] {
        let terms = ProxyProfile { format: Some(format), ..ProxyProfile::delegation(false) };
        credentials.push((name, create(&user, &terms, &provider(), now()).unwrap()));
    }
    for (name, credential) in credentials {
        let mut client = login(&lab, server.port, credential, localhost(), Delegation::None)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{}", server.log()));
        client.enter();
        assert!(client.command("PWD").starts_with("257 "), "{name}");
    }
}

#[test]
fn delegation_to_gct_server_works() {
    let lab = Lab::new();
    let server = lab.server();
    lab.user_proxy("rfc", &["-rfc"]);
    lab.user_proxy("legacy", &["-old"]);
    lab.user_proxy("draft", &["-draft"]);
    for (name, delegation) in [
        ("rfc", Delegation::Full),
        ("rfc", Delegation::Limited),
        ("draft", Delegation::Full),
        ("legacy", Delegation::Full),
        ("legacy", Delegation::Limited),
    ] {
        let mut client = login(&lab, server.port, lab.credential(name), localhost(), delegation)
            .unwrap_or_else(|error| panic!("{name} {delegation:?}: {error}\n{}", server.log()));
        client.enter();
        // Without delegated rights the server has no credential for data channels, and a refusal shows here.
        assert!(client.command("DCAU A").starts_with("200 "), "{name}");
        assert!(client.command("PWD").starts_with("257 "), "{name}");
    }
}

#[test]
fn login_works_over_tls_1_2_and_1_3() {
    let lab = Lab::new();
    lab.user_proxy("rfc", &["-rfc"]);
    for (version, name) in [("TLS1_2_VERSION", "TLSv1_2"), ("TLS1_3_VERSION", "TLSv1_3")] {
        let server = lab
            .server_with(&[("GLOBUS_GSSAPI_MIN_TLS_PROTOCOL", version), ("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", version)]);
        for delegation in [Delegation::None, Delegation::Full] {
            let mut client = login(&lab, server.port, lab.credential("rfc"), localhost(), delegation)
                .unwrap_or_else(|error| panic!("{version} {delegation:?}: {error}\n{}", server.log()));
            let used = client.protected.context().protection();
            assert!(used.starts_with(name), "{used}");
            client.enter();
            assert!(client.command("PWD").starts_with("257 "), "{version}");
        }
    }
}

/// GCT generates an RSA key with the bit length of the peer's key, whatever its type, and 256 bits are too
/// few. When this test fails, update `docs/protocol/gsi.md`.
#[test]
fn gct_rejects_delegation_from_an_elliptic_key() {
    let lab = Lab::new();
    let server = lab.server();
    let made = create(&lab.credential_of("user"), &ProxyProfile::delegation(false), &provider(), now()).unwrap();
    let error = login(&lab, server.port, made, localhost(), Delegation::Full).err().unwrap();
    assert!(matches!(&error, ControlError::Refused { text, .. } if text.contains("key size too small")), "{error}");
}

#[test]
fn client_refuses_another_host() {
    let lab = Lab::new();
    let server = lab.server();
    lab.user_proxy("rfc", &[]);
    let attempt = |expect| login(&lab, server.port, lab.credential("rfc"), expect, Delegation::Full);
    let error = attempt(Expect::Host("dtn.example.org".into())).err().unwrap().to_string();
    assert!(error.contains("/O=Grid/OU=Lab/CN=localhost") && error.contains("dtn.example.org"), "{error}");
    let error = attempt(Expect::Subject("/O=Grid/OU=Lab/CN=other".into())).err().unwrap().to_string();
    assert!(error.contains("/O=Grid/OU=Lab/CN=other was expected"), "{error}");
    assert!(attempt(Expect::Host("127.0.0.1".into())).is_ok());
    assert!(attempt(Expect::Subject("/O=Grid/OU=Lab/CN=localhost".into())).is_ok());
}

#[test]
fn client_reports_the_server_s_refusal() {
    let lab = Lab::new();
    let server = lab.server();
    let stranger = Lab::new();
    stranger.authority("other", "/O=Grid/OU=Lab/CN=Other CA", "rsa:2048");
    stranger.entity("stranger", "/O=Grid/OU=Lab/CN=Stranger", "other", "rsa:2048", "");
    let error =
        login(&lab, server.port, stranger.credential_of("stranger"), localhost(), Delegation::None).err().unwrap();
    assert!(matches!(error, ControlError::Refused { .. }), "{error}");
}
