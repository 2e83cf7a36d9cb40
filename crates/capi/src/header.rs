//! Checks that `include/phoebus.h` and the code agree: functions and their types, members and their offsets, numbers.
//! The C compiler compares them.

use crate::failure::code;
use crate::report::Hop;
use crate::session::Stats;
use phoebus_proto::session::Code;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

const SOURCES: [&str; 8] = [
    include_str!("attempt.rs"),
    include_str!("context.rs"),
    include_str!("failure.rs"),
    include_str!("handshake.rs"),
    include_str!("listener.rs"),
    include_str!("options.rs"),
    include_str!("report.rs"),
    include_str!("session.rs"),
];

/// The exported functions of the code: name, arguments, result, in C.
fn functions() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for source in SOURCES {
        for text in source.split("\n    fn phoebus_").skip(1) {
            let (name, rest) = text.split_once('(').unwrap();
            let (arguments, rest) = rest.split_once(") -> ").unwrap();
            let end = [", or ", ",\n    or "].iter().filter_map(|end| rest.find(end)).min().unwrap();
            let result = &rest[..end];
            let types = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
            let types: Vec<_> = types.map(|argument| in_c(argument.split_once(": ").unwrap().1)).collect();
            let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
            found.push((format!("phoebus_{name}"), types, in_c(result)));
        }
    }
    found
}

fn in_c(rust: &str) -> String {
    let handles = [
        ("Attempt", "phoebus_attempt"),
        ("SessionOptions", "phoebus_options"),
        ("Context", "phoebus_context"),
        ("Failure", "phoebus_error"),
        ("Handshake", "phoebus_handshake"),
        ("Hop", "phoebus_hop"),
        ("Listener", "phoebus_listener"),
        ("Session", "phoebus_session"),
        ("Shown", "phoebus_report"),
        ("Stats", "phoebus_stats"),
    ];
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(pointed));
    }
    if let Some(pointed) = rust.strip_prefix("*const ") {
        return format!("{} const *", in_c(pointed));
    }
    match rust {
        "()" | "c_void" => "void".to_owned(),
        "c_int" => "int".to_owned(),
        "c_char" => "char".to_owned(),
        "u8" | "u16" | "u64" => format!("uint{}_t", &rust[1..]),
        "usize" => "size_t".to_owned(),
        "isize" => "ssize_t".to_owned(),
        "Option<Callback>" => "phoebus_callback *".to_owned(),
        name => {
            handles.iter().find(|(own, _)| *own == name).unwrap_or_else(|| panic!("what is {name} in C?")).1.to_owned()
        }
    }
}

#[test]
fn header_matches_the_code() {
    let mut text = "#include <phoebus.h>\n".to_owned();
    let functions = functions();
    assert!(functions.len() > 40, "{functions:?}");
    for (name, arguments, result) in &functions {
        writeln!(text, "_Static_assert(_Generic(&{name}, {result} (*)({arguments}): 1, default: 0), \"{name}\");")
            .unwrap();
    }
    let mut same = |expression: String, value: i64| {
        writeln!(text, "_Static_assert({expression} == {value}, \"{}\");", expression.replace('"', "")).unwrap();
    };
    macro_rules! members {
        ($type:ty, $name:literal: $($member:ident)*) => {
            $(same(format!("offsetof({}, {})", $name, stringify!($member)), offset_of!($type, $member) as i64);)*
            same(format!("sizeof({})", $name), size_of::<$type>() as i64);
        };
    }
    members!(Hop, "phoebus_hop": from to transport congestion_control security note rtt_us send_buffer receive_buffer rate
        streams warm);
    members!(Stats, "phoebus_stats": bytes_sent bytes_acked bytes_received bytes_retransmitted rtt_us rtt_var_us min_rtt_us
        delivery_rate pacing_rate send_buffer receive_buffer congestion_window unsent segments_lost congestion_control);
    for (name, value) in [
        ("OK", code::OK),
        ("E_ARGUMENT", code::ARGUMENT),
        ("E_STATE", code::STATE),
        ("E_NO_GATEWAY", code::NO_GATEWAY),
        ("E_NO_AGENT", code::NO_AGENT),
        ("E_SYSTEM", code::SYSTEM),
        ("E_FORKED", code::FORKED),
        ("E_PENDING", code::PENDING),
        ("E_BUG", code::BUG),
    ] {
        same(format!("PHOEBUS_{name}"), value.into());
    }
    for code in Code::ALL {
        // AuthRequired becomes AUTH_REQUIRED.
        let mut name = String::new();
        for c in format!("{code:?}").chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_uppercase());
        }
        same(format!("PHOEBUS_E_{name}"), code.number().into());
    }
    for (part, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        same(format!("PHOEBUS_VERSION_{part}"), value.parse().unwrap());
    }
    let room = tempfile::tempdir().unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let compiles = |compiler: &str, standard: &str, name: &str, text: &str| {
        let file = room.path().join(name);
        std::fs::write(&file, text).unwrap();
        let mut compiler = Command::new(compiler);
        compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", standard, "-I"]);
        let ended = compiler.arg(&include).arg(&file).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    compiles("cc", "-std=c11", "same.c", &text);
    // The headers also compile as older C, and as C++.
    let user = "#include <phoebus.h>\nint main(void) { return phoebus_version() == 0; }\n";
    compiles("cc", "-std=c99", "user.c", user);
    compiles("g++", "-std=c++11", "user.cc", user);
}
