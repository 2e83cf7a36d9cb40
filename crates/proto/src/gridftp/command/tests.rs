use super::*;
use crate::gridftp::site::Buffer;
use proptest::prelude::*;

/// Commands of GCT's client and others, in the form in which they are printed.
const LINES: &[&str] = &[
    "USER anonymous",
    "PASS x@y",
    "AUTH GSSAPI",
    "ADAT YWJj",
    "PBSZ 1048576",
    "PROT P",
    "DCAU N",
    "DCAU S /O=Grid/CN=Lab User",
    "OPTS RETR Parallelism=8,8,8;",
    "OPTS UTF8 ON",
    "TYPE I",
    "MODE E",
    "STRU F",
    "PASV",
    "EPSV",
    "EPSV ALL",
    "EPSV 2",
    "SPAS",
    "PORT 127,0,0,1,213,133",
    "EPRT |2|::1|5282|",
    "SPOR 127,0,0,1,184,49 127,0,0,1,129,159",
    "REST 4096",
    "REST 0-502792192,503054336-503578624",
    "ALLO 52428800",
    "RETR /a b/ c",
    "STOR  /leading blank",
    "ERET P 1000000 5000000 /data/50m.bin",
    "ERET gzip=\"level=9 fast\" /data/50m.bin",
    "ESTO A 0 /dev/null",
    "CKSM ADLER32 0 -1 /a b",
    "CKSM MD5 10 20 /a",
    "SCKS MD5 00ff",
    "MFMT 20261121200000 /a b",
    "MLST",
    "MLSD /x",
    "MLSC /x",
    "STAT",
    "SIZE /x",
    "SBUF 1048576",
    "SITE HELP",
    "SITE SETNETSTACK tcp,udt:rate=1,gsi",
    "SITE RETRBUFSIZE 4194304",
    "SITE CHMOD 0644 /a b",
    "SITE UTIME 20261121200000 /a",
    "SITE SYMLINKFROM /a",
    "SITE RDEL /a",
    "SITE TRNC 5 /a",
    "SITE CLIENTINFO scheme=ftp;appname=\"globus-url-copy\";",
    "SITE DRAFTS",
    "SITE SYNC",
    "SITE DRAFTS /a b",
    "SITE WHOAMI",
    "SITE STORATTR x=1;",
    "QUIT",
];

#[test]
fn commands_of_clients_parse_and_print_unchanged() {
    for line in LINES {
        let command = Command::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(String::from_utf8(command.encode().unwrap()).unwrap(), format!("{line}\r\n"));
        let small = line
            .split_once(' ')
            .map_or(line.to_ascii_lowercase(), |(verb, rest)| format!("{} {rest}", verb.to_ascii_lowercase()));
        assert_eq!(Command::parse(small.as_bytes()), Ok(command));
    }
    let says = |line: &str| Command::parse(line.as_bytes()).unwrap();
    assert_eq!(says("ALLO 5 R 10"), Command::Allo(5));
    assert_eq!(says("SITE SETDCSTACK udt"), Command::Site(Site::NetStack("udt".into())));
    assert_eq!(says("SITE sbufsz 7"), Command::Site(Site::Buffer(Buffer::Store, 7)));
    assert_eq!(says("OPTS retr x=1"), Command::Opts(("RETR".into(), "x=1".into())));
    assert_eq!(Command::parse(b"RETR \xff\xfe"), Ok(Command::Retr(b"\xff\xfe".to_vec())));
}

#[test]
fn unknown_commands_and_invalid_parameters_have_different_codes() {
    for line in ["", "XYZZY", " RETR x", "RETR\tx", "ABUF 1"] {
        let error = Command::parse(line.as_bytes()).unwrap_err();
        assert_eq!((error.code(), matches!(error, CommandError::Unknown(_))), (500, true), "{line}");
    }
    for line in [
        "USER",
        "RETR",
        "RETR ",
        "PBSZ x",
        "PROT X",
        "DCAU S",
        "DCAU",
        "MODE",
        "PORT 1,2,3",
        "EPRT x",
        "SPOR",
        "REST",
        "REST 5-4",
        "ALLO -1",
        "ERET P 1 /x",
        "ERET P 1 2",
        "ESTO A x /y",
        "ESTO m=\"x /y",
        "CKSM MD5 0 /x",
        "CKSM MD5 0 -2 /x",
        "MFMT now /x",
        "OPTS",
        "EPSV 3",
        "SITE",
        "SITE CHMOD 9 /x",
        "SITE CHMOD 644",
        "SITE SBUF x",
        "SITE TRNC /x",
    ] {
        let error = Command::parse(line.as_bytes()).unwrap_err();
        assert_eq!(error.code(), 501, "{line}");
        assert!(error.to_string().ends_with("was expected"), "{error}");
    }
}

#[test]
fn names_cannot_inject_commands_and_passwords_are_not_printed() {
    let lines = Command::Retr(b"a\r\nDELE b".to_vec()).encode();
    assert_eq!(lines, Err(CommandError::Line("RETR".into())));
    let password = Command::parse(b"PASS hunter2").unwrap();
    assert_eq!(format!("{password:?}"), "Pass((secret))");
}

proptest! {
    #[test]
    fn parsing_never_panics_and_parsed_commands_print_back(
        verb in proptest::sample::select(LINES).prop_map(|line| line.split(' ').next().unwrap().to_owned()),
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let line = [verb.as_bytes(), b" ", &rest].concat();
        if let Ok(command) = Command::parse(&line)
            && let Ok(again) = command.encode()
        {
            prop_assert_eq!(Command::parse(&again[..again.len() - 2]), Ok(command));
        }
    }

    #[test]
    fn parsing_nearly_valid_lines_never_panics(line in proptest::sample::select(LINES), at: proptest::sample::Index, byte: u8) {
        let mut line = line.as_bytes().to_vec();
        let at = at.index(line.len());
        line[at] = byte;
        if let Ok(command) = Command::parse(&line)
            && let Ok(again) = command.encode()
        {
            prop_assert_eq!(Command::parse(&again[..again.len() - 2]), Ok(command));
        }
    }
}
