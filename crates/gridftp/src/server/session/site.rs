//! SITE: commands without a standard, under GCT's names.

use super::task::{Confirmation, FileTask, Task};
use super::{Session, Step};
use crate::server::CLIENT_SAYS;
use phoebus_files::store::{Attributes, Time};
use phoebus_proto::gridftp::site::{Buffer, Site};

impl Session {
    pub(super) fn site(&mut self, site: Site) -> Step {
        match site {
            Site::Help(about) => self.site_help(about),
            Site::NetStack(stack) => self.net_stack(&stack),
            Site::Buffer(Buffer::Both, bytes) => self.buffers(Some(bytes), Some(bytes)),
            Site::Buffer(Buffer::Retrieve, bytes) => self.buffers(Some(bytes), None),
            Site::Buffer(Buffer::Store, bytes) => self.buffers(None, Some(bytes)),
            Site::Chmod(mode, path) => {
                let attributes = Attributes { mode: Some(mode), modified: None };
                self.with_file(&path, |key| FileTask::Set { key, attributes, said: Confirmation::Done })
            }
            Site::Utime(time, path) => {
                self.set_time(Time { seconds: time.seconds, nanos: time.nanos }, &path, Confirmation::Done)
            }
            // Logged to identify transfers.
            Site::TaskId(task) => {
                tracing::info!(target: CLIENT_SAYS, peer = %self.peer, ?task, "the client says what it works at");
                Step::say(250, "noted")
            }
            Site::ClientInfo(client) => {
                tracing::info!(target: CLIENT_SAYS, peer = %self.peer, ?client, "the client says what it is");
                // Clients of the Globus libraries expect NLST as GCT's server answers it.
                self.settings.bare_names = true;
                Step::say(250, "noted")
            }
            Site::Drafts(path) => self.drafts(path.as_deref()),
            Site::Sync => Step::task(Task::File(FileTask::Sync)),
            Site::Want(paths) => self.want(&paths),
            Site::GetBatch => self.get_batch(),
            Site::PutBatch => self.put_batch(),
            Site::WhoAmI => Step::say(200, self.account().map_or("", |account| account.name.as_str())),
            Site::Version => Step::say(200, concat!("Phoebus ", env!("CARGO_PKG_VERSION"))),
            _ => Step::say(502, "this SITE command is not implemented here"),
        }
    }
}
