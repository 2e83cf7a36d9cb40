//! Settings of a connection, and their limits.

use super::control::{Factory, Native};
use super::handshake::{MSS_MAX, MSS_MIN};
use super::message::Kind;
use super::packet::HEADER_LEN;
use super::{IP_UDP_LEN, SYN};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a connection. What the peer has a say in is negotiated down.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is carried; both ends must agree.
    pub kind: Kind,
    /// Largest IP packet, in bytes: 1500, Ethernet's, unless the path is known to carry more.
    pub mss: u32,
    /// Whether the side that connects finds out if the path carries so much, and does with less if it does not. libudt does
    /// not help: with it, and in a rendezvous, the MSS holds as it is.
    pub discover_mss: bool,
    /// Packets that may wait to be sent, or to be acknowledged. 8192 as in libudt, 12 MB: enough for 1 Gbit/s at 95 ms.
    pub send_buffer: u32,
    /// Packets that may wait to be read, or for missing ones before them. 25 600, the most that libudt allows by default:
    /// behind a loss, more than a round trip's worth waits.
    pub receive_buffer: u32,
    /// Packets of [`receive_buffer`](Self::receive_buffer) that a connection which was accepted may fill until
    /// [`Connection::widen`](super::Connection::widen) is called. All by default, as in libudt.
    pub accept_buffer: u32,
    /// How long to try to connect: 3 s as in libudt.
    pub connect_timeout: Duration,
    /// How long to try to meet the peer in a rendezvous: 30 s as in libudt.
    pub rendezvous_timeout: Duration,
    /// A peer that is silent for so long is dead: 30 s, which a cut of 10 s and its aftermath survive.
    pub idle_timeout: Duration,
    /// A connection on which nothing was sent for so long sends a sign of life: 1 s, as libudt answers in turn.
    pub keep_alive: Duration,
    /// How long a connection that is closed goes on to deliver what was written: 180 s as in libudt.
    pub linger: Duration,
    /// What may be sent in so long is sent together: 1 ms, which is one call per batch at 1 Gbit/s.
    pub quantum: Duration,
    /// How much of what a late driver has missed it may send at once: 20 ms, for so long does a busy machine keep a thread
    /// waiting. Two quanta at most after a pause in which there was nothing to send.
    pub catch_up: Duration,
    /// Most bits per second, counted from the IP header on, whatever the control says.
    pub rate_limit: Option<u64>,
    /// Rate control.
    pub control: Arc<dyn Factory>,
}

/// Settings that do not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MSS.
    #[error("an MSS of {0} bytes; expected {MSS_MIN} to {MSS_MAX}")]
    Mss(u32),
    /// A buffer.
    #[error("a {name} buffer of {packets} packets; expected {min} to {max}", min = Config::BUFFER_MIN, max = Config::BUFFER_MAX)]
    Buffer {
        /// Which.
        name: &'static str,
        /// Its size.
        packets: u32,
    },
    /// A time that has to be longer.
    #[error("{name} is {time:?}; expected at least {min:?}")]
    Time {
        /// Which.
        name: &'static str,
        /// Its length.
        time: Duration,
        /// Its least length.
        min: Duration,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: Kind::Stream,
            mss: 1500,
            discover_mss: true,
            send_buffer: 8192,
            receive_buffer: 25_600,
            accept_buffer: Self::BUFFER_MAX,
            connect_timeout: Duration::from_secs(3),
            rendezvous_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(1),
            linger: Duration::from_secs(180),
            quantum: Duration::from_millis(1),
            catch_up: Duration::from_millis(20),
            rate_limit: None,
            control: Arc::new(Native),
        }
    }
}

impl Config {
    /// Smallest buffer, in packets; libudt's.
    pub const BUFFER_MIN: u32 = 32;
    /// Largest buffer, in packets: 1.5 GB, enough for 100 Gbit/s at 120 ms.
    pub const BUFFER_MAX: u32 = 1 << 20;

    /// Looks for settings that do not work.
    ///
    /// # Errors
    /// [`ConfigError`] for the first.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(MSS_MIN..=MSS_MAX).contains(&self.mss) {
            return Err(ConfigError::Mss(self.mss));
        }
        let buffers = [("send", self.send_buffer), ("receive", self.receive_buffer), ("first", self.accept_buffer)];
        for (name, packets) in buffers {
            if !(Self::BUFFER_MIN..=Self::BUFFER_MAX).contains(&packets) {
                return Err(ConfigError::Buffer { name, packets });
            }
        }
        for (name, time) in [("idle_timeout", self.idle_timeout), ("keep_alive", self.keep_alive)] {
            if time < 10 * SYN {
                return Err(ConfigError::Time { name, time, min: 10 * SYN });
            }
        }
        Ok(())
    }
}

/// Payload of a full packet.
pub(super) const fn payload_len(mss: u32) -> usize {
    mss as usize - IP_UDP_LEN as usize - HEADER_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_is_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let message = |config: Config| config.check().unwrap_err().to_string();
        assert_eq!(message(Config { mss: 60, ..Default::default() }), "an MSS of 60 bytes; expected 92 to 65535");
        let small = Config { send_buffer: 1, ..Default::default() };
        assert_eq!(message(small), "a send buffer of 1 packets; expected 32 to 1048576");
        let brief = Config { keep_alive: SYN, ..Default::default() };
        assert_eq!(message(brief), "keep_alive is 10ms; expected at least 100ms");
    }
}
