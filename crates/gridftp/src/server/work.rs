//! What sessions leave to be done: logging in, listening, names and listings. Transfers are in `moving`.

use super::answer::Failure;
use super::count::Counted;
use super::current::Shared;
use super::memory::Held;
use super::moving::{Alone, facts_line, lines};
use super::session::names::doubled;
#[cfg(feature = "kerberos")]
use super::session::secured::{Agreed, by_kerberos};
use super::session::task::{FileTask, Format, Identity, Listening, Outcome, Said, Task};
use super::stripes::Stripes;
use super::users::Served;
use crate::data::Channel;
use phoebus_files::key::Key;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, Sort, is_engines};
use phoebus_proto::gridftp::address::print_port;
use phoebus_proto::gridftp::command::Secret;
use phoebus_proto::gridftp::marker::{Perf, print_ranges};
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};

/// What a line of a listing takes beside its text.
const LINE_COST: usize = 32;

/// What works for one session.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) server: Arc<Shared>,
    /// Both ends of the control connection.
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// What an answer keeps until it has been said.
    pub(super) held: Held,
    /// Who is logged in.
    pub(super) served: Option<Served>,
    /// The data channel that is open, and of which generation of the session's address it is.
    pub(super) channel: Option<(u64, Channel)>,
    /// The port that its data channel listens on, so that other sessions of this server may connect there.
    pub(super) listens: Option<Counted<u16>>,
    /// The data nodes that are at work for it.
    pub(super) stripes: Option<Stripes>,
    /// How many bytes of a file the transfer that has just ended has sent.
    pub(super) sent: Option<u64>,
}

/// What a task in progress can say and hear.
#[derive(Debug)]
pub(super) struct Tell {
    pub(super) replies: mpsc::Sender<Reply>,
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) stop: watch::Receiver<bool>,
}

/// The question whether the client is there.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) answer: oneshot::Sender<bool>,
    /// Since when the client may have been killed, and its control connection's end be on its way; none where that is known otherwise.
    pub(super) doubted_since: Option<Instant>,
}

impl Tell {
    /// Says `reply` before the one that ends the task.
    pub(super) async fn say(&self, reply: Reply) {
        // Whoever has gone does not want to know.
        let _ = self.replies.send(reply).await;
    }

    /// Returns when the client wants no more of it, or has gone.
    pub(super) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            // Whoever could stop it is gone, and drops it.
            std::future::pending().await
        }
    }

    /// Whether the control connection has not ended, as far as is known now; or, where the client may have been killed at some moment,
    /// so long after it that its end would be here.
    pub(super) async fn is_client_there(&self, doubted_since: Option<Instant>) -> bool {
        let (answer, answered) = oneshot::channel();
        self.asks.send(Ask { answer, doubted_since }).await.is_ok() && answered.await.unwrap_or(false)
    }
}

