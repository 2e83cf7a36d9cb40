//! How settings are read, and the errors for unusable ones.

use super::*;
use proptest::prelude::*;

const ETC: &str = ADMINISTRATOR_FILE;

fn load(environment: &[(&str, &str)], files: &[File]) -> Result<Settings, SettingsError> {
    let lookup = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Settings::load(lookup, files)
}

fn path(settings: &Settings) -> Vec<String> {
    settings.path.iter().map(ToString::to_string).collect()
}

fn file(text: &str) -> File<'_> {
    File { name: ETC, text }
}

#[test]
fn two_variables_suffice() {
    let settings = load(&[("PHOEBUS_GW", "pg1.example/5007"), ("HOME", "/home/ada")], &[]).unwrap();
    assert_eq!(path(&settings), ["pg1.example:5007"]);
    assert_eq!(settings.congestion_control.as_deref(), Some("bbr"));
    assert_eq!(settings.cache, Some(PathBuf::from("/home/ada/.cache/phoebus/bypass")));
    assert!(settings.selects("10.0.0.1:80".parse().unwrap(), [].into_iter()));
    assert!(!Settings::default().selects("10.0.0.1:80".parse().unwrap(), [].into_iter()));
}

#[test]
fn reads_every_setting() {
    let text = "# comment\n\n PHOEBUS_GW = pg1 \nPHOEBUS_PATH=pg2,pg3/1\nPHOEBUS_ONLY=10.0.0.0/8\nPHOEBUS_EXCEPT=*:22\n\
                PHOEBUS_USER=ada@example.org\nPHOEBUS_DISABLE=no\nPHOEBUS_CC=system\nPHOEBUS_BYPASS_RTT=2ms\n\
                PHOEBUS_FALLBACK=on\nPHOEBUS_REPORT=/tmp/r\nPHOEBUS_VERBOSE=1\nPHOEBUS_CACHE=/tmp/c\n\
                PHOEBUS_FIRST_HOP=udt/5007\nPHOEBUS_CA=/etc/ca.pem\nPHOEBUS_CERT=/home/ada/c.pem\n\
                PHOEBUS_KEY=/home/ada/k.pem\nPHOEBUS_AGENT_IDLE=30s\n";
    let expected = Settings {
        path: Endpoint::parse_path("pg2/5006,pg3/1").unwrap(),
        only: Some("10.0.0.0/8".parse().unwrap()),
        except: Some("*:22".parse().unwrap()),
        user: Some("ada@example.org".into()),
        disabled: false,
        congestion_control: None,
        bypass_rtt: Duration::from_millis(2),
        fallback: true,
        report: Some("/tmp/r".into()),
        verbose: true,
        cache: Some("/tmp/c".into()),
        first_hop: Some("udt/5007".parse().unwrap()),
        authorities: Some("/etc/ca.pem".into()),
        certificate: Some("/home/ada/c.pem".into()),
        proxy: None,
        key: Some("/home/ada/k.pem".into()),
        bandwidth: None,
        agent_idle: Duration::from_secs(30),
    };
    assert_eq!(load(&[], &[file(text)]).unwrap(), expected);
}

#[test]
fn bandwidth_needs_a_gateway() {
    let with =
        |value: &str| load(&[("PHOEBUS_GW", "pg1"), ("PHOEBUS_BANDWIDTH", value)], &[file("PHOEBUS_BYPASS_RTT=2ms")]);
    let settings = with("100mbit").unwrap();
    assert_eq!((settings.bandwidth, settings.bypass_rtt), (Some(BitRate(100_000_000)), Duration::ZERO));
    for (value, expected) in [("0mbit", "a bandwidth of 0 lets nothing through"), ("fast", "a rate such as 64kbit")] {
        let error = with(value).unwrap_err().to_string();
        assert!(error.starts_with("environment: PHOEBUS_BANDWIDTH: ") && error.contains(expected), "{error}");
    }
    let both = [("PHOEBUS_BANDWIDTH", "1gbit"), ("PHOEBUS_FALLBACK", "1")];
    let error = load(&both, &[]).unwrap_err().to_string();
    assert!(error.contains("PHOEBUS_BANDWIDTH") && error.contains("PHOEBUS_FALLBACK"), "{error}");
}

#[test]
fn environment_precedes_files_of_user_and_administrator() {
    let user = File { name: "/home/ada/.config/phoebus/client.conf", text: "PHOEBUS_GW=user\nPHOEBUS_CC=cubic" };
    let both = [file("PHOEBUS_PATH=a,b\nPHOEBUS_CC=reno\nPHOEBUS_VERBOSE=1"), user];
    let settings = load(&[], &both).unwrap();
    assert_eq!((path(&settings), settings.verbose), (vec!["user:5006".to_owned()], true));
    assert_eq!(settings.congestion_control.as_deref(), Some("cubic"));
    let settings = load(&[("PHOEBUS_PATH", "x,y"), ("PHOEBUS_GW", "z"), ("PHOEBUS_CC", " ")], &both).unwrap();
    assert_eq!(path(&settings), ["x:5006", "y:5006"]);
    assert_eq!(settings.congestion_control.as_deref(), Some("cubic"));
    assert_eq!(path(&load(&[("PHOEBUS_GW", "z")], &both).unwrap()), ["z:5006"]);
}

