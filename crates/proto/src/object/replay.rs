//! Replay protection: which transmission numbers have arrived lately.

/// The latest transmission numbers of the peer.
#[derive(Debug)]
pub struct ReplayWindow {
    /// One more than the highest number that has arrived.
    end: u64,
    /// A bit for each of the last numbers, at its remainder.
    words: Box<[u64]>,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayWindow {
    /// Numbers that are remembered: what a gigabit carries in more than half a second, in packets of 1500 bytes. Packets
    /// that were overtaken by more others are dropped.
    const LEN: u64 = 1 << 16;

    /// No number has arrived.
    pub fn new() -> Self {
        Self { end: 0, words: vec![0; Self::LEN as usize / 64].into() }
    }

    /// Whether `number` may be new.
    pub fn is_new(&self, number: u64) -> bool {
        number >= self.end || number + Self::LEN >= self.end && !self.has(number)
    }

    /// Records a number that [is new](Self::is_new).
    pub fn insert(&mut self, number: u64) {
        // Forget what the numbers up to this one displace.
        if number >= self.end + Self::LEN {
            self.words.fill(0);
        } else {
            let mut at = self.end;
            while at <= number {
                // A whole word at a time where it can be: a peer chooses how far its numbers jump.
                let is_whole = at.is_multiple_of(64) && number - at >= 63;
                let word = &mut self.words[Self::word(at)];
                *word = if is_whole { 0 } else { *word & !(1 << (at % 64)) };
                at += if is_whole { 64 } else { 1 };
            }
        }
        self.end = self.end.max(number + 1);
        self.words[Self::word(number)] |= 1 << (number % 64);
    }

    fn has(&self, number: u64) -> bool {
        self.words[Self::word(number)] >> (number % 64) & 1 == 1
    }

    fn word(number: u64) -> usize {
        (number % Self::LEN / 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let mut window = ReplayWindow::new();
        for number in [5, 3, 4, 70_000, 69_999, 4465, 200_000, 199_999] {
            assert!(window.is_new(number), "{number}");
            window.insert(number);
            assert!(!window.is_new(number), "{number} again");
        }
        // What is too old to be remembered counts as known.
        assert!(!window.is_new(5) && !window.is_new(134_464) && window.is_new(134_465));
    }
}
