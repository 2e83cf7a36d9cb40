//! Blocks that a task of its own hands to whoever takes them, as a flow gives them: its end is for everybody, and so is its failure.

use phoebus_files::Error;
use phoebus_files::block::Block;
use tokio::sync::{Mutex, mpsc};

/// A block; none at the end, which is given once.
pub(crate) type Given<E> = Result<Option<Block>, E>;

/// How many blocks are between the two, for each of a few that take some; pools bound the rest.
const BETWEEN: usize = 4;

/// Where blocks are taken.
#[derive(Debug)]
pub(crate) struct Handed<E> {
    state: Mutex<State<E>>,
}

#[derive(Debug)]
struct State<E> {
    from: mpsc::Receiver<Given<E>>,
    ended: Option<Result<(), Error>>,
}

impl<E: Into<Error>> Handed<E> {
    /// Where the task hands them in, and where they are taken.
    pub(crate) fn new() -> (mpsc::Sender<Given<E>>, Self) {
        let (sender, from) = mpsc::channel(BETWEEN);
        (sender, Self { state: Mutex::new(State { from, ended: None }) })
    }

    /// The next; cancel safe. Several may take some: whatever ended it, all of them hear the same.
    ///
    /// # Errors
    /// The task's, and what `lost` says where it has ended without saying that this was all.
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
    use phoebus_files::Sort;

    fn lost() -> Error {
        Error::Store { name: "x".into(), reason: "lost".into(), sort: Sort::Passing }
    }

    #[tokio::test]
    async fn all_who_take_hear_of_the_same_end() {
        let (hand, handed) = Handed::<Error>::new();
        hand.send(Ok(Some(Block::new(0, b"ab".to_vec())))).await.unwrap();
        hand.send(Err(Error::Changed { name: "x".into() })).await.unwrap();
        drop(hand);
        assert_eq!(handed.next(lost).await.unwrap().unwrap().len(), 2);
        for _ in 0..2 {
            let error = handed.next(lost).await.unwrap_err();
            assert!(matches!(error, Error::Changed { .. }), "{error}");
        }
        let (hand, handed) = Handed::<Error>::new();
        hand.send(Ok(None)).await.unwrap();
        drop(hand);
        for _ in 0..2 {
            assert!(handed.next(lost).await.unwrap().is_none());
        }
        let (hand, handed) = Handed::<Error>::new();
        drop(hand);
        for _ in 0..2 {
            assert_eq!(handed.next(lost).await.unwrap_err().to_string(), "x: lost");
        }
    }
}
