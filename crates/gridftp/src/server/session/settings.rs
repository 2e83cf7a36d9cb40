//! TYPE, MODE, STRU, OPTS, SBUF: how data is represented and transmitted (RFC 959, 2389, 3659, GFD.20).

use super::task::FactNames;
use super::{Session, Step};
use crate::data::Mode;
use phoebus_proto::gridftp::command;
use phoebus_proto::gridftp::options::RetrOptions;

impl Session {
    pub(super) fn representation(&mut self, code: &str) -> Step {
        match code.to_ascii_uppercase().split_whitespace().collect::<Vec<_>>()[..] {
            ["A"] | ["A", "N"] => self.settings.ascii = true,
            ["I"] | ["L", "8"] => self.settings.ascii = false,
            _ => return Step::say(504, "only TYPE A and TYPE I are implemented"),
        }
        Step::say(200, format!("type set to {}", if self.settings.ascii { "A" } else { "I" }))
    }

    pub(super) fn mode(&mut self, mode: command::Mode) -> Step {
        let (mode, letter) = match mode {
            command::Mode::Stream => (Mode::Stream, "S"),
            command::Mode::Extended => (Mode::Extended, "E"),
            _ => return Step::say(504, "only MODE S and E are implemented"),
        };
        if mode != self.settings.mode {
            // Connections of one mode cannot be reused in another.
            self.forget_data_endpoint();
        }
        self.settings.mode = mode;
        Step::say(200, format!("mode set to {letter}"))
    }

    pub(super) fn structure(code: &str) -> Step {
        if code.eq_ignore_ascii_case("F") {
            Step::say(200, "structure set to F")
        } else {
            Step::say(504, "only STRU F is implemented")
        }
    }

    pub(super) fn opts(&mut self, command: &str, options: &str) -> Step {
        match command {
            "RETR" if self.account().is_some() => match RetrOptions::parse(options) {
                Ok(options) => self.retr_options(options),
                Err(error) => Step::say(501, error.to_string()),
            },
            "MLST" => {
                self.settings.facts = FactNames::parse(options);
                Step::say(200, format!("MLST OPTS {}", self.settings.facts.chosen()).trim_end())
            }
            "UTF8" if matches!(options.to_ascii_uppercase().as_str(), "" | "ON" | "NLST") => {
                Step::say(200, "names are UTF-8, or what bytes they are")
            }
            "RETR" => Step::say(530, "log in first"),
            _ => Step::say(501, "OPTS is understood for RETR, MLST and UTF8"),
        }
    }

    fn retr_options(&mut self, options: RetrOptions) -> Step {
        if let Some((streams, _, _)) = options.parallelism {
            if streams > self.rules.streams {
                return Step::say(501, format!("Parallelism of at most {} is possible here", self.rules.streams));
            }
            self.settings.streams = streams;
        }
        // The sender divides data among stripes, because each stripe accepts any block.
        self.settings.markers = options.markers.or(self.settings.markers).filter(|&seconds| seconds > 0);
        Step::say(200, "options set")
    }

    /// Sets the sizes of socket buffers. 0 leaves them to the kernel.
    pub(super) fn buffers(&mut self, send: Option<u64>, receive: Option<u64>) -> Step {
        let most = self.rules.buffer;
        if send.max(receive).is_some_and(|bytes| bytes > most) {
            return Step::say(501, format!("buffers of at most {most} bytes are possible here"));
        }
        let set = |place: &mut Option<u64>, bytes: Option<u64>| {
            if bytes.is_some() {
                *place = bytes.filter(|&bytes| bytes > 0);
            }
        };
        set(&mut self.settings.send_buffer, send);
        set(&mut self.settings.receive_buffer, receive);
        Step::say(200, "buffers of the next data connections set")
    }
}
