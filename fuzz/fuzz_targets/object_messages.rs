//! Feeds any bytes to the reader of an object transfer's control stream: what is read encodes to what reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phoebus_proto::object::Inbox;

fuzz_target!(|data: &[u8]| {
    let mut inbox = Inbox::default();
    inbox.push(data);
    while let Ok(Some(message)) = inbox.pop() {
        let mut again = (Vec::new(), Inbox::default());
        message.encode(&mut again.0);
        again.1.push(&again.0);
        assert_eq!(again.1.pop(), Ok(Some(message)));
    }
});
