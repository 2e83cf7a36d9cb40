//! Retrieves many short files from a GridFTP server, over one data connection in extended block mode, which the server
//! opens and keeps.
//!
//! A reply that a file cannot be sent may come after the next file's bytes. So a refusal ends the batch, and each file
//! counts only with the checksum that the server tells for its name.

use super::super::commands::facts_of;
use super::super::error::{data as of_data, passing};
use super::super::listing::meta_of;
use super::super::remote::Remote;
use super::super::session::Session;
use super::MOST_BYTES;
use super::pipelined::{ask_in_order, ends};
use crate::data::{self, Mode};
use bytes::Bytes;
use phoebus_files::Error;
use phoebus_files::job::SHORT;
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Kind, Meta, ShortObject};
use phoebus_files::sum::{Algorithm, Sum};
use phoebus_proto::gridftp::reply::Reply;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Replies of a server that has not reached this end (RFC 959, section 4.2.2).
const CANNOT_CONNECT: u16 = 425;
const CONNECTION_CLOSED: u16 = 426;
/// How long the server may take to connect, at least, and in round trips.
const REACH: Duration = Duration::from_secs(5);
const REACH_TRIPS: u32 = 50;

/// Gets objects. `None` for those that have to be carried alone.
pub(super) async fn get(
    remote: &Remote,
    keys: &[Key],
    algorithm: Algorithm,
) -> Result<Vec<Option<ShortObject>>, Error> {
    let state = &remote.0.pipelining;
    let begun = Instant::now();
    // Connections that the server makes bypass gateways, and need a known peer.
    let is_way = remote.options().way.is_none() && remote.plan().knows_peers();
    let is_usable = is_way && !state.is_unreachable() && !state.is_hopeless();
    let mut usable = Vec::new();
    for (at, key) in keys.iter().enumerate().filter(|_| is_usable) {
        if remote.sayable(key).await.is_ok() && remote.path(key).is_ok() {
            usable.push(at);
        }
    }
    let mut objects: Vec<Option<ShortObject>> = vec![None; keys.len()];
    if usable.is_empty() {
        return Ok(objects);
    }
    let some: Vec<&Key> = usable.iter().map(|at| &keys[*at]).collect();
    let got = retrieve_all(remote, &some, algorithm).await;
    state.note(begun, got.is_ok());
    match got {
        Ok(got) => usable.into_iter().zip(got).for_each(|(at, object)| objects[at] = object),
        Err(error) => tracing::debug!(server = %remote.0.name, %error, "a batch of short files was not retrieved"),
    }
    Ok(objects)
}

async fn retrieve_all(remote: &Remote, keys: &[&Key], algorithm: Algorithm) -> Result<Vec<Option<ShortObject>>, Error> {
    let mut session = remote.session().await?;
    let metas = metas(remote, &mut session, keys).await?;
    let there: Vec<usize> = (0..keys.len()).filter(|at| metas[*at].is_some()).collect();
    let mut objects = vec![None; keys.len()];
    if there.is_empty() {
        remote.keep(session);
        return Ok(objects);
    }
    let plan = remote.plan();
    plan.enter(&mut session, Mode::Extended).await?;
    plan.parallel(&mut session, 1).await?;
    let channel = plan.active(&mut session).await?;
    let mut lines = Vec::new();
    for at in &there {
        lines.push(remote.line("RETR", keys[*at])?);
    }
    for at in &there {
        lines.push(remote.sum_line(keys[*at], algorithm, 0, None)?);
    }
    let (files, mut sums) = (there.len(), Vec::new());
    let is_connected = AtomicBool::new(false);
    let unreached = || remote.0.pipelining.note_unreachable();
    session.is_transferring = true;
    let answered = ask_in_order(&mut session, &lines, |number, reply| match number.checked_sub(files) {
        Some(at) => {
            sums.push(remote.sum_in(keys[there[at]], algorithm, reply).ok());
            Ok(())
        }
        None if reply.is_success() => Ok(()),
        None => {
            // Other codes may also mean that. If so, batches fail until they are given up.
            if matches!(reply.code, CANNOT_CONNECT | CONNECTION_CLOSED) && !is_connected.load(Ordering::Relaxed) {
                unreached();
            }
            Err(ends(remote, &lines[number], &reply))
        }
    });
    let contents = async {
        let connected = || is_connected.store(true, Ordering::Relaxed);
        let contents = channel.receive_files(files, MOST_BYTES, connected).await;
        contents.map_err(|error| {
            if matches!(error, data::Error::Nobody(_)) {
                unreached();
            }
            of_data(&remote.0.name, error)
        })
    };
    let connects = async {
        sleep(REACH.max(remote.0.rtt * REACH_TRIPS)).await;
        if is_connected.load(Ordering::Relaxed) {
            std::future::pending().await
        }
        // Address translation or a firewall is in the way of the server's connections.
        unreached();
        Err(passing(&remote.0.name, "the server has not connected to this end"))
    };
    let transfer = async {
        let (mut contents, mut answered) = (pin!(contents), pin!(answered));
        tokio::select! {
            all = &mut contents => {
                let all = all?;
                answered.await.map(|()| all)
            }
            all = &mut answered => {
                all?;
                // The server has sent all by now, and data that never end belong to no file.
                let late = |_| passing(&remote.0.name, "data keep coming after all files were sent");
                timeout(remote.options().stall_timeout, contents).await.map_err(late)?
            }
        }
    };
    let contents = tokio::select! {
        done = transfer => done?,
        unconnected = connects => unconnected?,
    };
    session.is_transferring = false;
    for ((at, content), sum) in there.into_iter().zip(contents).zip(sums) {
        objects[at] = object(keys[at], metas[at], content, sum);
    }
    remote.keep_after(session).await;
    Ok(objects)
}

/// The metadata of short files that the server lets read. They are read before the content: a file that changes meanwhile
/// then has an old time, and is carried again.
async fn metas(remote: &Remote, session: &mut Session, keys: &[&Key]) -> Result<Vec<Option<Meta>>, Error> {
    let mut lines = Vec::new();
    for key in keys {
        lines.push(remote.line("MLST", key)?);
    }
    let mut metas = Vec::new();
    let asked = ask_in_order(session, &lines, |number, reply| {
        metas.push(short_file(remote, keys[number], &reply));
        Ok(())
    });
    asked.await?;
    Ok(metas)
}

fn short_file(remote: &Remote, key: &Key, reply: &Reply) -> Option<Meta> {
    let (facts, name) = facts_of(reply).filter(|_| reply.code == 250)?;
    let may_read = facts.perm.as_ref().is_none_or(|perm| perm.contains('r'));
    let meta = meta_of(&facts);
    // Some servers report a link with the type of its target, and the mode of links.
    let is_file = meta.kind == Kind::File && meta.mode != Some(0o777) && meta.size.is_some_and(|size| size <= SHORT);
    (may_read && is_file && remote.same_name(key, &name).is_ok()).then_some(meta)
}

/// The object with this content, if it has the size and the checksum that the server tells.
fn object(key: &Key, meta: Option<Meta>, bytes: Option<Vec<u8>>, sum: Option<Sum>) -> Option<ShortObject> {
    let (meta, bytes, sum) = (meta?, Bytes::from(bytes?), sum?);
    let attributes = Attributes { mode: meta.mode, modified: meta.modified };
    let object = ShortObject { key: key.clone(), bytes, sum, attributes, at_most: None, before: None };
    (meta.size == Some(object.bytes.len() as u64) && object.is_whole()).then_some(object)
}
