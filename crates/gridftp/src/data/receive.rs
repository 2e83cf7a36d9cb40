//! Receives a flow.

use super::channel::Channel;
use super::error::Error;
use super::intake::Intake;
use super::settings::Mode;
use crate::block_channel::BlockChannel;
use phoebus_files::block::Block;
use phoebus_files::store::{Fallible, Flow};
use std::fmt;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A flow that comes over a data channel. It ends ([`Flow::next`] returns `None`) only after everything has come.
/// Dropping it cuts the transfer.
pub struct Incoming {
    blocks: BlockChannel<Error>,
    work: JoinHandle<()>,
}

impl Channel {
    /// Starts to receive.
    pub fn receive(&self, mode: Mode, intake: Intake) -> Arc<Incoming> {
        let (sender, blocks) = BlockChannel::new();
        let inner = self.0.clone();
        if let Some(security) = &inner.settings.security {
            security.begin();
        }
        let work = tokio::spawn(async move {
            // The port is free when this ends: the receiver may want to listen on it next.
            let received = inner.transfer(mode).receive(inner.clone(), intake, sender.clone()).await;
            drop(inner);
            // An error means that the reader is gone.
            let _ = sender.send(received.map(|()| None)).await;
        });
        Arc::new(Incoming { blocks, work })
    }
}

impl Flow for Incoming {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        // The task ended without reporting completion.
        Box::pin(self.blocks.next(|| Error::GivenUp.into()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use phoebus_files::block::Pool;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    #[tokio::test]
    async fn slow_data_is_passed_on_before_a_block_is_full() {
        let channel = Channel::listening(Ipv4Addr::LOCALHOST.into(), Settings::default()).unwrap();
        let intake = Intake { pool: Pool::new(1 << 20, 4), from: 7, expected: None, into: None };
        let incoming = channel.receive(Mode::Stream, intake);
        let mut sender = TcpStream::connect(channel.local_addr().unwrap()).unwrap();
        for (at, text) in [(7, "slow"), (11, "ly")] {
            sender.write_all(text.as_bytes()).unwrap();
            let block = incoming.next().await.unwrap().unwrap();
            assert_eq!(block, Block::new(at, text));
        }
        drop(sender);
        assert!(incoming.next().await.unwrap().is_none());
    }
}
