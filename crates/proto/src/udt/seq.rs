//! Sequence numbers: 31 bits with wrap-around, compared by the shorter distance.

use std::fmt;

/// The sequence number of a data packet. Comparison uses the signed distance of two numbers, which is correct while
/// they are less than 2³⁰ apart. Windows are far smaller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(u32);

/// The number of a message: 29 bits, of which 0 is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageNumber(u32);

impl Seq {
    /// The largest number. The next one is 0.
    pub const MAX: Self = Self((1 << 31) - 1);

    /// The number in the low 31 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & Self::MAX.0)
    }

    /// The number, below 2³¹.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` after this one.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The number `n` before this one.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// Distance of this number after `other`. Negative if it is before.
    pub const fn since(self, other: Self) -> i32 {
        // The 31-bit difference, its sign extended from bit 30.
        ((self.0.wrapping_sub(other.0) << 1) as i32) >> 1
    }

    /// Whether this number comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MessageNumber {
    /// The first message of a connection.
    pub const FIRST: Self = Self(1);
    /// The largest 29-bit number. Messages wrap from the one before it to 1, as in libudt.
    pub const MAX: Self = Self((1 << 29) - 1);

    /// The number in the low 29 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & Self::MAX.0)
    }

    /// The number, below 2²⁹.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the message after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 + 1 >= Self::MAX.0 { Self::FIRST } else { Self(self.0 + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_wrap_from_the_largest_to_zero() {
        assert_eq!(Seq::MAX.plus(1), Seq::new(0));
        assert_eq!(Seq::new(0).minus(1), Seq::MAX);
        assert_eq!(Seq::new(2).since(Seq::MAX.minus(1)), 4);
        assert!(Seq::MAX.is_before(Seq::new(0)));
        assert_eq!(MessageNumber::new((1 << 29) - 2).next(), MessageNumber::FIRST);
    }

    proptest! {
        #[test]
        fn distance_undoes_addition(base in 0u32..1 << 31, n in 0u32..1 << 30) {
            let base = Seq::new(base);
            prop_assert_eq!(base.plus(n).since(base), n as i32);
            prop_assert_eq!(base.minus(n).since(base), -(n as i32));
            prop_assert_eq!(base.plus(n).minus(n), base);
        }
    }
}
