//! SOCKS5 and HTTP CONNECT from anyone: nothing panics, no byte is read beyond the request, and how the bytes are parted changes
//! nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::entry::{Access, Entry, Login, Proxy, Step};

/// Reads `input` in parts of at most `part` bytes. Returns how many bytes were left, and the destination.
fn read(entry: Entry, access: Access, mut input: &[u8], part: usize) -> (usize, Option<String>, Vec<u8>) {
    let mut proxy = Proxy::new(entry, "pg1", access).expect("it is one of the two");
    let mut out = Vec::new();
    loop {
        out.extend_from_slice(proxy.outgoing());
        proxy.sent(proxy.outgoing().len());
        match proxy.step() {
            Step::Read if input.is_empty() => return (0, None, out),
            Step::Read => {
                let space = proxy.space();
                let n = space.len().min(input.len()).min(part);
                assert!(n > 0);
                space[..n].copy_from_slice(&input[..n]);
                proxy.received(n);
                input = &input[n..];
            }
            Step::Login { user, password } => {
                let login = if user == password { Login::Right } else { Login::Wrong };
                proxy.login(login);
            }
            Step::Open(to) => return (input.len(), Some(to.to_string()), out),
            Step::Close(_) => return (input.len(), None, out),
        }
    }
}

fuzz_target!(|input: (bool, u8, u8, &[u8])| {
    let (is_http, access, part, bytes) = input;
    let entry = if is_http { Entry::Http } else { Entry::Socks };
    let access = [Access::Open, Access::Password, Access::Closed][usize::from(access % 3)];
    let whole = read(entry, access, bytes, usize::MAX);
    assert_eq!(whole, read(entry, access, bytes, usize::from(part).max(1)));
});
