//! Transfer options of `OPTS RETR` and the like (GFD.20, section 3.5):
//! `Parallelism=8,8,8;StripeLayout=Blocked;BlockSize=1048576;`.

use std::fmt;

/// Most connections of a stripe.
pub const MAX_PARALLELISM: u32 = 1024;

/// Transfer options. `None` leaves an option unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetrOptions {
    /// Number of connections: initial, minimum and maximum.
    pub parallelism: Option<(u32, u32, u32)>,
    /// Distribution of data among stripes.
    pub layout: Option<Layout>,
    /// Seconds between performance markers; 0 disables them.
    pub markers: Option<u32>,
}

/// Distribution of data among stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Each stripe has one range; the ranges have nearly equal lengths.
    Partitioned,
    /// The stripes take turns with blocks of this many bytes. `None`: the server chooses the size.
    Blocked(Option<u64>),
}

/// An unknown option, or an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{option}\" is no option here: {expected} was expected")]
pub struct OptionError {
    option: String,
    expected: &'static str,
}

impl RetrOptions {
    /// Parses the parameter of `OPTS RETR`.
    ///
    /// # Errors
    /// [`OptionError`] if an option is unknown or its value is invalid.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let (mut options, mut block) = (Self::default(), None);
        for option in text.split(';').map(str::trim).filter(|option| !option.is_empty()) {
            let error = |expected| OptionError { option: option.chars().take(100).collect(), expected };
            let (name, value) = option.split_once('=').ok_or_else(|| error("an option with a value"))?;
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "parallelism" => {
                    let numbers: Option<Vec<u32>> = value.split(',').map(|n| n.trim().parse().ok()).collect();
                    let (start, least, most) = match numbers.as_deref() {
                        Some(&[start, least, most]) => (start, least, most),
                        Some(&[all]) => (all, all, all),
                        _ => return Err(error("Parallelism with three numbers")),
                    };
                    if !(1..=MAX_PARALLELISM).contains(&start)
                        || least > start
                        || most < start
                        || most > MAX_PARALLELISM
                    {
                        return Err(error("Parallelism of 1 to 1024, its first number between the others"));
                    }
                    options.parallelism = Some((start, least, most));
                }
                "stripelayout" if value.eq_ignore_ascii_case("partitioned") => {
                    options.layout = Some(Layout::Partitioned)
                }
                "stripelayout" if value.eq_ignore_ascii_case("blocked") => options.layout = Some(Layout::Blocked(None)),
                "stripelayout" => return Err(error("StripeLayout Partitioned or Blocked")),
                "blocksize" => {
                    let size = value.parse().ok().filter(|&size| size > 0);
                    block = Some(size.ok_or_else(|| error("BlockSize of at least one byte"))?);
                }
                "markers" => {
                    options.markers = Some(value.parse().map_err(|_| error("markers as a number of seconds"))?)
                }
                _ => return Err(error("Parallelism, StripeLayout, BlockSize or markers")),
            }
        }
        if let (Some(Layout::Blocked(size)), Some(_)) = (&mut options.layout, block) {
            *size = block;
        }
        Ok(options)
    }
}

/// The form that [`RetrOptions::parse`] reads.
impl fmt::Display for RetrOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((start, least, most)) = self.parallelism {
            write!(f, "Parallelism={start},{least},{most};")?;
        }
        match self.layout {
            Some(Layout::Partitioned) => write!(f, "StripeLayout=Partitioned;")?,
            Some(Layout::Blocked(None)) => write!(f, "StripeLayout=Blocked;")?,
            Some(Layout::Blocked(Some(size))) => write!(f, "StripeLayout=Blocked;BlockSize={size};")?,
            None => {}
        }
        self.markers.map_or(Ok(()), |seconds| write!(f, "markers={seconds};"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_are_parsed_as_clients_send_them() {
        let options =
            RetrOptions::parse("StripeLayout=Blocked;BlockSize=1048576; parallelism=4,1,8;markers=2").unwrap();
        let expected = RetrOptions {
            parallelism: Some((4, 1, 8)),
            layout: Some(Layout::Blocked(Some(1 << 20))),
            markers: Some(2),
        };
        assert_eq!(options, expected);
        for text in [
            "x",
            "x=1",
            "Parallelism=0",
            "Parallelism=2,3,4",
            "Parallelism=1,1,2000",
            "BlockSize=0",
            "StripeLayout=x",
            "markers=-1",
        ] {
            assert!(
                RetrOptions::parse(text).unwrap_err().to_string().starts_with(&format!("\"{text}\" is no option here"))
            );
        }
    }

    proptest! {
        #[test]
        fn printed_options_parse_back(
            parallelism in proptest::option::of((1..20u32, 20..30u32).prop_map(|(a, b)| (a, 1, b))),
            layout in proptest::option::of(proptest::option::of(proptest::option::of(1..u64::MAX))),
            markers: Option<u32>,
        ) {
            let layout = layout.map(|blocked| blocked.map_or(Layout::Partitioned, Layout::Blocked));
            let options = RetrOptions { parallelism, layout, markers };
            prop_assert_eq!(RetrOptions::parse(&options.to_string()), Ok(options));
        }
    }
}
