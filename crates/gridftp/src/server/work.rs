//! Tasks of sessions that need files or sockets: login, data listeners, names, listings. Transfers are in `transfer`.

use super::NOT_DONE;
use super::failure::Failure;
use super::identity::Identity;
use super::names::{nobodys, quoted};
#[cfg(feature = "kerberos")]
use super::session::gssapi::{TokenResult, check_kerberos_token};
use super::session::names::doubled;
use super::session::task::{Confirmation, FileTask, Format, Listening, Outcome, Task};
use super::transfer::{Alone, facts_line, lines};
use super::worker::{TaskClient, Worker};
use crate::data::Channel;
use phoebus_accounts::memory::Held;
use phoebus_files::key::Key;
use phoebus_files::range::Extent;
use phoebus_files::store::{Kind, Store};
use phoebus_files::{Error, ErrorKind, is_engines};
use phoebus_proto::gridftp::address::print_port;
use phoebus_proto::gridftp::command::Secret;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::sync::Arc;

/// Overhead of a line of a listing, in bytes.
const LINE_COST: usize = 32;

impl Worker {
    /// Carries out `task`.
    pub(super) async fn perform(&mut self, task: Task, client: &TaskClient) -> Outcome {
        let stoppable = task.is_stoppable();
        let done = match task {
            Task::Login { user, password, identity } => {
                self.sync_rest().await;
                self.close_channel();
                (self.served, self.stripes) = (None, None);
                return tokio::select! {
                    outcome = self.login(user, password, identity) => outcome,
                    // A client that is gone frees its place in the queue of logins.
                    () = client.stopped() => Outcome::Login(None),
                };
            }
            #[cfg(feature = "kerberos")]
            Task::CheckToken(asking) => {
                let agreed = self.server.checks.ticket(self.peer.ip(), move || check_kerberos_token(*asking)).await;
                return Outcome::TokenChecked(agreed.unwrap_or_else(|| TokenResult::Failed("not agreed".to_owned())));
            }
            Task::Transfer(transfer) => return Outcome::Answer(self.transfer(*transfer, client).await),
            Task::ListenAndTransfer(transfer) => {
                let settings =
                    self.data_settings(&transfer.settings, transfer.third_party, transfer.security.clone(), None);
                let at = match self.listen(Listening::Pasv, transfer.generation, settings) {
                    Ok(Outcome::Listening(_, addr)) => print_port(addr),
                    Ok(_) => None,
                    Err(failure) => return Outcome::Answer(failure.reply()),
                };
                let Some(at) = at else {
                    return Outcome::Answer(Reply::new(425, "pasv has no form for IPv6; EPSV before it has"));
                };
                client.send(Reply::new(127, format!("PORT ({at})"))).await;
                return Outcome::Answer(self.transfer(*transfer, client).await);
            }
            Task::Listen { answer, generation, third_party, settings, security } => {
                self.listen(answer, generation, self.data_settings(&settings, third_party, security, None))
            }
            Task::ListenOnNodes { generation, settings, security } => {
                self.close_channel();
                let listening = self.listen_on_nodes(generation, &settings, security.as_ref()).await;
                listening.map(Outcome::Striped)
            }
            Task::LoginByFront { user, client } => {
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
                    () = client.stopped(), if stoppable => Err(Failure::Stopped),
                };
                if let Some(what) = change {
                    self.log_change(&what, done.as_ref().map_err(Failure::reply));
                }
                done.map(Outcome::Answer)
            }
        };
        done.unwrap_or_else(|failure| Outcome::Answer(failure.reply()))
    }

    /// Logs `user` in. Passwords are checked a few at a time.
    async fn login(&mut self, user: String, password: Secret, identity: Option<Identity>) -> Outcome {
        let (server, peer) = (self.server.clone(), self.peer);
        let by = if identity.is_some() { "certificate or ticket" } else { "password" };
        let known = server.users.knows(&user);
        // Unknown names stay out of the log: one may be a password that was typed too early.
        let name = if known { user.clone() } else { "(unknown)".to_owned() };
        let served = match identity {
            Some(identity) => server.proofs.user_of(&user, &identity).and_then(|user| server.users.user(user)),
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

    /// Logs a change, or why it failed.
    fn log_change(&self, what: &str, done: Result<&Reply, Reply>) {
        let (peer, user) = (self.peer, self.served.as_ref().map_or("", |served| served.account.name.as_str()));
        match done {
            Ok(_) => tracing::info!(%peer, user, %what, "changed"),
            Err(reply) => {
                let (code, why) = (reply.code, reply.text());
                tracing::info!(target: NOT_DONE, %peer, user, %what, code, why, "not changed");
            }
        }
    }

    fn listen(
        &mut self,
        answer: Listening,
        generation: u64,
        settings: crate::data::Settings,
    ) -> Result<Outcome, Failure> {
        // Release the port of the previous channel first.
        self.close_channel();
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
            // A dangling link can be renamed.
            Err(error) if error.kind() != ErrorKind::NotFound => Ok(Outcome::Exists(key)),
            Err(error) => Err(error.into()),
        }
    }

    async fn file(&mut self, task: FileTask) -> Result<Reply, Failure> {
        match &task {
            FileTask::MakeDir(key) | FileTask::RemoveDir(key) => nobodys(key)?,
            FileTask::Set { key, .. } | FileTask::Checksum { key, .. } => nobodys(key)?,
            FileTask::Rename(from, to) => nobodys(from).and_then(|()| nobodys(to))?,
            // Names of the server's own drafts can be listed and removed.
            FileTask::Remove(_) | FileTask::Size { .. } | FileTask::Modified(_) => {}
            FileTask::Facts { .. } | FileTask::List { .. } | FileTask::Sync => {}
        }
        let store = self.store()?;
        let done = |text: &str| Reply::new(250, text);
        Ok(match task {
            FileTask::MakeDir(key) => {
                store.make_dir(&key).await?;
                self.note_name_change(&*store).await;
                let name = doubled(&[b"/", key.as_bytes()].concat());
                Reply::new(257, [b"\"", &name[..], b"\" is made"].concat())
            }
            FileTask::RemoveDir(key) => {
                store.remove_dir(&key).await?;
                self.note_name_change(&*store).await;
                done("the directory is removed")
            }
            FileTask::Remove(key) => {
                // A draft that a transfer is writing is not removed.
                match is_engines(key.name()) {
                    true => store.discard(&key, None).await?,
                    false => store.remove(&key).await?,
                }
                self.note_name_change(&*store).await;
                done("removed")
            }
            FileTask::Rename(from, to) => {
                store.rename(&from, &to, true).await?;
                self.note_name_change(&*store).await;
                done("renamed")
            }
            FileTask::Sync => {
                store.settle().await?;
                done("all changed names are on disk")
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
                    Confirmation::Modify(time, path) => {
                        let stamp = Stamp { seconds: time.seconds, nanos: time.nanos };
                        Reply::new(213, [format!("Modify={stamp}; ").as_bytes(), &path].concat())
                    }
                    Confirmation::Done => done("set"),
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

/// Describes what a task changes, for the log. `None` if it changes nothing.
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

/// Makes a listing on the control channel.
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
            // The text is in memory twice: as lines, and as bytes to send.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_logs_what_changed() {
        let key = |text: &str| Key::parse(text).unwrap();
        let renamed = change(&FileTask::Rename(key("a"), key("b"))).unwrap();
        assert_eq!(renamed, "rename \"/a\" to \"/b\"");
        assert!(change(&FileTask::Modified(key("a"))).is_none());
    }
}
