//! Random loss, drawn segment by segment.

use super::config::Loss;
use super::rng::Rng;

/// A loss process: its settings, state and random generator.
#[derive(Debug, Clone)]
pub struct LossProcess {
    loss: Loss,
    /// Whether the Gilbert-Elliott process is in the bad state; links start in the good one.
    bad: bool,
    rng: Rng,
}

impl LossProcess {
    /// Creates a process in the good state.
    pub fn new(loss: Loss, seed: u64) -> Self {
        Self { loss, bad: false, rng: Rng::new(seed) }
    }

    /// Continues with other settings.
    pub fn set(&mut self, loss: Loss) {
        self.loss = loss;
    }

    /// Whether any segment can be lost at all.
    pub fn is_none(&self) -> bool {
        self.loss == Loss::none()
    }

    /// Draws whether the next segment is lost.
    pub fn loses_next(&mut self) -> bool {
        match self.loss {
            Loss::Bernoulli(p) => self.rng.chance(p.get()),
            Loss::GilbertElliott(ge) => {
                let leave = if self.bad { ge.to_good } else { ge.to_bad };
                self.bad ^= self.rng.chance(leave.get());
                let p = if self.bad { ge.loss_bad } else { ge.loss_good };
                self.rng.chance(p.get())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 1_000_000;

    fn process(loss: &str) -> LossProcess {
        LossProcess::new(loss.parse().unwrap(), 42)
    }

    #[test]
    fn bernoulli_loss_has_its_mean() {
        for p in [0.0001, 0.01, 0.5] {
            let mut process = process(&p.to_string());
            let lost = (0..DRAWS).filter(|_| process.loses_next()).count() as f64;
            let expected = p * f64::from(DRAWS);
            let standard_error = (expected * (1.0 - p)).sqrt();
            assert!((lost - expected).abs() < 3.0 * standard_error, "p = {p}: lost {lost} of {DRAWS}");
        }
    }

    #[test]
    fn certainties_are_certain() {
        assert!((0..1000).all(|_| process("100%").loses_next()));
        assert!(!(0..1000).any(|_| process("0%").loses_next()));
    }

    #[test]
    fn gilbert_elliott_has_its_mean_and_burst_length() {
        let loss: Loss = "to_bad=0.2%,to_good=20%".parse().unwrap();
        let mut process = LossProcess::new(loss, 7);
        let (mut lost, mut bursts, mut before) = (0u32, 0u32, false);
        for _ in 0..DRAWS {
            let now = process.loses_next();
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        // Bursts start as a nearly Bernoulli process with probability good·to_bad, and their lengths are
        // geometric with mean 1/to_good.
        let bursts_expected = f64::from(DRAWS) * 0.002 * (0.2 / 0.202);
        assert!((f64::from(bursts) - bursts_expected).abs() < 3.0 * bursts_expected.sqrt(), "{bursts} bursts");
        let length = f64::from(lost) / f64::from(bursts);
        let length_error = (0.8f64.sqrt() / 0.2) / f64::from(bursts).sqrt();
        assert!((length - 5.0).abs() < 3.0 * length_error, "bursts of {length} segments");
        let mean = f64::from(lost) / f64::from(DRAWS);
        assert!((mean - loss.mean()).abs() < 0.1 * loss.mean(), "mean loss {mean}, expected {}", loss.mean());
    }
}
