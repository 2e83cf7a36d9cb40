//! A destination that takes part in its session (S5): the last gateway sends it a request, as to another gateway. The
//! session then continues in raw mode, since the program there owns the connection.

use crate::handshake::{Asking, HandshakeError, answer};
use crate::refusal::Refusal;
use crate::request::{HopOptions, Request};
use phoebus_net::{Stream, code_of};
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::{Hello, Open, feature};
use phoebus_proto::session::{Code, Mode};
use phoebus_proto::units::Span;
use std::time::Duration;
use tokio::time::timeout;

/// Asks the destination of `request`, which has accepted the connection `stream`, to take the session. It must answer
/// within `limit`. After success, the next byte belongs to the session.
pub(crate) async fn ask(name: &str, request: &Request, stream: &Stream, limit: Duration) -> Result<(), Refusal> {
    let destination = request.destination.to_string();
    let refused = |code, reason| Refusal::at(&destination, code, reason);
    let manner = HopOptions { mode: Mode::Raw, streams: 1, padding: 0 };
    let asking = request.onward(name, manner, |open| {
        // This gateway sends the destination its datagrams.
        let open = Open { datagrams: false, required: open.required & !feature::DATAGRAMS, ..*open };
        Asking::connect(Vec::new(), Vec::new(), &Hello::of(name), None, &open)
    });
    let mut asking = asking.map_err(|error| {
        Refusal::new(Code::Internal, format!("the request cannot be passed to {destination}: {error}"))
    })?;
    match timeout(limit, answer(stream, &mut asking, &mut false)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let code = match &error {
                HandshakeError::Closed => Code::Reset,
                HandshakeError::Io(error) => code_of(error),
                HandshakeError::Protocol(_) | HandshakeError::Login(_) => Code::Protocol,
            };
            return Err(refused(code, format!("{destination} does not take part in sessions (aware): {error}")));
        }
        Err(_) => {
            let limit = Span(limit);
            let reason = format!("{destination} did not answer within {limit}; does it take part in sessions (aware)?");
            return Err(refused(Code::TimedOut, reason));
        }
    }
    match (asking.state(), asking.refused()) {
        (State::Opened, _) => Ok(()),
        (_, Some(said)) => {
            stream.disarm();
            let said = Refusal::passed_on(&said);
            let hop = if said.hop.is_empty() { destination } else { said.hop };
            Err(Refusal { hop, ..said })
        }
        _ => Err(refused(
            Code::AuthRequired,
            format!("{destination} wants authentication, which a gateway does not have"),
        )),
    }
}
