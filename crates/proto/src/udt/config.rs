//! Settings of a connection, and their limits.

use super::handshake::{MSS_MAX, MSS_MIN};
use super::message::Kind;
use super::packet::HEADER_LEN;
use super::{IP_UDP_LEN, SYN};
use crate::control::{Factory, Native};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a connection. MSS and window are negotiated: the smaller value of both ends applies.
#[derive(Debug, Clone)]
pub struct Config {
    /// Stream or messages; both ends must agree.
    pub kind: Kind,
    /// Largest IP packet, in bytes. Default: 1500, the MTU of Ethernet.
    pub mss: u32,
    /// Whether the connecting side tests that the path carries packets of the full MSS, and lowers the MSS if it does
    /// not. libudt does not support this: with a libudt peer, and in a rendezvous, the MSS stays as negotiated.
    pub discover_mss: bool,
    /// Size of the send buffer, in packets that are unsent or unacknowledged. Default: 8192 as in libudt, 12 MB: enough
    /// for 1 Gbit/s at 95 ms.
    pub send_buffer: u32,
    /// Size of the receive buffer, in packets that are unread or wait for missing ones before them. Default: 25 600,
    /// the most that libudt allows by default, because more than a round trip's worth of packets waits behind a loss.
    pub receive_buffer: u32,
    /// Packets of [`receive_buffer`](Self::receive_buffer) that an accepted connection may fill until the caller calls
    /// [`Connection::widen`](super::Connection::widen). Default: all of them, as in libudt.
    pub accept_buffer: u32,
    /// Time-out of connecting to a listener. Default: 3 s as in libudt.
    pub connect_timeout: Duration,
    /// Time-out of connecting in a rendezvous. Default: 30 s as in libudt.
    pub rendezvous_timeout: Duration,
    /// A peer that is silent for this long counts as dead. Default: 30 s, which outlasts a path outage of 10 s and the
    /// recovery after it.
    pub idle_timeout: Duration,
    /// A connection that has sent nothing for this long sends a keep-alive. Default: 1 s, as libudt sends one in turn.
    pub keep_alive: Duration,
    /// How long a closed connection goes on delivering data that was written before. Default: 180 s as in libudt.
    pub linger: Duration,
    /// Packets that are due within this time are sent together. Default: 1 ms, which makes one system call per batch at
    /// 1 Gbit/s.
    pub quantum: Duration,
    /// How much of its missed sending time a late driver may make up for in one burst. Default: 20 ms, as long as a
    /// busy machine keeps a thread waiting. After a pause without data to send, the burst is limited to two quanta.
    pub catch_up: Duration,
    /// Upper limit of the sending rate, in bits per second including IP headers. It overrides the rate control.
    pub rate_limit: Option<u64>,
    /// Rate control.
    pub control: Arc<dyn Factory>,
}

/// Invalid settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MSS is out of range.
    #[error("an MSS of {0} bytes; expected {MSS_MIN} to {MSS_MAX}")]
    Mss(u32),
    /// A buffer size is out of range.
    #[error("a {name} buffer of {packets} packets; expected {min} to {max}", min = Config::BUFFER_MIN, max = Config::BUFFER_MAX)]
    Buffer {
        /// Name of the buffer.
        name: &'static str,
        /// Configured size.
        packets: u32,
    },
    /// A time is too short.
    #[error("{name} is {time:?}; expected at least {min:?}")]
    Time {
        /// Name of the setting.
        name: &'static str,
        /// Configured value.
        time: Duration,
        /// Smallest allowed value.
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
    /// Smallest buffer, in packets, as in libudt.
    pub const BUFFER_MIN: u32 = 32;
    /// Largest buffer, in packets: 1.5 GB, enough for 100 Gbit/s at 120 ms.
    pub const BUFFER_MAX: u32 = 1 << 20;

    /// Validates the settings.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(MSS_MIN..=MSS_MAX).contains(&self.mss) {
            return Err(ConfigError::Mss(self.mss));
        }
        let buffers =
            [("send", self.send_buffer), ("receive", self.receive_buffer), ("reduced receive", self.accept_buffer)];
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

/// Payload of a full packet, in bytes.
pub(super) const fn payload_len(mss: u32) -> usize {
    mss as usize - IP_UDP_LEN as usize - HEADER_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_named_in_the_error() {
        assert_eq!(Config::default().check(), Ok(()));
        let message = |config: Config| config.check().unwrap_err().to_string();
        assert_eq!(message(Config { mss: 60, ..Default::default() }), "an MSS of 60 bytes; expected 92 to 65535");
        let small = Config { send_buffer: 1, ..Default::default() };
        assert_eq!(message(small), "a send buffer of 1 packets; expected 32 to 1048576");
        let brief = Config { keep_alive: SYN, ..Default::default() };
        assert_eq!(message(brief), "keep_alive is 10ms; expected at least 100ms");
    }
}
