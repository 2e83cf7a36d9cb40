//! Settings of an emulated link, from a file or a command line, one for each property of a real link.
//!
//! The directions are set separately, since real paths are seldom symmetric. A [`DirectionUpdate`] changes
//! settings while packets are in flight.

use phoebus_proto::units::{BitRate, ByteSize, Probability, Span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// A link between two ends, `a` and `b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// Seeds all random draws of the link: the same packets at the same times meet the same fate.
    pub seed: u64,
    /// Largest IP packet that the link carries, in bytes.
    pub mtu: u16,
    /// From `a` to `b`.
    pub forward: DirectionConfig,
    /// From `b` to `a`.
    pub backward: DirectionConfig,
}

/// One direction of a link. The default is perfect: no delay, no loss, no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirectionConfig {
    /// One-way propagation delay.
    pub delay: Span,
    /// Each packet's delay is drawn uniformly from `delay ± jitter`, never below zero.
    pub jitter: Span,
    /// Whether jitter may reorder packets. By default it does not, as in the queues that cause jitter: a
    /// packet then arrives no earlier than its predecessor, so a dense stream sees delays near `delay +
    /// jitter`.
    pub reorder: bool,
    /// Random loss, drawn for each segment after the queue.
    pub loss: Loss,
    /// Capacity of the link, counting the headers and the Ethernet framing of every segment.
    pub rate: Rate,
    /// Capacity of the queue, in bytes as [`Amount`](crate::model::Amount) counts them; a segment that does
    /// not fit is dropped. Without a rate nothing queues.
    pub queue: ByteSize,
}

/// Changes to one direction of a live link; fields with `None` stay unchanged.
///
/// A new rate and queue apply at once, also to queued packets (a smaller queue drops none of them). A new
/// delay, jitter and loss apply to packets that leave the queue from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of `DirectionConfig`")]
pub struct DirectionUpdate {
    pub delay: Option<Span>,
    pub jitter: Option<Span>,
    pub reorder: Option<bool>,
    pub loss: Option<Loss>,
    pub rate: Option<Rate>,
    pub queue: Option<ByteSize>,
}

/// Random loss. As text: `0.01%`, or `to_bad=0.1%,to_good=25%,loss_bad=100%,loss_good=0%` (the last two are
/// optional).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Every segment is lost with the same probability.
    Bernoulli(Probability),
    /// Losses come in bursts.
    GilbertElliott(GilbertElliott),
}

/// The two-state loss process of Gilbert (1960) and Elliott (1963): each segment first changes the state at
/// random, then is lost with the probability of the resulting state. In the long run a fraction `to_bad /
/// (to_bad + to_good)` of segments meets the bad state, which lasts `1 / to_good` segments on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// Probability, per segment, of a change from the good state to the bad.
    pub to_bad: Probability,
    /// Probability, per segment, of a change from the bad state to the good.
    pub to_good: Probability,
    /// Loss probability in the good state; 0 by default.
    pub loss_good: Probability,
    /// Loss probability in the bad state; 1 by default.
    pub loss_bad: Probability,
}

/// The capacity of a link direction. As text: `1gbit`, or `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rate {
    /// No limit.
    #[default]
    Unlimited,
    /// A limit in bits per second. Zero is not a rate: cut the link to stop it.
    Limited(NonZeroU64),
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From `a` to `b`.
    Forward,
    /// From `b` to `a`.
    Backward,
}

/// A text that is not a valid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not {expected}")]
pub struct SettingError {
    text: String,
    expected: &'static str,
}

impl LinkConfig {
    /// Ethernet's MTU, which nearly every path supports.
    pub const MTU_DEFAULT: u16 = 1500;

    /// A link with equal directions.
    pub fn symmetric(seed: u64, direction: DirectionConfig) -> Self {
        Self { seed, mtu: Self::MTU_DEFAULT, forward: direction.clone(), backward: direction }
    }
}

impl DirectionConfig {
    /// 4 MB, the buffer of a common campus switch: 32 ms at 1 Gbit/s.
    pub const QUEUE_DEFAULT: ByteSize = ByteSize(4_000_000);

    /// Applies `update`.
    pub fn change(&mut self, update: &DirectionUpdate) {
        let DirectionUpdate { delay, jitter, reorder, loss, rate, queue } = *update;
        self.delay = delay.unwrap_or(self.delay);
        self.jitter = jitter.unwrap_or(self.jitter);
        self.reorder = reorder.unwrap_or(self.reorder);
        self.loss = loss.unwrap_or(self.loss);
        self.rate = rate.unwrap_or(self.rate);
        self.queue = queue.unwrap_or(self.queue);
    }
}

impl Loss {
    const EXPECTED: &'static str =
        "a loss such as 0.01%, or to_bad=0.1%,to_good=25% with loss_bad and loss_good where they are not 100% and 0%";

    /// No random loss.
    pub fn none() -> Self {
        Self::Bernoulli(Probability::default())
    }

    /// The long-run fraction of lost segments.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Bernoulli(p) => p.get(),
            Self::GilbertElliott(ge) => {
                let (to_bad, to_good) = (ge.to_bad.get(), ge.to_good.get());
                // A process without transitions stays in the good state, where it starts.
                let bad = if to_bad == 0.0 { 0.0 } else { to_bad / (to_bad + to_good) };
                bad * ge.loss_bad.get() + (1.0 - bad) * ge.loss_good.get()
            }
        }
    }
}

