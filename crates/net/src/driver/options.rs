//! The options that a driver declares, and the administrator's values for them (U11).

use super::abi::RawOption;
use crate::wrapblock::Setting;
use phoebus_proto::units::{BitRate, ByteSize};
use std::fmt;

/// An option of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverOption {
    /// The name in the configuration.
    pub name: String,
    /// Meaning, unit and default, in the driver's words.
    pub about: String,
    /// The type of the value.
    pub kind: ValueType,
    /// The least and greatest value of a number, size or rate.
    pub bounds: Option<(i64, i64)>,
    /// Whether the option can be changed on an open connection.
    pub live: bool,
}

/// The type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// Any text.
    Text,
    /// A whole number.
    Number,
    /// A number of bytes, such as `8MiB`.
    Size,
    /// A number of bits per second, such as `1gbit`.
    Rate,
    /// `true` or `false`.
    Boolean,
}

impl ValueType {
    fn from_raw(kind: u32) -> Option<Self> {
        [Self::Text, Self::Number, Self::Size, Self::Rate, Self::Boolean].get(kind as usize).copied()
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a whole number",
            Self::Size => "a size such as 8MiB",
            Self::Rate => "a rate such as 500mbit",
            Self::Boolean => "true or false",
        }
    }

    /// Converts a value to the form that drivers take: plain numbers, and 0 or 1 for a boolean.
    fn parse(self, value: &str) -> Option<String> {
        match self {
            Self::Text => (!value.contains('\0')).then(|| value.into()),
            Self::Number => value.parse::<i64>().ok().map(|number| number.to_string()),
            Self::Size => value.parse::<ByteSize>().ok().map(|size| size.0.to_string()),
            Self::Rate => value.parse::<BitRate>().ok().map(|rate| rate.0.to_string()),
            Self::Boolean => match value {
                "true" => Some("1".into()),
                "false" => Some("0".into()),
                _ => None,
            },
        }
    }
}

impl DriverOption {
    /// Reads an option from the driver's list; `text` reads a C string. The error says what is wrong with the
    /// driver.
    pub(super) fn from_raw(
        raw: &RawOption,
        text: impl Fn(*const std::ffi::c_char) -> Option<String>,
    ) -> Result<Self, String> {
        let name = text(raw.name).ok_or("its list of options has one without a name")?;
        let kind = ValueType::from_raw(raw.kind)
            .ok_or_else(|| format!("its option {name} has the kind {}, which version 1 does not have", raw.kind))?;
        let bounds = (raw.least, raw.most);
        Ok(Self {
            about: text(raw.about).unwrap_or_default(),
            kind,
            bounds: (bounds != (0, 0)).then_some(bounds),
            live: raw.live != 0,
            name,
        })
    }

    /// Parses and checks a value of the configuration.
    pub(super) fn setting(&self, value: &str) -> Result<Setting, String> {
        let Self { name, kind, bounds, .. } = self;
        let refuse = || {
            let bounds = bounds.map(|(least, most)| format!(" from {least} to {most}")).unwrap_or_default();
            format!("option {name} = \"{value}\" is not {}{bounds} ({})", kind.expected(), self.about)
        };
        let value = kind.parse(value).filter(|value| self.allows(value)).ok_or_else(refuse)?;
        Ok(Setting { name: name.clone(), value })
    }

    /// Whether a converted value is within the bounds.
    fn allows(&self, value: &str) -> bool {
        match self.bounds {
            Some((least, most)) if !matches!(self.kind, ValueType::Text | ValueType::Boolean) => {
                value.parse::<i64>().is_ok_and(|number| (least..=most).contains(&number))
            }
            _ => true,
        }
    }

    /// Checks a value that comes from a profile, already in the driver's form.
    pub(super) fn check(&self, value: &str) -> Result<(), String> {
        let Self { name, bounds, .. } = self;
        let (least, most) = bounds.unwrap_or_default();
        self.allows(value).then_some(()).ok_or_else(|| format!("{name} is {value}; the driver has {least} to {most}"))
    }
}

impl fmt::Display for DriverOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}: {})", self.name, self.kind.expected(), self.about)
    }
}

/// Parses the options of a configuration and checks each against the driver's list.
pub(super) fn settings<'a>(
    known: &[DriverOption],
    given: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<Vec<Setting>, String> {
    let setting = |(name, value): (&String, &String)| {
        let Some(option) = known.iter().find(|option| option.name == *name) else {
            let known: Vec<_> = known.iter().map(DriverOption::to_string).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            return Err(format!("it has no option {name}; its options are: {known}"));
        };
        option.setting(value)
    };
    given.into_iter().map(setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(name: &str, kind: ValueType, bounds: Option<(i64, i64)>) -> DriverOption {
        DriverOption { name: name.into(), about: format!("the {name}"), kind, bounds, live: false }
    }

    #[test]
    fn values_are_parsed_by_kind_and_passed_in_base_units() {
        for (kind, value, passed) in [
            (ValueType::Text, "a b", "a b"),
            (ValueType::Number, "-7", "-7"),
            (ValueType::Size, "8MiB", "8388608"),
            (ValueType::Rate, "1gbit", "1000000000"),
            (ValueType::Boolean, "true", "1"),
        ] {
            assert_eq!(option("x", kind, None).setting(value).unwrap().value, passed);
        }
    }

    #[test]
    fn errors_name_the_option_and_the_expected_value() {
        let known = [option("mss", ValueType::Number, Some((76, 9000))), option("buffer", ValueType::Size, None)];
        let error = |name: &str, value: &str| settings(&known, [(&name.into(), &value.into())]).unwrap_err();
        assert_eq!(error("mss", "10"), "option mss = \"10\" is not a whole number from 76 to 9000 (the mss)");
        assert_eq!(known[0].check("75"), Err("mss is 75; the driver has 76 to 9000".into()));
        assert_eq!(known[0].check("76").and(known[1].check("1")), Ok(()));
        assert_eq!(error("buffer", "big"), "option buffer = \"big\" is not a size such as 8MiB (the buffer)");
        assert_eq!(
            error("mtu", "1500"),
            "it has no option mtu; its options are: mss (a whole number: the mss), buffer (a size such as 8MiB: the buffer)"
        );
    }
}
