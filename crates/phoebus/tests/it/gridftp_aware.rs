//! The XIO driver as an accepting end that takes part in the session (S5). The last gateway asks it for the session,
//! with GridFTP's own programs at both ends. Nothing else is taken for a session, nor a session for something else.

use crate::support;
use std::io::{Read, Write};
use std::net::TcpListener;
use support::gridftp::{Grid, local, said};
use support::path::Joined;

const BLOCKS: usize = 32;
const BYTES: u64 = 32 << 16;

const WHITELIST: &[&str] = &["-dc-whitelist", "tcp,gsi,phoebus"];

/// In all ways of so many streams.
fn both_ends_take_part(transport: &str, security: &str, streams: &[usize], more: &[&str]) {
    let grid = Grid::up(&Joined { transport, security, ..Joined::default() });
    let [here, there] = ["src", "dst"].map(|host| grid.secure(host, 2811, WHITELIST));
    let stack = grid.stack(";aware=1");
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let [get, put] = [(there.url("gsiftp", &from), local(&to)), (local(&from), there.url("gsiftp", &to))];
    let third = (there.url("gsiftp", &from), here.url("gsiftp", &to));
    for ((source, target), mode, [connects, accepts], sessions) in [
        (&get, &[][..], ["src", "dst"], 1),
        (&get, &["-p", "8"], ["dst", "src"], 8),
        (&put, &[], ["src", "dst"], 1),
        (&put, &["-p", "8"], ["src", "dst"], 8),
        (&third, &[], ["dst", "src"], 1),
        (&third, &["-p", "8"], ["dst", "src"], 8),
    ]
    .into_iter()
    .filter(|(.., sessions)| streams.contains(sessions))
    {
        let arguments = [&["-dcstack", &stack], mode, more, &[source, target]].concat();
        grid.counting(BYTES, || grid.copies(&arguments, &from, &to));
        grid.took_part(connects, accepts, sessions);
    }
    grid.until_quiet(&[&here, &there]);
}

#[test]
fn both_ends_take_part_over_tcp() {
    both_ends_take_part("tcp", "none", &[1, 8], &[]);
}

#[test]
fn both_ends_take_part_over_quic_with_protected_data() {
    both_ends_take_part("quic", "encrypt", &[8], &["-dcpriv"]);
}

/// Third-party copies whose ends have different settings. Returns the driver's reasons.
#[test]
fn end_that_takes_no_part_is_detected() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let sender = grid.secure("dst", 2811, WHITELIST);
    let receiver = grid.secure("src", 2811, WHITELIST);
    let (aware, plain) = (grid.stack(";aware=1"), grid.stack(""));
    let (from, to) = (grid.file("from", BLOCKS), grid.place("to"));
    let urls = [sender.url("gsiftp", &from), receiver.url("gsiftp", &to)];
    let fails = |source: &str, target: &str| {
        let arguments = ["-p", "2", "-src-dcstack", source, "-dst-dcstack", target, &urls[0], &urls[1]];
        let output = grid.copy(&arguments);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let copied = std::fs::metadata(&to).map_or(0, |file| file.len());
        assert_eq!(copied, 0, "bytes were copied all the same");
        grid.until_quiet(&[&sender, &receiver]);
        let reports = ["src", "dst"].into_iter().flat_map(|host| grid.reports(host));
        reports.map(|report| report["note"].as_str().unwrap().to_owned()).collect::<String>()
    };
    // An end that is asked for a session, and knows nothing of sessions. It tells its client, which may end the sender
    // before the sender has an answer.
    fails(&aware, &plain);
    // An end that expects to be asked for a session, and is not.
    let notes = fails(&plain, &aware);
    assert!(notes.contains(" did not ask for a session: "), "{notes}");
    let down = grid.path.address("pg2", 5999);
    let notes = fails(&format!("phoebus:gw={down};fallback=direct;aware=1"), &aware);
    assert!(notes.contains("is to take part in the session (aware), but the connection is direct"), "{notes}");
}

/// A program that sends a greeting to every client, also to one that asks for a session.
#[test]
fn stranger_opens_no_session() {
    let grid = Grid::up(&Joined { security: "none", ..Joined::default() });
    let place = grid.path.address("dst", 0);
    let listener = grid.path.testbed.run_in("dst", || TcpListener::bind(place)).unwrap().unwrap();
    let destination = listener.local_addr().unwrap().to_string();
    let greeter = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"220 a stranger\r\n").unwrap();
        // Closing with unread bytes would send a reset. How the connection ends is up to the gateway.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut client = grid.bounded("src", "globus-xioperf");
    let output = client.args(["-c", &destination, "-S", "-n", "2M", "-D", &grid.stack(";aware=1")]).output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    let reports = grid.reports("src");
    let note = reports[0]["note"].as_str().unwrap();
    assert!(note.contains(&format!("{destination} does not take part in sessions (aware): ")), "{note}");
    greeter.join().unwrap();
}
