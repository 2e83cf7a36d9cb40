//! Which files are loaded as drivers. A refusal names the file, the problem, and what was expected.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use phoebus_net::driver::Library;
use phoebus_net::wrapblock::Limits;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Workshop, load};

/// The reason why `file` is refused, without the file's name.
fn refusal(file: &Path) -> String {
    let error = Library::load(file).unwrap_err().to_string();
    let start = format!("cannot use {} as a driver: ", file.display());
    error.strip_prefix(&start).unwrap_or_else(|| panic!("\"{error}\" does not name the file")).to_owned()
}

/// A driver in which only the table is real; `table` overrides fields of it.
fn pretender(workshop: &Workshop, name: &str, table: &str) -> PathBuf {
    pretender_with(workshop, name, "", table)
}

/// As [`pretender`], with code before the entry point.
fn pretender_with(workshop: &Workshop, name: &str, before: &str, table: &str) -> PathBuf {
    let source = format!(
        "#include \"phoebus_driver.h\"\n{before}\n\
         static void *f(void) {{ return 0; }}\n\
         #define F (void *)f\n\
         #pragma GCC diagnostic ignored \"-Woverride-init\"\n\
         #pragma GCC diagnostic ignored \"-Wpedantic\"\n\
         const struct phoebus_driver *phoebus_driver_v1(void) {{\n\
           static const struct phoebus_option options[] = {{{{\"x\", \"an x\", 0, 0, 1, 0}}}};\n\
           (void)options;\n\
           static struct phoebus_driver driver = {{ .version = 1, .size = sizeof driver, .name = \"p\", .open = F,\n\
             .connect = F, .read = F, .write = F, .finish = F, .address = F, .close = F, .listen = F, .accept = F,\n\
             .listener_address = F, .close_listener = F, {table} }};\n\
           return &driver;\n\
         }}\n"
    );
    workshop.library(name, &source)
}

#[test]
fn loaded_driver_reports_title_and_options() {
    let workshop = Workshop::new();
    let library = load(&workshop.tcp());
    assert_eq!(library.title(), "blocking TCP");
    let options: Vec<_> = library.options().iter().map(|option| option.name.as_str()).collect();
    assert_eq!(options, ["send_buffer"]);

    let error = |name: &str, value: &str| {
        let options = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        library.transport("x", &options, Limits::default()).unwrap_err().to_string()
    };
    let message = error("nagle", "true");
    assert!(
        message.contains("tcp_driver.so as a driver: it has no option nagle; its options are: send_buffer"),
        "{message}"
    );
    let message = error("send_buffer", "2GiB");
    assert!(message.contains("\"2GiB\" is not a size such as 8MiB from 4096 to 1073741824 (kernel send"), "{message}");
}

const DRIVER: &str = "DRIVER_TO_LOAD";

#[test]
fn process_exits_without_running_driver_destructors() {
    let workshop = Workshop::new();
    let last = "#include <stdlib.h>\n__attribute__((destructor)) static void last(void) { abort(); }";
    let file = pretender_with(&workshop, "aborts.so", last, "");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "driver_files::loads_a_driver_and_ends", "--ignored"]).env(DRIVER, file);
    let output = command.output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

/// Started by [`process_exits_without_running_driver_destructors`].
#[test]
#[ignore = "is started by another test"]
fn loads_a_driver_and_ends() {
    load(Path::new(&std::env::var_os(DRIVER).unwrap()));
}

#[test]
fn file_writable_by_others_is_refused() {
    let workshop = Workshop::new();
    let file = workshop.tcp();
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    for mode in [0o757, 0o775] {
        set_mode(&file, mode);
        let expected = format!("it can be written by others (mode {mode:o}); take that away with chmod go-w");
        assert_eq!(refusal(&file), expected);
    }
    set_mode(&file, 0o755);
    set_mode(workshop.0.path(), 0o777);
    let why = refusal(&file);
    assert!(why.starts_with("the directory ") && why.contains("can be written by others (mode 777)"), "{why}");
    set_mode(workshop.0.path(), 0o700);
    Library::load(&file).unwrap();

    // A symbolic link is judged by its target.
    let link = workshop.0.path().join("link.so");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    Library::load(&link).unwrap();
    set_mode(&file, 0o777);
    assert!(refusal(&link).contains("it can be written by others"));
}

#[test]
fn file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a file away. Without root, test a missing file.
        return assert!(refusal(Path::new("/nonexistent/driver.so")).contains("no such file"));
    }
    let workshop = Workshop::new();
    let file = workshop.tcp();
    std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
    assert_eq!(refusal(&file), "it belongs to user 12345; only root and the user who runs this, 0, are trusted");
}

