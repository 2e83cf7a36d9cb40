//! Copies and listings that are cut or interrupted.

use super::*;

#[test]
fn empty_directory_for_drafts_is_removed_without_a_transfer() {
    let (here, serve) = (Here::new(), Serve::writable());
    let arguments = ["cp", "-r", "--partial-dir", ".partial", "src/", &serve.url("new")];
    here.does(&arguments);
    fs::create_dir(serve.path("new/deep/.partial")).unwrap();
    here.does(&arguments);
    assert!(!serve.path("new/deep/.partial").exists() && serve.path("new/deep/e").exists());
}

/// Ends listings of `/` after their first line, as `cut` says. It reports each file that is named itself.
fn lists_half(control: TcpStream, cut: &str) {
    let mut out = control.try_clone().unwrap();
    let mut data = None;
    let mut say = |line: &str| out.write_all(format!("{line}\r\n").as_bytes()).is_ok();
    say("220 ready");
    for line in BufReader::new(control).lines() {
        let Ok(line) = line else { return };
        let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let known = |name: &str| ["a", "b", "c"].contains(&name.trim_start_matches('/'));
        let facts = "type=file;size=1;modify=20170714024000;";
        match command {
            "USER" => say("230 in"),
            "FEAT" => say("211-\r\n MLST type*;size*;modify*;\r\n EPSV\r\n211 end"),
            "PWD" => say("257 \"/\""),
            "MLST" if known(argument) => say(&format!("250-\r\n {facts} {argument}\r\n250 end")),
            "MLST" if argument == "/" => say("250-\r\n type=dir; /\r\n250 end"),
            "MLST" => say("550 no such file"),
            "EPSV" => {
                let passive = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = passive.local_addr().unwrap().port();
                data = Some(passive);
                say(&format!("229 (|||{port}|)"))
            }
            "MLSD" => {
                say("150 here it comes");
                let (mut to, _) = data.take().unwrap().accept().unwrap();
                to.write_all(format!("{facts} a\r\n").as_bytes()).unwrap();
                drop(to);
                match cut {
                    "refused" => say("426 cut"),
                    "gone" => return,
                    _ => say("226 that is all"),
                }
            }
            _ => say("200 as you like"),
        };
    }
}

#[test]
fn nothing_is_deleted_after_a_cut_listing() {
    for cut in ["refused", "gone", "silent"] {
        let (here, listener) = (Here::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("ftp://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for control in listener.incoming() {
                std::thread::spawn(move || lists_half(control.unwrap(), cut));
            }
        });
        fs::create_dir(here.path("to")).unwrap();
        for name in ["a", "b", "c"] {
            let file = fs::File::create(here.path("to").join(name)).unwrap();
            std::io::Write::write_all(&mut &file, b"x").unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000)).unwrap();
        }
        let mut copy = here.command(&["cp", "-r", "--attempts", "1", "--timeout", "5s", "--delete", &url, "to"]);
        let (code, _, said) = says(&run(&mut copy));
        let left = fs::read_dir(here.path("to")).unwrap().count();
        assert_eq!(left, 3, "{cut}: {code}: {said}");
        assert_eq!(code == 0, cut == "silent", "{cut}: {said}");
    }
}

#[test]
fn downloads_show_a_total_before_they_end() {
    let (here, serve) = (Here::new(), Serve::writable());
    for (name, len) in [("tree/a", 2_000_000), ("tree/b/c", 100_000), ("tree/d/e/f", 100_000)] {
        fs::create_dir_all(serve.path(name).parent().unwrap()).unwrap();
        fs::write(serve.path(name), bytes(len)).unwrap();
    }
    for (source, dest, files, len) in [("tree/a", "one/", 1, 2_000_000), ("tree", "all/", 3, 2_200_000)] {
        let (out, _) = here.does(&["cp", "-r", "--json", "--limit-rate", "1M", &serve.url(source), dest]);
        let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let progress: Vec<Value> = lines.filter(|line| line["event"] == "progress").collect();
        let known = |line: &Value| line["files_total"] == files && line["bytes_total"] == len;
        assert!(progress.iter().any(known), "{progress:#?}");
    }
}

#[test]
fn refused_modes_are_reported() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    let (out, _) = here.does(&["cp", "-r", "--json", "src/", &ftp.url("ftp", "x")]);
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    // Five files, and three directories.
    assert_eq!(report["modes_refused"], 8, "{report:#}");
    let (_, said) = here.does(&["cp", "-r", "-v", "--existing", "replace", "src/", &ftp.url("ftp", "x")]);
    assert!(said.contains("the modes of 8 were not set"), "{said}");
    let (out, _) = here.does(&["cp", "-v", "--existing", "replace", "src/b b", &ftp.url("ftp", "x/b b")]);
    assert!(out.contains("x/b b: its mode was not set"), "{out}");
    let (_, said) =
        here.does(&["cp", "-r", "--preserve", "times", "--existing", "replace", "src/", &ftp.url("ftp", "x")]);
    assert!(!said.contains("modes"), "{said}");
}

#[test]
fn interrupted_copy_ends_the_server_s_work() {
    let (here, ftp) = (Here::new(), Ftp::proftpd(Tls::None, ""));
    fs::write(here.path("long"), bytes(40 << 20)).unwrap();
    let mut copy = here.command(&["cp", "-q", "--limit-rate", "20mbit", "long", &ftp.url("ftp", "long")]);
    let mut copy = copy.stderr(Stdio::piped()).spawn().unwrap();
    let begun =
        || fs::read_dir(ftp.path("")).unwrap().flatten().any(|entry| entry.metadata().is_ok_and(|meta| meta.len() > 0));
    support::wait_until(begun, || "nothing is copied".to_owned());
    support::interrupt(&copy);
    assert_eq!(copy.wait().unwrap().code(), Some(130));
    assert!(!ftp.path("long").exists());
}

#[test]
fn interrupted_copy_keeps_received_bytes() {
    let (here, serve) = (Here::new(), Serve::writable());
    let content = bytes(40 << 20);
    for path in [serve.path("long"), here.path("long")] {
        fs::write(path, &content).unwrap();
    }
    for (from, to, path) in [
        (serve.url("long"), "back".to_owned(), here.path("back")),
        ("long".to_owned(), serve.url("put"), serve.path("put")),
    ] {
        let mut copy = here.command(&["cp", "--json", "--limit-rate", "40mbit", &from, &to]);
        let mut copy = copy.stdout(Stdio::piped()).spawn().unwrap();
        // Earlier than its regular record, on a machine that is not busy.
        let mut lines = BufReader::new(copy.stdout.take().unwrap()).lines();
        let moved = |line: &str| serde_json::from_str::<Value>(line).unwrap()["bytes_moved"].as_u64();
        assert!(lines.any(|line| moved(&line.unwrap()) > Some(4 << 20)), "nothing is copied");
        support::interrupt(&copy);
        assert_eq!(copy.wait().unwrap().code(), Some(130));
        assert!(!path.exists());
        let report = here.does(&["cp", "--json", &from, &to]).0;
        let report: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
        assert!(report["bytes_moved"].as_u64().unwrap() <= 38 << 20, "{report:#}");
        assert!(fs::read(path).unwrap() == content);
    }
}