#[test]
fn switched_off_means_off() {
    let settings = load(&[("PHOEBUS_DISABLE", "1"), ("PHOEBUS_GW", "a b")], &[file("nonsense")]).unwrap();
    assert!(settings.disabled && !settings.selects("10.0.0.1:80".parse().unwrap(), [].into_iter()));
    let settings = load(&[("PHOEBUS_DISABLE", "0"), ("PHOEBUS_GW", "a")], &[file("PHOEBUS_DISABLE=1")]).unwrap();
    assert!(!settings.disabled);
}

#[test]
fn selects_only_and_except() {
    let with = |only: &str, except: &str| {
        load(&[("PHOEBUS_GW", "g"), ("PHOEBUS_ONLY", only), ("PHOEBUS_EXCEPT", except)], &[]).unwrap()
    };
    let selects = |s: &Settings, addr: &str| s.selects(addr.parse().unwrap(), ["host.example"].into_iter());
    let settings = with("host.example,10.0.0.0/8", "*:22");
    assert!(selects(&settings, "192.0.2.1:80") && !selects(&settings, "192.0.2.1:22"));
    for own in ["127.0.0.1:80", "0.0.0.0:80", "[::1]:80", "[fe80::1]:80", "169.254.0.1:80", "[::ffff:127.0.0.1]:80"] {
        assert!(!selects(&with("", ""), own) && !selects(&with("*,host.example", ""), own), "{own}");
        assert!(selects(&with("0.0.0.0/0,::/0", ""), own), "{own}");
    }
}

#[test]
fn says_where_and_what_was_expected() {
    type Case = (&'static [(&'static str, &'static str)], &'static str, &'static str);
    let cases: [Case; 12] = [
        (&[("PHOEBUS_PATH", "pg1/x")], "", "environment: PHOEBUS_PATH: \"pg1/x\" is not an endpoint with a port"),
        (
            &[("PHOEBUS_GW", "a,b")],
            "",
            "environment: PHOEBUS_GW: \"a,b\" is not one gateway; a path of several is --path (PHOEBUS_PATH)",
        ),
        (&[("PHOEBUS_DISABLE", "maybe")], "", "environment: PHOEBUS_DISABLE: \"maybe\" is not 1 or 0"),
        (&[("PHOEBUS_ONLY", "10/8")], "", "environment: PHOEBUS_ONLY: \"10/8\" is not a destination such as"),
        (&[], "\nPHOEBUS_GATE=x", "/etc/phoebus/client.conf, line 2: \"PHOEBUS_GATE\" is no setting; expected one"),
        (&[], "#\nPHOEBUS_BYPASS_RTT=5", "/etc/phoebus/client.conf, line 2: PHOEBUS_BYPASS_RTT: \"5\" is not a dur"),
        (&[], "PHOEBUS_GW", "/etc/phoebus/client.conf, line 1: \"PHOEBUS_GW\" is not a setting such as"),
        (&[], "PHOEBUS_GW=", "/etc/phoebus/client.conf, line 1: PHOEBUS_GW has no value"),
        (&[], "PHOEBUS_GW=a\nPHOEBUS_GW=b", "/etc/phoebus/client.conf, line 2: PHOEBUS_GW was set on line 1 already"),
        (&[], "PHOEBUS_USER=ada", "/etc/phoebus/client.conf, line 1: PHOEBUS_USER: \"ada\" is not an e-mail address"),
        (&[], "PHOEBUS_CC=b b", "/etc/phoebus/client.conf, line 1: PHOEBUS_CC: \"b b\" is not a congestion control"),
        (&[], "PHOEBUS_REPORT=r", "/etc/phoebus/client.conf, line 1: PHOEBUS_REPORT: \"r\" is not an absolute file"),
    ];
    for (environment, text, expected) in cases {
        let error = load(environment, &[file(text)]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn finds_the_users_file() {
    let with = |variables: &'static [(&str, &str)]| {
        user_file(move |name| variables.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()))
    };
    assert_eq!(with(&[("HOME", "/h")]), Some("/h/.config/phoebus/client.conf".into()));
    assert_eq!(with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), Some("/x/phoebus/client.conf".into()));
    assert_eq!(with(&[("HOME", "h"), ("XDG_CONFIG_HOME", "x")]), None);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(PHOEBUS_[A-Z]{2,6}=.{0,12}\n|.{0,8}\n){0,6}", value in ".{0,20}") {
        let _ = load(&[], &[file(&text)]);
        for key in Key::ALL {
            let _ = Settings::default().apply(*key, &value);
        }
    }
}

/// Names that were not looked up are in no address range.
#[test]
fn selects_names() {
    let select = |list: &[(&str, &str)], name: &str, port| {
        load(&[&[("PHOEBUS_GW", "pg1")], list].concat(), &[]).unwrap().selects_name(name, port)
    };
    assert!(select(&[], "host.example", 80));
    assert!(!select(&[], "localhost", 80));
    assert!(select(&[("PHOEBUS_ONLY", "localhost")], "localhost", 80));
    assert!(!select(&[("PHOEBUS_ONLY", "0.0.0.0/0,[::]/0")], "host.example", 80));
    assert!(select(&[("PHOEBUS_ONLY", ".example:80")], "host.example", 80));
    assert!(!select(&[("PHOEBUS_ONLY", ".example:80")], "host.example", 81));
    assert!(!select(&[("PHOEBUS_EXCEPT", "*:80")], "host.example", 80));
    assert!(!select(&[("PHOEBUS_DISABLE", "1")], "host.example", 80));
    assert!(!Settings::default().selects_name("host.example", 80));
}
