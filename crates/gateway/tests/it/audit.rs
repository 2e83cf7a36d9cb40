//! The audit: what its lines say, and that no disk stalls a session.

use super::entries::{ALL, connect, http_request};
use super::passwords::{AUTH, keys, users};
use super::support::{Ask, PATIENCE, Pg, address, destination};
use phoebus_proto::session::Code;
use phoebus_proto::session::auth::scram::{KEY_LEN, Keys};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RULES: &str = "[[rule]]\naction = \"deny\"\nto = \"127.0.0.0/8\"\nports = [1]\nreason = \"not here\"\n\
                     [[rule]]\naction = \"redirect\"\nto = \"127.0.0.0/8\"\nports = [2]\ngateway = \"192.0.2.9\"\n\
                     [[rule]]\naction = \"allow\"\nto = [\"127.0.0.0/8\", \"localhost\"]\n";

fn audit(file: &Path) -> String {
    format!("[audit]\nfile = {file:?}\n")
}

/// Waits for this many lines, and returns them.
fn lines(file: &Path, count: usize) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.lines().count() >= count && text.ends_with('\n') {
            return text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
                .collect();
        }
        assert!(start.elapsed() < PATIENCE, "{count} lines never came:\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn at_port(to: SocketAddr, port: u16) -> Ask {
    Ask::to(SocketAddr::new(to.ip(), port))
}

#[test]
fn each_decision_has_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "physics")]);
    let file = dir.path().join("audit.jsonl");
    let (listener, to) = destination();
    let open = address();
    let pg = Pg::start("pg1", &format!("{AUTH}[[listen]]\naddress = \"{open}\"\n{own}{RULES}{}", audit(&file)));
    let ada = |ask: Ask| Ask { login: Some(("ada".to_owned(), keys(1))), ..ask };
    let ask = ada(Ask::to(to));
    drop(ask.ask(pg.addr).unwrap());
    // It is written after the client knows.
    lines(&file, 1);
    assert!(at_port(to, 1).ask(open).is_err() && ada(at_port(to, 2)).ask(pg.addr).is_err());
    drop(listener);
    assert_eq!(Ask::to(to).ask(open).unwrap_err().code, Code::Refused);
    let nobody = Ask { login: Some(("eve".to_owned(), keys(1))), ..Ask::to(to) };
    assert!(nobody.try_ask_on(std::net::TcpStream::connect(pg.addr).unwrap()).is_err());
    let email = Ask { email: Some("nobody".to_owned()), ..Ask::to(to) };
    assert_eq!(email.ask(open).unwrap_err().code, Code::AuthFailed);
    let all = lines(&file, 6);
    let short = |line: &Value| {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        (text("decision"), text("outcome"), line["rule"]["number"].as_u64(), line["code"].as_u64().unwrap())
    };
    let expected = |decision: &str, outcome: &str, rule, code| (decision.to_owned(), outcome.to_owned(), rule, code);
    assert_eq!(
        all.iter().map(short).collect::<Vec<_>>(),
        [
            expected("allow", "opened", Some(3), 0),
            expected("deny", "refused", Some(1), 6),
            expected("redirect", "refused", Some(2), 6),
            expected("allow", "refused", Some(3), 32),
            expected("deny", "refused", None, 5),
            // The request behind the wrong address, which this listener does not ask for.
            expected("allow", "refused", Some(3), 32),
        ]
    );
    let first = &all[0];
    assert_eq!(
        (&first["user"], &first["method"], &first["groups"][0]),
        (&"ada".into(), &"SCRAM-SHA-256".into(), &"physics".into())
    );
    assert_eq!((&first["session"], &first["from"]), (&ask.session.to_string().into(), &"127.0.0.1".into()));
    assert_eq!(
        (&first["destination"], &first["transport"], &first["security"]),
        (&to.to_string().into(), &"tcp".into(), &"none".into())
    );
    assert_eq!((&first["listener"], &first["gateway"]), (&pg.addr.to_string().into(), &"pg1".into()));
    assert_eq!((&all[1]["reason"], &all[1]["hop"]), (&"not here".into(), &"pg1".into()));
    assert_eq!(all[2]["redirect"], "192.0.2.9:5006");
    assert_eq!(all[3]["hop"], to.to_string());
    assert_eq!((&all[4]["method"], &all[4]["entry"]), (&"anonymous".into(), &"session".into()));
    assert!(all[1]["user"].is_null() && all[4]["destination"].is_null(), "{all:?}");
    let status = pg.status().audit.unwrap();
    assert_eq!((status.written, status.lost, status.failing), (6, 0, None));
}

