//! Headers against the examples and rules of proxy-protocol.txt, whole and in parts.

use super::*;

/// Reads `bytes` in parts of `part`. Returns what the header says, and how many bytes it has taken.
fn read(bytes: &[u8], part: usize) -> Result<Option<(Origin, usize)>, HeaderError> {
    let (mut reader, mut taken) = (HeaderReader::default(), 0);
    loop {
        let space = reader.space();
        let n = space.len().min(part).min(bytes.len() - taken);
        if n == 0 {
            return Ok(None);
        }
        space[..n].copy_from_slice(&bytes[taken..taken + n]);
        taken += n;
        if let Some(origin) = reader.received(n)? {
            return Ok(Some((origin, taken)));
        }
    }
}

/// The same, however the bytes are parted.
#[track_caller]
fn says(bytes: &[u8]) -> Result<Option<(Origin, usize)>, HeaderError> {
    let whole = read(bytes, usize::MAX);
    for part in 1..20 {
        assert_eq!(read(bytes, part), whole);
    }
    whole
}

fn ends(client: &str, to: &str) -> Ends {
    Ends { client: client.parse().unwrap(), to: to.parse().unwrap() }
}

fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &len, body].concat()
}

const V4: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 2, 0x13, 0x88, 0, 80];

#[test]
fn written_header_is_read_and_no_byte_more() {
    for (client, to) in [("192.0.2.1:5000", "198.51.100.2:80"), ("[2001:db8::1]:5000", "[2001:db8::2]:80")] {
        let ends = ends(client, to);
        let value = Tlv { kind: tlv::UNIQUE_ID, value: &[7; 16] };
        let mut bytes = encode(Some(ends), &[value]).unwrap();
        let whole = bytes.len();
        bytes.extend_from_slice(b"and more");
        assert_eq!(says(&bytes), Ok(Some((Origin::Client(ends), whole))));
        assert_eq!(says(&bytes[..whole - 1]), Ok(None));
    }
    let expected = header(0x21, 0x11, &[V4, &[2, 0, 1, b'a', 0xe0, 0, 0]].concat());
    let values = [Tlv { kind: tlv::AUTHORITY, value: b"a" }, Tlv { kind: tlv::USER, value: b"" }];
    assert_eq!(encode(Some(ends("192.0.2.1:5000", "198.51.100.2:80")), &values), Ok(expected));
}

