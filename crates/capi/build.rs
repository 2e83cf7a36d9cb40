//! Gives the library a soname with the version parts that change with the interface: major, and before 1.0 also
//! minor.

fn main() {
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let interface = match version("MAJOR").as_str() {
        "0" => format!("0.{}", version("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libphoebus.so.{interface}");
    println!("cargo::rerun-if-changed=build.rs");
}
