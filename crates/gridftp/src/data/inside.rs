//! Data connections inside another byte stream, one after the other (`docs/protocol/gridftp.md`, "Data inside SSH").
//! Frames distinguish an end from a cut, which a process in between cannot.

use phoebus_net::pair::Ends;
use phoebus_proto::gridftp::inside::{Frame, HEAD, MAX_DATA};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// The start of the next frame.
pub(crate) async fn next(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Frame> {
    let mut head = [0; HEAD];
    from.read_exact(&mut head).await?;
    Frame::decode(head).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sends a frame without data.
pub(crate) async fn say(to: &mut (impl AsyncWriteExt + Unpin), frame: Frame) -> io::Result<()> {
    to.write_all(&frame.encode()).await
}

/// Carries one data connection over `io`, from and to the other end of `pair`, until both ends are done. Then `io` is
/// ready for the next.
///
/// # Errors
/// `io` failed, or a frame is invalid. Then the near end is cut.
pub(crate) async fn carry(io: &mut UnixStream, pair: UnixStream, ends: &Ends) -> io::Result<()> {
    let (mut from, mut to) = io.split();
    let (mut said, mut heard) = pair.into_split();
    let given_up = Notify::new();
    let out = async {
        let mut room = vec![0; HEAD + MAX_DATA];
        loop {
            let read = tokio::select! {
                read = said.read(&mut room[HEAD..]) => read.unwrap_or(0),
                () = given_up.notified() => 0,
            };
            if read == 0 {
                let last = if ends.closed_in_order() { Frame::End } else { Frame::Reset };
                return say(&mut to, last).await;
            }
            room[..HEAD].copy_from_slice(&Frame::Data(read).encode());
            to.write_all(&room[..HEAD + read]).await?;
        }
    };
    let back = async {
        let mut room = vec![0; MAX_DATA];
        // After the near end was dropped, incoming data is read and discarded.
        let mut taken = true;
        loop {
            match next(&mut from).await? {
                Frame::Data(len) => {
                    from.read_exact(&mut room[..len]).await?;
                    taken = taken && heard.write_all(&room[..len]).await.is_ok();
                }
                Frame::End => {
                    ends.mark_clean_close();
                    // The near end is gone.
                    let _ = heard.shutdown().await;
                    return Ok(());
                }
                Frame::Reset => {
                    let _ = heard.shutdown().await;
                    given_up.notify_one();
                    return Ok(());
                }
                Frame::Open(_) | Frame::Opened | Frame::Refused => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a data connection began within another"));
                }
            }
        }
    };
    tokio::try_join!(out, back).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_net::Stream;
    use phoebus_net::pair::Pair;
    use std::sync::Arc;

    /// Makes a data connection that `io` carries, and the task that carries it, which returns `io`.
    fn near(mut io: UnixStream) -> (Stream, tokio::task::JoinHandle<io::Result<UnixStream>>) {
        let addr = "192.0.2.1:1".parse().unwrap();
        let (pair, other) = Pair::in_process().unwrap();
        let ends = Arc::new(Ends::default());
        let stream = pair.into_stream_with_ends((addr, addr), ends.clone());
        let task = tokio::spawn(async move {
            carry(&mut io, other, &ends).await?;
            Ok(io)
        });
        (stream, task)
    }

    async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            stream.writable().await?;
            match stream.try_write(bytes, false) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read_all(stream: &Stream) -> io::Result<Vec<u8>> {
        let (mut all, mut room) = (Vec::new(), vec![0; 9999]);
        loop {
            stream.readable().await?;
            match stream.try_read(&mut room) {
                Ok(0) => return Ok(all),
                Ok(len) => all.extend_from_slice(&room[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    #[tokio::test]
    async fn connections_follow_each_other_on_one_stream() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        for _ in 0..3 {
            let ((client, first), (server, second)) = (near(one), near(other));
            let bytes: Vec<u8> = (0..500_000u32).map(|i| i as u8).collect();
            let (put, got) = tokio::join!(
                async {
                    write_all(&client, &bytes).await?;
                    client.shutdown_write()
                },
                read_all(&server)
            );
            put.unwrap();
            assert!(got.unwrap() == bytes);
            server.disarm();
            drop(server);
            assert_eq!(read_all(&client).await.unwrap(), b"");
            drop(client);
            (one, other) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        }
    }

    #[tokio::test]
    async fn abandoned_or_cut_connection_never_looks_complete() {
        // Dropped without an end.
        let (one, other) = UnixStream::pair().unwrap();
        let ((client, first), (server, second)) = (near(one), near(other));
        write_all(&client, b"half").await.unwrap();
        drop(client);
        assert_eq!(read_all(&server).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        drop(server);
        let (one, other) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        // The sender to a dropped end is told, and the stream can be used again.
        let ((client, first), (server, second)) = (near(one), near(other));
        drop(server);
        assert!(write_all(&client, &vec![0; 50_000_000]).await.is_err());
        drop(client);
        let (one, mut other) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        // The stream ends within a frame, or has an invalid one.
        let (client, first) = near(one);
        other.write_all(&[&Frame::Data(4).encode()[..], b"ab"].concat()).await.unwrap();
        drop(other);
        assert_eq!(read_all(&client).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(first.await.unwrap().is_err());
        let (one, mut other) = UnixStream::pair().unwrap();
        let (client, first) = near(one);
        other.write_all(&[9; 5]).await.unwrap();
        assert_eq!(read_all(&client).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(first.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
