//! Feeds any bytes to both ends of a control channel; what is read must print to what reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::gridftp::command::Command;
use phoebus_proto::gridftp::facts::Facts;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::Lines;
use phoebus_proto::gridftp::marker::{Perf, find_ranges};
use phoebus_proto::gridftp::options::RetrOptions;
use phoebus_proto::gridftp::reply::Replies;
use phoebus_proto::gridftp::{address, site};

fuzz_target!(|data: &[u8]| {
    let (mut lines, mut replies) = (Lines::default(), Replies::new());
    for chunk in data.chunks(7) {
        lines.push(chunk);
        replies.push(chunk);
    }
    while let Ok(Some(line)) = lines.take() {
        let _ = (site::Site::parse(&line), Facts::parse(&line));
        let Ok(command) = Command::parse(&line) else { continue };
        if let Command::Opts((_, options)) = &command {
            let _ = RetrOptions::parse(options);
        }
        let Ok(printed) = command.encode() else { continue };
        assert_eq!(Command::parse(&printed[..printed.len() - 2]), Ok(command));
    }
    while let Ok(Some(reply)) = replies.take() {
        let text = reply.text();
        let _ = (Features::parse(&reply).checksums(), Perf::parse(text.lines()), find_ranges(&text));
        let _ = (address::find_pasv(&text), address::find_epsv(&text), address::parse_stripes(&text));
        let mut again = Replies::new();
        again.push(&reply.encode());
        let again = again.take().expect("what was printed is an answer").expect("all of it");
        assert_eq!((again.code, again.lines.len()), (reply.code, reply.lines.len()));
    }
});
