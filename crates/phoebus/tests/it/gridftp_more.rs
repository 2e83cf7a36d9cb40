//! Further features of GridFTP, directly and through two gateways over every transport between them: parts of files,
//! restarts, directories, checksums, stripes, with GSI and without. The same programs without the driver, by the
//! preload library.

use crate::support;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use support::gridftp::{Grid, Server, local, said};
use support::path::{HOSTS, Joined};
use support::wait_until;
use support::works::works;

const BLOCKS: usize = 32;
const BYTES: u64 = 32 << 16;

/// Files of the directory.
const FILES: usize = 2000;

const WHITELIST: [&str; 2] = ["-dc-whitelist", "tcp,gsi,phoebus"];

type Case = (&'static str, fn(&Course));

/// The tests of each course, one after the other on the same path.
const CASES: [Case; 7] = [
    ("a part of a file", a_part_of_a_file),
    ("a transfer goes on after its server was killed", a_transfer_goes_on_after_its_server_was_killed),
    ("a directory of many small files", a_directory_of_many_small_files),
    ("checksums are verified", checksums_are_verified),
    ("two stripes", two_stripes),
    ("xioperf", xioperf),
    ("the preload library carries data by their ports", the_preload_library_carries_data_by_their_ports),
];

#[test]
fn directly() {
    let course = Course::up(&Joined { security: "none", ..Joined::default() }, false);
    course.run();
    assert_eq!(course.grid.counted(), [0, 0], "the gateways carried something");
}

#[test]
fn over_tcp() {
    Course::up(&Joined { security: "none", ..Joined::default() }, true).run();
    let features = "part resume tree sum stripes gateways";
    works("globus-url-copy", "globus-gridftp-server", "certificate", features);
}

#[test]
fn over_quic() {
    Course::up(&Joined { transport: "quic", ..Joined::default() }, true).run();
}

#[test]
fn over_udt() {
    Course::up(&Joined { transport: "udt", ..Joined::default() }, true).run();
}

/// A path with servers on its ends, and the route of data.
struct Course {
    /// On `dst`, with GSI.
    secure: Server,
    /// On `dst`, without GSI. Its data to clients without a stack takes the same route.
    sender: Server,
    /// On `src`, without GSI and without the driver.
    receiver: Server,
    /// Whether data goes through the gateways.
    through: bool,
    grid: Grid,
}

impl Course {
    fn up(joined: &Joined, through: bool) -> Self {
        let grid = Grid::up(&Joined { wan_rtt: Duration::from_millis(10), ..*joined });
        let secure = grid.secure("dst", 2811, &WHITELIST);
        let sender = grid.anonymous("dst", 2821, &texts(&sending(&grid, through)));
        let receiver = grid.anonymous("src", 2821, &[]);
        Self { secure, sender, receiver, through, grid }
    }

    fn run(&self) {
        for (name, case) in CASES {
            eprintln!("{name}");
            case(self);
            self.quiet(&[]);
        }
    }

    /// Waits until no GridFTP program is left on the ends but these servers and the course's own.
    fn quiet(&self, more: &[&Server]) {
        self.grid.until_quiet(&[&[&self.secure, &self.sender, &self.receiver], more].concat());
    }

    /// Does `work`. Asserts that at least so many bytes went through each gateway, or none if the route is direct.
    #[track_caller]
    fn counting(&self, bytes: u64, work: impl FnOnce()) {
        self.grid.counting(if self.through { bytes } else { 0 }, work);
    }

    /// A client's options for this route.
    fn options(&self) -> Vec<String> {
        if self.through { vec!["-dcstack".to_owned(), self.grid.stack("")] } else { Vec::new() }
    }

    /// The addresses of a file on `dst`, with GSI and without.
    fn urls(&self, file: &FilePath) -> [String; 2] {
        [self.secure.url("gsiftp", file), self.sender.url("ftp", file)]
    }

    /// A file of so many blocks, and the destination of its copy.
    fn files(&self, blocks: usize) -> (PathBuf, PathBuf) {
        let to = self.grid.place("to");
        let _ = fs::remove_file(&to);
        (self.grid.file("from", blocks), to)
    }

    /// The path, for programs that have no stack.
    fn path(&self) -> String {
        HOSTS.map(|host| self.grid.path.address(host, 5006).to_string()).join(",")
    }
}

/// The options that make a server send over this route, whatever its clients request.
fn sending(grid: &Grid, through: bool) -> Vec<String> {
    let default = ["-dc-default".to_owned(), format!("tcp,{},gsi", grid.stack(""))];
    WHITELIST.map(str::to_owned).into_iter().chain(default.into_iter().filter(|_| through)).collect()
}

fn texts(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

fn a_part_of_a_file(course: &Course) {
    let (from, to) = course.files(BLOCKS);
    let options = course.options();
    let [secure, anonymous] = course.urls(&from);
    // `-dcstack` has no effect without GSI. There, the sending server has the driver by its default.
    for (url, mode) in [(&secure, &[][..]), (&secure, &["-p", "8"]), (&anonymous, &["-p", "8"])] {
        let _ = fs::remove_file(&to);
        let part = ["-off", "100000", "-len", "1000000", url, &local(&to)];
        course.counting(1_000_000, || {
            let output = course.grid.copy(&[&texts(&options), mode, &part].concat());
            assert!(output.status.success(), "{}", said(&output));
        });
        let (whole, got) = (fs::read(&from).unwrap(), fs::read(&to).unwrap());
        assert_eq!(got.len(), 1_100_000);
        assert!(got[100_000..] == whole[100_000..1_100_000], "the part differs");
    }
}

fn a_transfer_goes_on_after_its_server_was_killed(course: &Course) {
    // Some seconds at the path's rate, so that there is something to interrupt.
    let (from, to) = course.files(512);
    let size = from.metadata().unwrap().len();
    course.counting(size, || {
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| {
                let urls = [course.sender.url("ftp", &from), course.receiver.url("ftp", &to)];
                course.grid.copy(&["-p", "2", "-rst", "-rst-retries", "50", "-rst-interval", "1", &urls[0], &urls[1]])
            });
            let arrived = || fs::metadata(&to).map_or(0, |file| file.len());
            wait_until(|| arrived() > 0 || copy.is_finished(), || "nothing arrives".to_owned());
            let killed = course.receiver.kill_children();
            let output = copy.join().unwrap();
            assert!(killed > 0, "nothing was there to be killed: {}", said(&output));
            assert!(output.status.success(), "{}", said(&output));
        });
    });
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "the copy differs");
}