impl Rate {
    /// The rate in bits per second, if there is one.
    pub fn bits_per_second(self) -> Option<NonZeroU64> {
        match self {
            Self::Unlimited => None,
            Self::Limited(bits) => Some(bits),
        }
    }
}

impl Direction {
    /// Both directions, in the order of a link's array.
    pub const BOTH: [Self; 2] = [Self::Forward, Self::Backward];

    /// The opposite direction.
    pub fn reverse(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self::symmetric(0, DirectionConfig::default())
    }
}

impl Default for DirectionConfig {
    fn default() -> Self {
        Self {
            delay: Span(Duration::ZERO),
            jitter: Span(Duration::ZERO),
            reorder: false,
            loss: Loss::none(),
            rate: Rate::Unlimited,
            queue: Self::QUEUE_DEFAULT,
        }
    }
}

impl Default for Loss {
    fn default() -> Self {
        Self::none()
    }
}

/// A rate of 0 means that there is no limit.
impl From<BitRate> for Rate {
    fn from(rate: BitRate) -> Self {
        NonZeroU64::new(rate.0).map_or(Self::Unlimited, Self::Limited)
    }
}

impl SettingError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

impl FromStr for Loss {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        if !text.contains('=') {
            return text.parse().map(Self::Bernoulli).map_err(|_| SettingError::new(text, Self::EXPECTED));
        }
        gilbert_elliott(text).map(Self::GilbertElliott).ok_or_else(|| SettingError::new(text, Self::EXPECTED))
    }
}

fn gilbert_elliott(text: &str) -> Option<GilbertElliott> {
    let (mut to_bad, mut to_good, mut loss_good, mut loss_bad) = (None, None, None, None);
    for part in text.split(',') {
        let (name, value) = part.split_once('=')?;
        let slot = match name.trim() {
            "to_bad" => &mut to_bad,
            "to_good" => &mut to_good,
            "loss_good" => &mut loss_good,
            "loss_bad" => &mut loss_bad,
            _ => return None,
        };
        if slot.replace(value.parse::<Probability>().ok()?).is_some() {
            return None;
        }
    }
    Some(GilbertElliott {
        to_bad: to_bad?,
        to_good: to_good?,
        loss_good: loss_good.unwrap_or_default(),
        loss_bad: match loss_bad {
            Some(given) => given,
            None => Probability::new(1.0)?,
        },
    })
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bernoulli(p) => p.fmt(f),
            Self::GilbertElliott(GilbertElliott { to_bad, to_good, loss_good, loss_bad }) => {
                write!(f, "to_bad={to_bad},to_good={to_good},loss_good={loss_good},loss_bad={loss_bad}")
            }
        }
    }
}

impl FromStr for Rate {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        const EXPECTED: &str = "a rate such as 500mbit or 1gbit, or unlimited";
        if text.trim() == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let rate: BitRate = text.parse().map_err(|_| SettingError::new(text, EXPECTED))?;
        NonZeroU64::new(rate.0).map(Self::Limited).ok_or_else(|| SettingError::new(text, EXPECTED))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited(bits) => BitRate(bits.get()).fmt(f),
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        })
    }
}

macro_rules! serde_as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serde_as_text!(Loss, Rate);

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Probability {
        text.parse().unwrap()
    }

    #[test]
    fn settings_parse_as_they_print() {
        for text in ["0.0001", "to_bad=0.001,to_good=0.25,loss_good=0,loss_bad=1"] {
            assert_eq!(text.parse::<Loss>().unwrap().to_string(), text);
        }
        for text in ["unlimited", "1gbit", "512kbit"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        let short = "to_bad=0.1%, to_good=25%".parse::<Loss>().unwrap();
        let ge = GilbertElliott { to_bad: p("0.1%"), to_good: p("25%"), loss_good: p("0"), loss_bad: p("1") };
        assert_eq!(short, Loss::GilbertElliott(ge));
    }

    #[test]
    fn errors_name_the_text_and_the_expected_form() {
        for text in ["", "lots", "to_bad=1%", "to_bad=1%,to_good=2%,to_bad=3%", "to_bad=1%,to_good=2%,k=3%", "200%"] {
            let message = text.parse::<Loss>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("\"{text}\" is not a loss such as 0.01%")), "{message}");
        }
        for text in ["0mbit", "infinite", "5"] {
            let message = text.parse::<Rate>().unwrap_err().to_string();
            assert_eq!(message, format!("\"{text}\" is not a rate such as 500mbit or 1gbit, or unlimited"));
        }
    }

    #[test]
    fn update_changes_only_the_named_settings() {
        let mut config = DirectionConfig::default();
        config.change(&DirectionUpdate { loss: Some(Loss::Bernoulli(p("1%"))), ..Default::default() });
        assert_eq!(config, DirectionConfig { loss: Loss::Bernoulli(p("1%")), ..Default::default() });
    }

    #[test]
    fn bursty_loss_has_the_expected_mean() {
        let loss: Loss = "to_bad=1%,to_good=9%,loss_bad=50%,loss_good=1%".parse().unwrap();
        assert!((loss.mean() - (0.1 * 0.5 + 0.9 * 0.01)).abs() < 1e-12);
        assert_eq!("to_bad=0,to_good=0".parse::<Loss>().unwrap().mean(), 0.0);
    }
}
