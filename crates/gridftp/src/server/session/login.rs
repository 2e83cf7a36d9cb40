//! USER, PASS, REIN: logins (RFC 959, section 4.1.1).

use super::task::{DataEndpoint, Task};
use super::{Login, Session, Settings, Step};
use phoebus_accounts::Account;
use phoebus_accounts::config::is_anonymous;
use phoebus_files::key::Key;
use phoebus_proto::gridftp::command::Secret;
use phoebus_proto::gridftp::reply::Reply;

impl Session {
    pub(super) fn user(&mut self, name: String) -> Step {
        if self.account().is_some() {
            return Step::say(503, "already logged in; REIN begins again");
        }
        if !self.is_protected() && !self.rules.clear_passwords && !is_anonymous(&name) {
            return Step::say(530, "passwords are taken under TLS only: AUTH TLS has to come first");
        }
        // Whether the user exists is not revealed before the password is checked.
        let said = format!("password for {name} needed");
        self.login = Login::Named(name);
        Step::say(331, said)
    }

    pub(super) fn pass(&mut self, password: Secret) -> Step {
        match std::mem::replace(&mut self.login, Login::Nobody) {
            Login::Named(user) => {
                let identity = self.identity();
                Step::task(Task::Login { user, password, identity })
            }
            Login::Nobody => Step::say(503, "USER has to come first"),
            Login::In(account) => {
                self.login = Login::In(account);
                Step::say(503, "already logged in; REIN begins again")
            }
        }
    }

    pub(super) fn logged_in(&mut self, account: Option<Account>) -> Step {
        match account {
            Some(account) => {
                let said =
                    format!("{} is logged in{}", account.name, if account.read_only { ", read-only" } else { "" });
                self.login = Login::In(account);
                self.place = self.rules.home.clone();
                Step::say(230, said)
            }
            None => {
                self.failures += 1;
                let refusal = Reply::new(530, "login incorrect");
                if self.failures >= self.rules.attempts { Step::Close(refusal) } else { Step::Say(refusal) }
            }
        }
    }

    pub(super) fn rein(&mut self) -> Step {
        // RFC 2228 leaves it to the server whether REIN ends security. Here it stays, and so does the proved identity.
        self.login = Login::Nobody;
        self.place = Key::ROOT;
        self.settings = Settings::default();
        self.aim = DataEndpoint::None;
        self.generation += 1;
        self.delegated = None;
        (self.restart, self.allocated, self.epsv_only) = (None, None, false);
        self.wanted.take();
        Step::Say(Reply::new(220, &self.rules.greeting))
    }
}