#[test]
fn file_that_is_no_library_for_this_machine_is_refused() {
    let workshop = Workshop::new();
    assert_eq!(
        refusal(Path::new("driver.so")),
        "its path must be absolute, so that it cannot mean another file elsewhere"
    );
    assert_eq!(refusal(Path::new("/nonexistent/driver.so")), "no such file or directory");
    assert_eq!(refusal(Path::new("/dev")), "it is not a regular file");

    let write = |name: &str, bytes: &[u8]| {
        let file = workshop.0.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        file
    };
    assert_eq!(refusal(&write("empty.so", b"")), "it is not a shared library (no ELF file)");
    assert_eq!(refusal(&write("text.so", &[b'x'; 100])), "it is not a shared library (no ELF file)");

    let good = std::fs::read(workshop.tcp()).unwrap();
    let changed = |name: &str, at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        refusal(&write(name, &bytes))
    };
    let why = changed("bits.so", 4, if cfg!(target_pointer_width = "64") { 1 } else { 2 });
    assert!(why.starts_with("it is for another kind of machine; a library for "), "{why}");
    // SPARC, on which Phoebus does not run.
    let why = changed("machine.so", if cfg!(target_endian = "little") { 18 } else { 19 }, 2);
    assert!(why.starts_with("it is for another kind of machine (ELF machine 2); a library for "), "{why}");
    let why = changed("program.so", if cfg!(target_endian = "little") { 16 } else { 17 }, 2);
    assert_eq!(why, "it is an ELF file but not a shared library");
    let why = refusal(&write("cut.so", &good[..good.len() / 2]));
    assert!(why.starts_with("it is cut short: it has "), "{why}");
    let why = refusal(&write("start.so", &good[..100]));
    assert!(why.starts_with("it is a damaged library: "), "{why}");
}

#[test]
fn library_without_a_valid_driver_table_is_refused() {
    let workshop = Workshop::new();
    let refused = |name: &str, table: &str| refusal(&pretender(&workshop, name, table));
    Library::load(&pretender(&workshop, "good", "")).unwrap();

    let why = refusal(&workshop.library("plain", "int x;\n"));
    assert_eq!(why, "it has no symbol phoebus_driver_v1; a driver for version 1 of phoebus_driver.h was expected");
    let why = refusal(
        &workshop.library("needy", "void missing(void); void f(void) { missing(); } void *p = (void *)missing;\n"),
    );
    assert!(why.starts_with("it does not load: ") && why.contains("missing"), "{why}");
    let nothing = "#include \"phoebus_driver.h\"\nconst struct phoebus_driver *phoebus_driver_v1(void) { return 0; }\n";
    assert_eq!(refusal(&workshop.library("null", nothing)), "its phoebus_driver_v1 returned no table");

    assert_eq!(refused("future", ".version = 2"), "it is a driver of version 2; version 1 was expected");
    let why = refused("short", ".size = 40");
    assert!(why.starts_with("its table has 40 bytes; version 1 has at least "), "{why}");
    for function in ["open", "connect", "read", "write", "finish", "address", "close", "listen", "accept"] {
        let why = refused(&format!("no_{function}"), &format!(".{function} = 0"));
        assert_eq!(why, format!("its function {function} is missing (NULL), which a driver must have"));
    }
    assert_eq!(refused("nameless", ".name = 0"), "it does not give its name (field name)");
    assert!(refused("half", ".abilities = 1").contains("and has no function shutdown"));
    assert!(refused("ends", ".abilities = 2").contains("without half-close"));
    assert!(refused("clever", ".abilities = 8").contains("its abilities are 0x8"));
    assert!(refused("listless", ".option_count = 3").contains("says that it has 3 options, and has no list"));
}

#[test]
fn library_is_started_once() {
    let workshop = Workshop::new();
    // `start` succeeds at the second attempt, and would fail at a third.
    let start = ".start = (void *)start";
    let before = "static int start(struct phoebus_error *e) { static int n; e->code = 5; return ++n != 2; }";
    let file = pretender_with(&workshop, "starter", before, start);
    assert_eq!(refusal(&file), "it cannot start: input/output error");
    Library::load(&file).unwrap();
    Library::load(&file).unwrap();
}

#[test]
fn header_compiles_as_c_and_cpp() {
    let workshop = Workshop::new();
    let source = workshop.0.path().join("header.c");
    std::fs::write(&source, "#include \"phoebus_driver.h\"\n").unwrap();
    workshop.compile("cc", &source, "header-c.o", &["-std=c99", "-pedantic", "-c"]);
    workshop.compile("g++", &source, "header-cpp.o", &["-x", "c++", "-std=c++11", "-pedantic", "-c"]);
}
