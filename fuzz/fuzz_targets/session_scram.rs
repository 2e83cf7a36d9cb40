//! SCRAM's messages (RFC 5802) from anyone, to both ends: nobody is proved, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::session::auth::scram::{Acceptor, Initiator, Keys, Login, Salting, Verifier, Verifiers};
use phoebus_proto::session::auth::{Check, Verdict};

struct Only(Verifier);

impl Verifiers for Only {
    fn verifier(&self, _: &str) -> Verifier {
        self.0
    }
}

fuzz_target!(|input: (bool, &[u8], &[u8])| {
    let (is_bound, first, second) = input;
    let keys = Keys::of(Salting::new(b"salt", 4096).expect("it is short"), &[7; 32]);
    let binding = [9; 32];
    let binding = is_bound.then_some(&binding);
    let mut acceptor = Acceptor::new(Only(keys.verifier()), binding.copied(), [1; _]);
    for message in [first, second] {
        // A right proof needs the keys.
        assert!(!matches!(acceptor.receive(message), Verdict::Proven(_)));
    }
    let login = Login { user: "ada", keys: &keys, binding };
    let (mut initiator, mut room) = (Initiator::new([2; _]), [0; 1024]);
    initiator.first(&login, &mut room).expect("it fits");
    let _ = Initiator::salting(first);
    let _ = initiator.answer(&login, first, &mut room);
    let _ = initiator.conclude(second);
    assert!(!initiator.is_over());
});