fn a_directory_of_many_small_files(course: &Course) {
    let (from, to) = (course.grid.place("tree"), course.grid.place("copy"));
    let mut bytes = 0;
    for number in 0..FILES {
        let dir = from.join(format!("{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        let content = format!("{number}\n").repeat(1 + number % 50);
        bytes += content.len() as u64;
        fs::write(dir.join(number.to_string()), content).unwrap();
    }
    let dir = |path: &FilePath| path.join("");
    course.counting(bytes, || {
        let urls = [course.sender.url("ftp", &dir(&from)), course.receiver.url("ftp", &dir(&to))];
        let output = course.grid.copy(&["-r", "-cd", "-cc", "4", "-pp", "-fast", &urls[0], &urls[1]]);
        assert!(output.status.success(), "{}", said(&output));
    });
    for number in 0..FILES {
        let name = format!("{}/{number}", number % 7);
        assert!(fs::read(from.join(&name)).unwrap() == fs::read(to.join(&name)).unwrap(), "{name} differs");
    }
}

fn checksums_are_verified(course: &Course) {
    let (from, to) = course.files(BLOCKS);
    let options = course.options();
    let [get, anonymous] = course.urls(&from);
    let put = course.secure.url("gsiftp", &to);
    for (source, target) in [(&get, &local(&to)), (&anonymous, &local(&to)), (&local(&from), &put)] {
        let verified = ["-verify-checksum", "-checksum-alg", "SHA256", "-p", "4", source, target];
        course.counting(BYTES, || course.grid.copies(&[&texts(&options)[..], &verified].concat(), &from, &to));
    }
}

fn two_stripes(course: &Course) {
    let (grid, own) = (&course.grid, sending(&course.grid, course.through));
    // A server with two data nodes on each end. Those that send have the driver.
    let striped = |host, own: &[String]| {
        let nodes = [2832, 2833].map(|port| grid.anonymous(host, port, &[&["-dn"][..], &texts(own)].concat()));
        let remote = nodes.iter().map(|node| format!("{host}:{}", node.port)).collect::<Vec<_>>().join(",");
        let front = grid.anonymous(host, 2831, &["-r", &remote, "-sbs", "65536"]);
        (front, nodes)
    };
    let (there, here) = (striped("dst", &own), striped("src", &[]));
    let (from, to) = course.files(BLOCKS);
    let urls = [there.0.url("ftp", &from), here.0.url("ftp", &to)];
    grid.reports("dst");
    course.counting(BYTES, || grid.copies(&["-stripe", "-p", "2", &urls[0], &urls[1]], &from, &to));
    let reports = grid.reports("dst");
    let mut nodes: Vec<_> = reports.iter().map(|report| report["pid"].as_u64().unwrap()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let expected = if course.through { (2, 4) } else { (0, 0) };
    assert_eq!((nodes.len(), reports.len()), expected, "two connections of each node: {reports:#?}");
    for (front, host) in [(&there.0, "dst"), (&here.0, "src")] {
        // It used both data nodes.
        grid.until_logged(host, front.port, "STRIPES=2 ");
    }
    course.quiet(&[&there.0, &there.1[0], &there.1[1], &here.0, &here.1[0], &here.1[1]]);
}

/// A program that is not part of GridFTP, with a TCP driver of its own and blocking calls.
fn xioperf(course: &Course) {
    let grid = &course.grid;
    let mut server = grid.bounded("dst", "globus-xioperf");
    let mut server = server.args(["-s", "-R", "-p", "7000", "-D", "tcp"]).stdout(Stdio::null()).spawn().unwrap();
    grid.until_listening("dst", 7000);
    let destination = grid.path.address("dst", 7000).to_string();
    for host in ["src", "dst"] {
        grid.reports(host);
    }
    course.counting(BYTES, || {
        let mut client = grid.bounded("src", "globus-xioperf");
        let driver = if course.through { "phoebus" } else { "tcp" };
        client.args(["-c", &destination, "-S", "-n", "2M", "-D", driver]).env("PHOEBUS_PATH", course.path());
        let output = client.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    });
    assert!(server.wait().unwrap().success());
    grid.entered_at("src", usize::from(course.through));
}

/// The preload library instead of the driver: the control connection goes direct, data goes by its ports. (In the
/// direct course, the same transfers without it.)
fn the_preload_library_carries_data_by_their_ports(course: &Course) {
    let grid = &course.grid;
    let server = grid.anonymous("dst", 2841, &["-port-range", "50000,50999"]);
    let (from, to) = course.files(BLOCKS);
    let path = course.path();
    let only = format!("{}:50000-50999", grid.path.address("dst", 0).ip());
    let ways = [(&[][..], server.url("ftp", &from), local(&to)), (&["-p", "8"], local(&from), server.url("ftp", &to))];
    for (mode, source, target) in ways {
        let _ = fs::remove_file(&to);
        let arguments = [mode, &[&source, &target]].concat();
        grid.reports("src");
        course.counting(BYTES, || {
            let output = if course.through {
                grid.copy_by("phoebus", &["run", "--path", &path, "--only", &only, "--"], &arguments)
            } else {
                grid.copy(&arguments)
            };
            assert!(output.status.success(), "{}", said(&output));
        });
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "the copy differs");
        let (reports, streams) = (grid.reports("src"), if mode.is_empty() { 1 } else { 8 });
        assert_eq!(reports.len(), if course.through { streams } else { 0 }, "{reports:#?}");
    }
    course.quiet(&[&server]);
}
