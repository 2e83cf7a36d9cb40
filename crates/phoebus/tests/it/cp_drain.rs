//! `phoebus cp` from and to a server that ends, or that loses data, in the middle of a transfer.

use crate::support;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use support::ftp::hidden;
use support::here::{Here, says};
use support::serve::{Serve, bytes};

/// A server is told to end during the upload or download of this number of files, some megabytes in all.
fn ends_amid(files: usize, put: bool) {
    let content = bytes(if files == 1 { 2_000_000 } else { 6_000_000 });
    let (here, serve) = (Here::new(None), Serve::writable());
    let (source, dest) = if put { (here.path(""), serve.path("")) } else { (serve.path(""), here.path("")) };
    let names: Vec<String> = (0..files).map(|i| format!("f{i}")).collect();
    for name in &names {
        fs::write(source.join(name), &content).unwrap();
    }
    let urls: Vec<String> = names.iter().map(|name| if put { name.clone() } else { serve.url(name) }).collect();
    let to = if put { serve.url("") } else { "./".to_owned() };
    let mut arguments = vec!["cp", "--transfers", "2", "--limit-rate", if files == 1 { "2M" } else { "6M" }];
    arguments.extend(urls.iter().map(String::as_str).chain([&*to]));
    let copy = here.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Part of each file has arrived. A draft exists before its transfer is requested.
    let has_some = |name: &String| fs::metadata(dest.join(name)).is_ok_and(|meta| meta.blocks() >= 1000);
    // The space for a download is reserved on this disk first. A server has sent the bytes long before a slow client
    // has received them.
    let moving = || match put {
        true => hidden(&dest).iter().filter(|name| has_some(name)).count() >= files,
        false => serve.log().matches("transferred").count() >= files,
    };
    support::wait_until(moving, || format!("{:?}: {}", hidden(&dest), serve.log()));
    kill_process(Pid::from_raw(serve.pid().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    let (code, said) = says(&copy.wait_with_output().unwrap());
    assert_eq!(code, 0, "{said}\n{}", serve.log());
    for name in &names {
        assert!(fs::read(dest.join(name)).unwrap() == content, "{name}: {said}");
    }
    assert_eq!(hidden(&dest), Vec::<String>::new());
    assert!(serve.ended().success());
}

#[test]
fn put_finishes_during_a_drain() {
    ends_amid(1, true);
}

#[test]
fn get_finishes_during_a_drain() {
    ends_amid(1, false);
}

#[test]
fn several_puts_finish_during_a_drain() {
    ends_amid(2, true);
}

#[test]
fn several_gets_finish_during_a_drain() {
    ends_amid(2, false);
}

/// Forwards connections. While `cuts`, it ends a control connection over which the checksum of a file is requested.
fn cutting(to: SocketAddr, cuts: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (server, cuts) = (TcpStream::connect(to).unwrap(), cuts.clone());
            let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let (mut lines, mut line) = (BufReader::new(client), Vec::new());
                while lines.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                    if cuts.load(Ordering::Relaxed) && line.starts_with(b"CKSM") || (&server).write_all(&line).is_err()
                    {
                        break;
                    }
                    line.clear();
                }
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    addr
}

#[test]
fn complete_draft_that_was_removed_is_uploaded_again() {
    let (here, serve, cuts) = (Here::new(None), Serve::writable(), Arc::new(AtomicBool::new(true)));
    let url = format!("ftp://{}/x", cutting(SocketAddr::from((Ipv4Addr::LOCALHOST, serve.port())), cuts.clone()));
    fs::write(here.path("x"), bytes(17 << 20)).unwrap();
    let uncut = || cuts.store(false, Ordering::Relaxed);
    for removed in [true, false] {
        cuts.store(true, Ordering::Relaxed);
        here.fails(11, "", &["cp", "--attempts", "1", "x", &url]);
        let left = serve.hidden();
        assert!(left.len() == 1 && !serve.path("x").exists(), "{left:?}");
        uncut();
        if removed {
            fs::remove_file(serve.path(&left[0])).unwrap();
        }
        let said = here.does(&["cp", "--json", "x", &url]);
        assert!(fs::read(serve.path("x")).unwrap() == bytes(17 << 20), "{said}");
        assert_eq!(serve.hidden(), Vec::<String>::new());
        fs::remove_file(serve.path("x")).unwrap();
    }
}