#[test]
fn ends_of_different_families_are_mapped() {
    let mixed = encode(Some(ends("192.0.2.1:5000", "[2001:db8::2]:80")), &[]).unwrap();
    assert_eq!((mixed.len(), mixed[13]), (16 + 36, 0x21));
    assert_eq!(mixed[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    // Whoever reads it has an IPv4 address again.
    let Ok(Some((Origin::Client(read), _))) = says(&mixed) else { panic!("{mixed:?}") };
    assert_eq!(read, ends("192.0.2.1:5000", "[2001:db8::2]:80"));
    let both = encode(Some(ends("[::ffff:192.0.2.1]:5000", "198.51.100.2:80")), &[]).unwrap();
    assert_eq!(both, header(0x21, 0x11, V4));
    let unknown = encode(None, &[]).unwrap();
    assert_eq!(unknown, header(0x21, 0, &[]));
    assert_eq!(says(&unknown), Ok(Some((Origin::Unknown, 16))));
}

#[test]
fn what_does_not_fit_is_not_written() {
    let ends = Some(ends("192.0.2.1:1", "192.0.2.2:2"));
    assert!(encode(ends, &[Tlv { kind: tlv::UNIQUE_ID, value: &[0; 129] }]).is_err());
    assert_eq!(encode(ends, &[Tlv { kind: tlv::USER, value: &[0; HEADER_MAX] }]), Err(HeaderError::TooLong));
    assert_eq!(encode(ends, &[Tlv { kind: tlv::USER, value: &[0; 70000] }]), Err(HeaderError::TooLong));
}

#[test]
fn relays_may_speak_for_themselves() {
    assert_eq!(says(&header(0x20, 0x00, &[])), Ok(Some((Origin::Relay, 16))));
    // What a LOCAL header has is skipped, whatever it is.
    assert_eq!(says(&header(0x20, 0xff, &[9; 40])), Ok(Some((Origin::Relay, 56))));
}

#[test]
fn clients_that_are_not_of_ip_are_unknown() {
    for (family, len) in [(0x00, 0), (0x00, 30), (0x31, 216), (0x12, 12), (0x22, 36), (0x10, 12)] {
        assert_eq!(says(&header(0x21, family, &vec![0; len])), Ok(Some((Origin::Unknown, 16 + len))), "{family:x}");
    }
}

#[test]
fn malformed_headers_do_not_count() {
    let malformed = [
        header(0x31, 0x11, V4),
        header(0x22, 0x11, V4),
        header(0x21, 0x41, V4),
        header(0x21, 0x13, V4),
        header(0x21, 0x11, &V4[..11]),
        header(0x21, 0x21, V4),
        header(0x21, 0x11, &[V4, &[5]].concat()),
        header(0x21, 0x11, &[V4, &[5, 0, 2, 1]].concat()),
        header(0x21, 0x11, &[V4, &[5, 0, 129], &[0; 129]].concat()),
        header(0x21, 0x11, &[V4, &[3, 0, 4, 0, 0, 0, 0]].concat()),
        header(0x21, 0x11, &[V4, &[3, 0, 2, 0, 0]].concat()),
    ];
    for bytes in malformed {
        assert!(matches!(says(&bytes), Err(HeaderError::Malformed(_))), "{bytes:?}");
    }
    assert_eq!(says(&header(0x21, 0x11, &[V4, &[4, 0xff, 0xed], &[0; 0xffed]].concat())), Err(HeaderError::TooLong));
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\r\n\r\n\0\r\nQUIX\n", b"\x16\x03\x01", b"PROXX", b"\0"] {
        assert_eq!(says(bytes), Err(HeaderError::NoHeader), "{bytes:?}");
    }
}

#[test]
fn checksum_is_verified() {
    let mut bytes = header(0x21, 0x11, &[V4, &[3, 0, 4, 0, 0, 0, 0, 4, 0, 1, 9]].concat());
    let crc = crc32c::crc32c(&bytes);
    bytes[31..35].copy_from_slice(&crc.to_be_bytes());
    assert!(matches!(says(&bytes), Ok(Some((Origin::Client(_), 39)))));
    bytes[16] ^= 1;
    assert!(says(&bytes).is_err());
}

#[test]
fn lines_of_version_1_are_read() {
    let line = b"PROXY TCP4 192.0.2.1 198.51.100.2 5000 80\r\nGET";
    let expected = Origin::Client(ends("192.0.2.1:5000", "198.51.100.2:80"));
    assert_eq!(says(line), Ok(Some((expected, line.len() - 3))));
    let longest =
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert!(matches!(says(longest), Ok(Some((Origin::Client(_), _)))));
    assert_eq!(says(b"PROXY UNKNOWN\r\n"), Ok(Some((Origin::Unknown, 15))));
    assert_eq!(says(b"PROXY UNKNOWN and what not\r\n"), Ok(Some((Origin::Unknown, 28))));
    for bad in [
        &b"PROXY TCP4 192.0.2.1 198.51.100.2 5000\r\n"[..],
        b"PROXY TCP4 192.0.2.1 198.51.100.2 5000 80 1\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2  5000 80\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 +5000 80\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 05000 80\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 80\r\n",
        b"PROXY TCP4 2001:db8::1 198.51.100.2 5000 80\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 5000 80\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.2 5000 80\r\n",
        b"PROXY TCP4 \xff\r\n\r\n\r\n\r\n",
    ] {
        assert!(matches!(says(bad), Err(HeaderError::Malformed(_))), "{}", bad.escape_ascii());
    }
    assert_eq!(says(&[&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat()), Err(HeaderError::EndlessLine));
}
