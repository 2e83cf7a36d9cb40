//! Lets a stranger send any tokens to the server of a control channel, and an attacker alter those of an honest client.
#![no_main]

#[path = "../../crates/gsi/tests/it/pure/world.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "made for tests")]
mod world;

use libfuzzer_sys::fuzz_target;
use phoebus_gsi::context::{Context, Delegation, Expect, Step};
use phoebus_gsi::control::ServerLogin;
use world::{HOST, NOW, WORLD};

fuzz_target!(|data: &[u8]| {
    let Some((&turn, change)) = data.split_first() else { return };
    if turn == 255 {
        let mut login = ServerLogin::new(&WORLD.endpoint(&WORLD.host));
        for line in String::from_utf8_lossy(change).split('\n').take(10) {
            let (verb, argument) = line.split_once(' ').unwrap_or((line, ""));
            assert!(!login.command(verb, argument, NOW).done, "a stranger was let in");
        }
        return;
    }
    let expect = Expect::Host(HOST.into());
    let started = Context::initiate(&WORLD.endpoint(&WORLD.user), expect, Delegation::Full, NOW);
    let Ok((mut client, mut token)) = started else { return };
    let Ok(mut server) = Context::accept(&WORLD.endpoint(&WORLD.host), Expect::Anyone, NOW) else { return };
    for at in 0..20 {
        if at == turn % 8 {
            // Each three bytes say where to alter, and how; what is left over is appended.
            let mut triples = change.chunks_exact(3);
            for triple in &mut triples {
                let place = usize::from(u16::from_be_bytes([triple[0], triple[1]])) % token.len().max(1);
                if let Some(byte) = token.get_mut(place) {
                    *byte ^= triple[2];
                }
            }
            token.extend_from_slice(triples.remainder());
        }
        let end = if at % 2 == 0 { &mut server } else { &mut client };
        match end.step(&token) {
            Ok(Step::Continue(next) | Step::Done(next)) => token = next,
            Err(_) => {
                end.alert();
                assert!(end.peer().is_none(), "a peer who was refused is known");
                return;
            }
        }
        if token.is_empty() {
            return;
        }
    }
});
