//! A bounded channel of blocks from a task to the readers of a flow. All readers see its end, or its failure.

use phoebus_files::Error;
use phoebus_files::block::Block;
use tokio::sync::{Mutex, mpsc};

/// A block; `None` once, at the end.
pub(crate) type BlockResult<E> = Result<Option<Block>, E>;

/// Most blocks in the channel, for a few readers. Pools bound the rest.
const BETWEEN: usize = 4;

/// The receiving end.
#[derive(Debug)]
pub(crate) struct BlockChannel<E> {
    state: Mutex<State<E>>,
}

#[derive(Debug)]
struct State<E> {
    from: mpsc::Receiver<BlockResult<E>>,
    ended: Option<Result<(), Error>>,
}

impl<E: Into<Error>> BlockChannel<E> {
    /// Makes a channel: the sending end, and the receiving end.
    pub(crate) fn new() -> (mpsc::Sender<BlockResult<E>>, Self) {
        let (sender, from) = mpsc::channel(BETWEEN);
        (sender, Self { state: Mutex::new(State { from, ended: None }) })
    }

    /// The next block. Cancel safe. All readers see the same end.
    ///
    /// # Errors
    /// The task's error, or `lost` if the task ended without a word.
    pub(crate) async fn next(&self, lost: impl FnOnce() -> Error) -> Result<Option<Block>, Error> {
        let mut state = self.state.lock().await;
        if state.ended.is_none() {
            state.ended = match state.from.recv().await {
                Some(Ok(Some(block))) => return Ok(Some(block)),
                Some(Ok(None)) => Some(Ok(())),
                Some(Err(error)) => Some(Err(error.into())),
                None => Some(Err(lost())),
            };
        }
        match &state.ended {
            Some(Err(error)) => Err(error.again()),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_files::ErrorKind;

    fn lost() -> Error {
        Error::Store { name: "x".into(), reason: "lost".into(), kind: ErrorKind::Passing }
    }

    #[tokio::test]
    async fn all_consumers_see_the_same_end() {
        let (sender, channel) = BlockChannel::<Error>::new();
        sender.send(Ok(Some(Block::new(0, b"ab".to_vec())))).await.unwrap();
        sender.send(Err(Error::Changed { name: "x".into() })).await.unwrap();
        drop(sender);
        assert_eq!(channel.next(lost).await.unwrap().unwrap().len(), 2);
        for _ in 0..2 {
            let error = channel.next(lost).await.unwrap_err();
            assert!(matches!(error, Error::Changed { .. }), "{error}");
        }
        let (sender, channel) = BlockChannel::<Error>::new();
        sender.send(Ok(None)).await.unwrap();
        drop(sender);
        for _ in 0..2 {
            assert!(channel.next(lost).await.unwrap().is_none());
        }
        let (sender, channel) = BlockChannel::<Error>::new();
        drop(sender);
        for _ in 0..2 {
            assert_eq!(channel.next(lost).await.unwrap_err().to_string(), "x: lost");
        }
    }
}
