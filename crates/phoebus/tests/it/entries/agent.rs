//! `phoebus run --proxy`: programs come to an agent. Go never uses a proxy for loopback, so that the servers are elsewhere.

use super::clients::{go_program, ok};
use crate::support::serve::bytes;
use crate::support::{Certificates, phoebus};
use std::fs;
use std::process::Command;

/// A gateway, a web server on another address, and programs that come by an agent, in a network namespace.
const SCRIPT: &str = r#"
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
cd "$1"
"$PHOEBUS" gateway --config gateway.toml >log 2>&1 &
gateway=$!
python3 -m http.server --bind 192.0.2.1 8080 >/dev/null 2>&1 &
trap "kill $gateway $!" EXIT
until curl -s -o /dev/null http://192.0.2.1:8080/ && grep -q 'is open' log; do sleep 0.05; done
url=http://192.0.2.1:8080/file
for hop in tcp "tls --ca $2" "quic --ca $2"; do
    run="$PHOEBUS run --proxy --gateway 127.0.0.1 --agent-idle 100ms --first-hop $hop --"
    echo "${hop%% *}: $($run "$3" $url) $($run curl -sS --fail $url | wc -c)" \
        $($run sh -c 'curl -sS --fail -p -x "$HTTPS_PROXY" "$0"' $url | wc -c)
done
# Two programs share an agent, and its variables are those of one user.
"$PHOEBUS" run --proxy --gateway 127.0.0.1 --except .lab.example,192.0.2.0/30 -- sh -c '
    echo "${NO_PROXY#localhost,} ${ALL_PROXY%%:*} ${HTTPS_PROXY%%:*}"
    curl -s -o /dev/null -w "%{exitcode}\n" --noproxy "" -x "http://127.0.0.1%2F5006:wrong@${HTTPS_PROXY##*@}" -p "$0" || true
    curl -s -o /dev/null -w "%{exitcode}\n" --noproxy "" -x "${HTTPS_PROXY%%://*}://127.0.0.9${HTTPS_PROXY#*://127.0.0.1}" -p "$0" || true
' $url
grep -c 'via' log || true
"$PHOEBUS" run --proxy --gateway 127.0.0.1 --only .lab.example -- true || echo $?
"#;

#[test]
fn programs_come_to_an_agent_over_each_first_hop() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new();
    let tls = certificates.issue("127.0.0.1");
    let listen = "address = \"127.0.0.1:5006\"\nclient_certificate = \"optional\"\n";
    let config = format!(
        "name = \"pg1\"\n[[listen]]\n{listen}[[listen]]\n{listen}transport = \"quic\"\n{tls}\
         [[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"192.0.2.1\"]\n"
    );
    fs::write(dir.path().join("gateway.toml"), config).unwrap();
    fs::write(dir.path().join("file"), bytes(3_000_001)).unwrap();
    let go = go_program();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-euc", SCRIPT, "sh"]).arg(dir.path()).arg(certificates.file("ca.pem")).arg(&go);
    command.env("PHOEBUS", phoebus().get_program()).env("XDG_RUNTIME_DIR", dir.path()).env("HOME", dir.path());
    command.env_remove("XDG_CONFIG_HOME").env_remove("NO_PROXY").env_remove("no_proxy");
    let said = ok(&mut command);
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let carried = |hop: &str| format!("{hop}: 3000001 3000001 3000001\n");
    let expected = ["tcp", "tls", "quic"].map(carried).concat()
        + "127.0.0.0/8,127.0.0.1,::1,.lab.example,192.0.2.0/30 socks5h http\n56\n56\n0\n2\n";
    assert_eq!(said, expected, "{log}");
    assert_eq!(log.matches("session ended").count(), 9, "{log}");
    fs::remove_dir_all(go.parent().unwrap()).unwrap();
}