impl Worker {
    /// Carries out `task`.
    pub(super) async fn perform(&mut self, task: Task, tell: &Tell) -> Outcome {
        let stoppable = task.is_stoppable();
        let done = match task {
            Task::Login { user, password, identity } => {
                (self.served, self.channel, self.stripes) = (None, None, None);
                return tokio::select! {
                    outcome = self.login(user, password, identity) => outcome,
                    // Who has gone waits for nothing.
                    () = tell.stopped() => Outcome::Login(None),
                };
            }
            #[cfg(feature = "kerberos")]
            Task::Agree(asking) => {
                let agreed = self.server.checks.ticket(self.peer.ip(), move || by_kerberos(*asking)).await;
                return Outcome::Agreed(agreed.unwrap_or_else(|| Agreed::Failed("not agreed".to_owned())));
            }
            Task::Transfer(transfer) => return Outcome::Answer(self.transfer(*transfer, tell).await),
            Task::ListenAndTransfer(transfer) => {
                let settings =
                    self.data_settings(&transfer.settings, transfer.third_party, transfer.guard.clone(), None);
                let at = match self.listen(Listening::Pasv, transfer.generation, settings) {
                    Ok(Outcome::Listening(_, addr)) => print_port(addr),
                    Ok(_) => None,
                    Err(failure) => return Outcome::Answer(failure.reply()),
                };
                let Some(at) = at else {
                    return Outcome::Answer(Reply::new(425, "pasv has no form for IPv6; EPSV before it has"));
                };
                tell.say(Reply::new(127, format!("PORT ({at})"))).await;
                return Outcome::Answer(self.transfer(*transfer, tell).await);
            }
            Task::Listen { answer, generation, third_party, settings, guard } => {
                self.listen(answer, generation, self.data_settings(&settings, third_party, guard, None))
            }
            Task::ListenOnNodes { generation, settings, guard } => {
                self.channel = None;
                let listening = self.listen_on_nodes(generation, &settings, guard.as_ref()).await;
                listening.map(Outcome::Striped)
            }
            Task::Vouched { user, client } => {
                self.served = self.server.users.vouched(&user, client);
                self.peer.set_ip(client);
                return Outcome::Login(self.served.as_ref().map(|served| served.account.clone()));
            }
            Task::Allocate(bytes) => {
                let limited = self.served.as_ref().and_then(|served| served.limited.clone());
                let room = match limited {
                    Some(limited) => limited.room(bytes).await,
                    None => Ok(()),
                };
                room.map(|()| Outcome::Answer(Reply::new(200, format!("{bytes} bytes are expected"))))
                    .map_err(Failure::from)
            }
            Task::Enter(key) => self.enter(key).await,
            Task::Find(key) => self.find(key).await,
            Task::File(task) => {
                let change = change(&task);
                let done = tokio::select! {
                    done = self.file(task) => done,
                    () = tell.stopped(), if stoppable => Err(Failure::Stopped),
                };
                if let Some(what) = change {
                    self.noted(&what, done.as_ref().map_err(Failure::reply));
                }
                done.map(Outcome::Answer)
            }
        };
        done.unwrap_or_else(|failure| Outcome::Answer(failure.reply()))
    }

    /// Looks who `user` is; a password when its turn has come.
    async fn login(&mut self, user: String, password: Secret, identity: Option<Identity>) -> Outcome {
        let (server, peer) = (self.server.clone(), self.peer);
        let by = if identity.is_some() { "certificate or ticket" } else { "password" };
        let known = server.users.knows(&user);
        // The log has no names that the configuration lacks: one may be a password that was typed too early.
        let name = if known { user.clone() } else { "(unknown)".to_owned() };
        let served = match identity {
            Some(identity) => server.users.mapped(&user, &identity),
            None if server.users.needs_no_password(&user) => server.users.login(&user, &password.0, peer.ip()),
            None => {
                let users = server.clone();
                let check = move || users.users.login(&user, &password.0, peer.ip());
                let check = server.checks.password((peer.ip(), &name), server.config.limits.delays(), check);
                match tokio::time::timeout(server.config.limits.login.0, check).await {
                    Ok(served) => served,
                    Err(_) => {
                        tracing::warn!(%peer, user = name, "a login was not looked at in time, for too many were waiting");
                        return Outcome::Answer(Reply::new(421, "too many logins are waiting; try again later"));
                    }
                }
            }
        };
        if served.is_none() {
            let seconds = server.checks.owed((peer.ip(), &name), server.config.limits.delays()).as_secs_f64();
            tracing::warn!(%peer, user = name, by, seconds, "a login failed, and the next password from there waits");
        }
        self.served = served;
        Outcome::Login(self.served.as_ref().map(|served| served.account.clone()))
    }

    /// Has the log know of what was changed, or was not.
    fn noted(&self, what: &str, done: Result<&Reply, Reply>) {
        let (peer, user) = (self.peer, self.served.as_ref().map_or("", |served| served.account.name.as_str()));
        match done {
            Ok(_) => tracing::info!(%peer, user, %what, "changed"),
            Err(reply) => tracing::info!(%peer, user, %what, code = reply.code, why = reply.text(), "not changed"),
        }
    }

