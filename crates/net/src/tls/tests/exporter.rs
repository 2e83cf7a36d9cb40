//! The binding of a connection is what others export: here rustls's buffered connections.

use super::{CREDENTIALS, Intake, Mode, client};
use crate::tls::engine::Engine;
use phoebus_proto::session::auth::scram::EXPORTER;
use rustls::ServerConnection;

/// Moves what each end has to send to the other.
fn exchange(engine: &mut Engine, server: &mut ServerConnection) {
    let out = engine.outgoing().to_vec();
    engine.sent(out.len());
    let mut rest = &out[..];
    while !rest.is_empty() {
        server.read_tls(&mut rest).unwrap();
        server.process_new_packets().unwrap();
    }
    let mut back = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut back).unwrap();
    }
    let mut rest = &back[..];
    while !rest.is_empty() {
        let space = engine.space();
        let n = space.len().min(rest.len());
        space[..n].copy_from_slice(&rest[..n]);
        engine.received(n).unwrap();
        rest = &rest[n..];
    }
}

#[test]
fn both_ends_export_the_same_and_other_connections_something_else() {
    let bindings = [0, 1].map(|_| {
        let mut engine = client(Intake::Exact, Mode::Encrypt);
        let config = CREDENTIALS.1.server_config(&[Mode::Encrypt.protocol()]);
        let mut server = ServerConnection::new(config).unwrap();
        assert_eq!(engine.channel_binding(), None);
        while engine.is_handshaking() || server.is_handshaking() {
            exchange(&mut engine, &mut server);
        }
        let theirs = server.export_keying_material([0; 32], EXPORTER.as_bytes(), None).unwrap();
        assert_eq!(engine.channel_binding(), Some(theirs));
        theirs
    });
    assert_ne!(bindings[0], bindings[1]);
}