#[test]
fn wrong_passwords_of_programs_leave_lines_of_which_strangers_have_only_so_many() {
    let dir = tempfile::tempdir().unwrap();
    let own = users(dir.path(), &[("ada", 1, "")]);
    let file = dir.path().join("audit.jsonl");
    let pg = Pg::start("pg1", &format!("{ALL}{AUTH}{own}{RULES}{}", audit(&file)));
    let wrong = |by: &str| {
        let mut stream = connect(&pg);
        match by {
            "socks" => stream.write_all(b"\x05\x01\x02\x01\x03ada\x01x").unwrap(),
            _ => {
                // YWRhOng= is ada:x.
                let more = "Proxy-Authorization: Basic YWRhOng=\r\n";
                stream.write_all(http_request("127.0.0.1", 1, more).as_bytes()).unwrap();
            }
        }
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    };
    let wrong_keys = Keys::of(keys(1).salting, &[99; KEY_LEN]);
    let ask = Ask { login: Some(("ada".to_owned(), wrong_keys)), ..Ask::to("127.0.0.1:1") };
    assert_eq!(ask.ask(pg.addr).unwrap_err().code, Code::AuthFailed);
    let line = lines(&file, 1).pop().unwrap();
    let tried = (&line["user"], &line["method"], &line["entry"]);
    assert_eq!(tried, (&"ada".into(), &"SCRAM-SHA-256".into(), &"session".into()), "{line}");
    for (count, by) in [(2, "socks"), (3, "http")] {
        wrong(by);
        let line = lines(&file, count).pop().unwrap();
        let tried = (&line["user"], &line["method"], &line["entry"], &line["code"]);
        assert_eq!(tried, (&"ada".into(), &"password".into(), &by.into(), &5.into()), "{line}");
    }
    // The rest of them is counted at the end.
    for _ in 0..40 {
        wrong("socks");
    }
    drop(pg);
    let all = lines(&file, 31);
    let left_out: u64 = all.iter().filter_map(|line| line["left_out"].as_u64()).sum();
    let written = all.iter().filter(|line| line["left_out"].is_null()).count() as u64;
    assert!(left_out > 0 && written + left_out == 43, "{all:?}");
}

#[test]
fn torn_line_is_ended_before_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    fs::write(&file, "{\"time\":").unwrap();
    let (_listener, to) = destination();
    let pg = Pg::start("pg1", &format!("{RULES}{}", audit(&file)));
    drop(Ask::to(to).ask(pg.addr).unwrap());
    pg.until(|status| status.audit.as_ref().is_some_and(|audit| audit.written == 1), "the line is written");
    let text = fs::read_to_string(&file).unwrap();
    let (torn, line) = text.split_once('\n').unwrap();
    assert_eq!((torn, &serde_json::from_str::<Value>(line).unwrap()["outcome"]), ("{\"time\":", &"opened".into()));
}