    pub(super) fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        let served = self.served.as_ref().map(|served| served.store.clone());
        served.ok_or_else(|| Failure::say(530, "log in first"))
    }

    fn listen(
        &mut self,
        answer: Listening,
        generation: u64,
        settings: crate::data::Settings,
    ) -> Result<Outcome, Failure> {
        // The one before gives its port back first.
        self.channel = None;
        let channel = Channel::listening(self.local.ip(), settings)?;
        let lost = || Failure::say(425, "no address is listened on");
        let mut addr = channel.local_addr().ok_or_else(lost)?;
        if let Some(public) = self.server.config.data.public.filter(|public| public.is_ipv4() == addr.is_ipv4()) {
            addr.set_ip(public);
        }
        self.listens = self.server.data_ports.add(addr.port(), usize::MAX);
        self.channel = Some((generation, channel));
        Ok(Outcome::Listening(answer, addr))
    }

    async fn enter(&self, key: Key) -> Result<Outcome, Failure> {
        let meta = self.store()?.stat(&key).await?;
        if meta.kind != Kind::Dir {
            return Err(kind(&key, meta.kind, "a directory"));
        }
        Ok(Outcome::Entered(key))
    }

    async fn find(&self, key: Key) -> Result<Outcome, Failure> {
        match self.store()?.stat(&key).await {
            Ok(_) => Ok(Outcome::Exists(key)),
            // A link that leads nowhere has a name all the same.
            Err(error) if error.sort() != Sort::NotFound => Ok(Outcome::Exists(key)),
            Err(error) => Err(error.into()),
        }
    }

    async fn file(&mut self, task: FileTask) -> Result<Reply, Failure> {
        match &task {
            FileTask::MakeDir(key) | FileTask::RemoveDir(key) => nobodys(key)?,
            FileTask::Set { key, .. } | FileTask::Checksum { key, .. } => nobodys(key)?,
            FileTask::Rename(from, to) => nobodys(from).and_then(|()| nobodys(to))?,
            // They are there to be looked at, and removed.
            FileTask::Remove(_) | FileTask::Size { .. } | FileTask::Modified(_) => {}
            FileTask::Facts { .. } | FileTask::List { .. } => {}
        }
        let store = self.store()?;
        let done = |text: &str| Reply::new(250, text);
        Ok(match task {
            FileTask::MakeDir(key) => {
                store.make_dir(&key).await?;
                let name = doubled(&[b"/", key.as_bytes()].concat());
                Reply::new(257, [b"\"", &name[..], b"\" is made"].concat())
            }
            FileTask::RemoveDir(key) => {
                store.remove_dir(&key).await?;
                done("the directory is removed")
            }
            FileTask::Remove(key) => {
                // A name of the server's own is taken from under no transfer.
                match is_engines(key.name()) {
                    true => store.discard(&key, None).await?,
                    false => store.remove(&key).await?,
                }
                done("removed")
            }
            FileTask::Rename(from, to) => {
                store.rename(&from, &to, true).await?;
                done("renamed")
            }
            FileTask::Size { key, ascii } => {
                let meta = store.stat(&key).await?;
                match meta.size {
                    Some(_) if ascii => Reply::new(550, "the size is known for TYPE I only"),
                    Some(size) => Reply::new(213, size.to_string()),
                    None => return Err(kind(&key, meta.kind, "a file")),
                }
            }
            FileTask::Modified(key) => match store.stat(&key).await?.modified {
                Some(time) => Reply::new(213, Stamp { seconds: time.seconds, nanos: 0 }.to_string()),
                None => Reply::new(550, "it is not known when it was modified"),
            },
            FileTask::Set { key, attributes, said } => {
                store.set(&key, attributes).await?;
                match said {
                    Said::Modify(time, path) => {
                        let stamp = Stamp { seconds: time.seconds, nanos: time.nanos };
                        Reply::new(213, [format!("Modify={stamp}; ").as_bytes(), &path].concat())
                    }
                    Said::Done => done("set"),
                }
            }
            FileTask::Checksum { key, algorithm, offset, length } => {
                let object = store.open(&key).await?;
                let Some(size) = object.meta().size else { return Err(kind(&key, object.meta().kind, "a file")) };
                let rest = size.checked_sub(offset).filter(|rest| length.is_none_or(|length| length <= *rest));
                let extent = rest.and_then(|rest| Extent::new(offset, length.unwrap_or(rest)));
                let extent = extent.ok_or_else(|| Failure::say(554, format!("there are only {size} bytes")))?;
                Reply::new(213, object.checksum(algorithm, extent).await?.to_string())
            }
            FileTask::Facts { key, shown, facts, read_only } => {
                let meta = store.stat(&key).await?;
                let refuses_drafts = meta.kind == Kind::Dir && matches!(store.is_for_drafts(&key).await, Ok(false));
                let is_link = matches!(store.stat_link(&key).await, Ok(own) if own.kind == Kind::Link);
                let line = facts_line(&shown, &meta, &Alone { refuses_drafts, is_link }, facts, read_only);
                let line = line.ok_or_else(|| Failure::say(553, "its name cannot be listed"))?;
                Reply::of_lines(250, [b"Listing:".to_vec(), [b" ", &line[..]].concat(), b"End".to_vec()])
            }
            FileTask::List { key, format, code } => {
                listing(store, (key, format), code, self.server.config.limits.listing.0, &mut self.held).await?
            }
        })
    }
}