#[test]
fn reload_opens_the_file_again_and_a_failed_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let (_listener, to) = destination();
    let text = format!("{RULES}{}", audit(&file));
    let pg = Pg::start("pg1", &text);
    drop(Ask::to(to).ask(pg.addr).unwrap());
    lines(&file, 1);
    let old = dir.path().join("audit.1");
    fs::rename(&file, &old).unwrap();
    drop(Ask::to(to).ask(pg.addr).unwrap());
    lines(&old, 2);
    // Nothing can be made there.
    let error = pg.try_reload("pg1", &audit(Path::new("/dev/null/audit"))).unwrap_err().to_string();
    assert!(error.starts_with("pg1:5:8: cannot write the audit to /dev/null/audit: "), "{error}");
    drop(Ask::to(to).ask(pg.addr).unwrap());
    lines(&old, 3);
    pg.reload("pg1", &text);
    drop(Ask::to(to).ask(pg.addr).unwrap());
    assert_eq!((lines(&file, 1).len(), lines(&old, 3).len()), (1, 3));
    // Without the table, nothing is written, and what waited is.
    pg.reload("pg1", RULES);
    drop(Ask::to(to).ask(pg.addr).unwrap());
    assert_eq!(pg.status().audit, None);
    assert_eq!(lines(&file, 1).len(), 1);
}

#[test]
fn full_disk_loses_lines_that_are_counted_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let (_listener, to) = destination();
    let pg = Pg::start("pg1", &format!("{RULES}{}", audit(Path::new("/dev/full"))));
    for _ in 0..3 {
        drop(Ask::to(to).ask(pg.addr).unwrap());
    }
    let lost = |n| move |status: &phoebus_gateway::Status| status.audit.as_ref().is_some_and(|audit| audit.lost == n);
    let status = pg.until(lost(3), "three lines are lost").audit.unwrap();
    assert!(status.failing.as_ref().is_some_and(|why| why.contains("no space")), "{status:?}");
    pg.reload("pg1", &format!("{RULES}{}", audit(&file)));
    drop(Ask::to(to).ask(pg.addr).unwrap());
    let all = lines(&file, 2);
    assert_eq!((&all[0]["lost"], &all[1]["decision"]), (&3.into(), &"allow".into()));
    let status = pg.until(lost(3), "no more lines are lost").audit.unwrap();
    assert_eq!((status.written, status.failing), (1, None));
}

#[test]
fn disk_that_does_not_answer_stalls_no_session() {
    let dir = tempfile::tempdir().unwrap();
    let fifo: PathBuf = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The reader is there, and reads nothing.
    let reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let filled = fill(&reader);
    let (_listener, to) = destination();
    let pg = Pg::start("pg1", &format!("{RULES}{}queue = 4\n", audit(&fifo)));
    let sessions: Vec<_> = (0..20).map(|_| Ask::to(to).ask(pg.addr).unwrap()).collect();
    // One line is being written, and four wait. A line is added when the client knows already.
    let is_lost = |status: &phoebus_gateway::Status| status.audit.as_ref().is_some_and(|audit| audit.lost >= 15);
    assert_eq!(pg.until(is_lost, "the others are lost").audit.unwrap().written, 0);
    // Once it answers, the file tells how many are missing.
    let mut all = BufReader::new(reader).lines().map(|line| line.unwrap());
    let (mut left, mut seen, mut missing) = (filled, 0, 0);
    while seen + missing < 20 {
        let line = all.next().unwrap();
        let blank = line.trim_start_matches('x');
        left -= line.len() - blank.len();
        let line: Value = serde_json::from_str(blank).unwrap();
        match line["lost"].as_u64() {
            Some(lost) => missing += lost,
            None => seen += 1,
        }
    }
    assert_eq!((left, missing), (0, pg.status().audit.unwrap().lost));
    drop(sessions);
}

/// Fills a FIFO, so that nobody can write to it. Returns how many bytes that took.
fn fill(fifo: &fs::File) -> usize {
    use std::io::Write;
    let flags = rustix::fs::fcntl_getfl(fifo).unwrap();
    rustix::fs::fcntl_setfl(fifo, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut filled = 0;
    while (&mut &*fifo).write_all(b"x").is_ok() {
        filled += 1;
    }
    rustix::fs::fcntl_setfl(fifo, flags).unwrap();
    filled
}