/// Refuses the names of the server's own drafts: they hold what others send, and what a client put there would be taken for that.
///
/// # Errors
/// The answer.
pub(super) fn nobodys(key: &Key) -> Result<(), Failure> {
    match is_engines(key.name()) {
        true => Err(Failure::say(553, format!("{} is a name of the server's own drafts", quoted(key)))),
        false => Ok(()),
    }
}

/// What a task changes, as the log says it; none, if it only looks.
fn change(task: &FileTask) -> Option<String> {
    Some(match task {
        FileTask::MakeDir(key) => format!("make directory {}", quoted(key)),
        FileTask::RemoveDir(key) => format!("remove directory {}", quoted(key)),
        FileTask::Remove(key) => format!("remove {}", quoted(key)),
        FileTask::Rename(from, to) => format!("rename {} to {}", quoted(from), quoted(to)),
        FileTask::Set { key, .. } => format!("set attributes of {}", quoted(key)),
        _ => return None,
    })
}

/// A path as the log has it: no name can be taken for more than a name, or for another line.
pub(super) fn quoted(key: &Key) -> String {
    format!("\"/{}\"", key.to_string().replace('"', "\\\""))
}

/// A listing as an answer.
async fn listing(
    store: Arc<dyn Store>,
    (key, format): (Key, Format),
    code: u16,
    most: u64,
    held: &mut Held,
) -> Result<Reply, Failure> {
    let mut listed = lines(store, key, format).await?;
    let mut all = vec![b"Listing:".to_vec()];
    let mut bytes = 0;
    while let Some(lines) = listed.more().await? {
        for line in lines {
            bytes += line.len() as u64 + 3;
            if bytes > most {
                return Err(Failure::say(
                    552,
                    "the listing is too long for the control channel; MLSD and LIST have no limit",
                ));
            }
            // The text is there twice while it is said: as lines, and as they are sent.
            if !held.try_add((2 * line.len() + LINE_COST) as u64) {
                return Err(Failure::say(
                    450,
                    "too many listings wait to be read on control channels; try again later, or MLSD and LIST",
                ));
            }
            all.push([b" ", &line[..]].concat());
        }
    }
    all.push(b"End".to_vec());
    Ok(Reply::of_lines(code, all))
}

fn kind(key: &Key, is: Kind, expected: &'static str) -> Failure {
    Error::Kind { name: format!("/{key}"), is: is.described(), expected }.into()
}

/// A performance marker: of one stripe, since a server is one.
pub(super) fn perf(bytes: u64) -> Reply {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tenths = u64::try_from(now.as_millis() / 100).unwrap_or(u64::MAX);
    Reply::of_lines(112, Perf { tenths, stripe: 0, bytes, stripes: 1 }.lines())
}

/// A range marker.
pub(super) fn ranges(ranges: &Ranges) -> Reply {
    Reply::new(111, print_ranges(ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_names_in_the_log() {
        let key = |text: &str| Key::parse(text).unwrap();
        assert_eq!(quoted(&key("a b/c")), "\"/a b/c\"");
        assert_eq!(quoted(&key("x\" bytes=5\n\\")), "\"/x\\\" bytes=5\\u{a}\\\\\"");
        let renamed = change(&FileTask::Rename(key("a"), key("b"))).unwrap();
        assert_eq!(renamed, "rename \"/a\" to \"/b\"");
        assert!(change(&FileTask::Modified(key("a"))).is_none());
    }
}
