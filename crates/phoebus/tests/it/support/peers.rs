//! pure-ftpd, pyftpdlib and Twisted, as Debian ships them, and aioftp of PyPI, each with a user `jane` whose password is `s3cret`.

use super::ftp::{Ftp, open_to_all, place};
use super::serve::with_input;
use std::fs;
use std::process::Command;

/// The directory in which scripts/setup installs Python packages that Debian lacks.
const PEERS: &str = "/usr/local/lib/phoebus-peers/bin/python";

const PYFTPDLIB: &str = r#"
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
users = DummyAuthorizer()
users.add_user("jane", "s3cret", sys.argv[2], perm="elradfmwMT")
FTPHandler.authorizer = users
FTPServer(("127.0.0.1", int(sys.argv[1])), FTPHandler).serve_forever()
"#;

/// The same on a file system that ignores case in names, as Windows' does.
const FOLDING: &str = r#"
import os, sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.filesystems import AbstractedFS
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
class Folding(AbstractedFS):
    def ftp2fs(self, ftppath):
        path, found = super().ftp2fs(ftppath), self.root
        for part in os.path.relpath(path, self.root).split(os.sep):
            names = os.listdir(found) if os.path.isdir(found) else []
            found = os.path.join(found, next((name for name in names if name.lower() == part.lower()), part))
        return os.path.normpath(found)
users = DummyAuthorizer()
users.add_user("jane", "s3cret", sys.argv[2], perm="elradfmwMT")
FTPHandler.authorizer = users
FTPHandler.abstracted_fs = Folding
FTPServer(("127.0.0.1", int(sys.argv[1])), FTPHandler).serve_forever()
"#;

const TWISTED: &str = r#"
import sys
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import Portal
from twisted.internet import reactor
from twisted.protocols.ftp import FTPFactory, FTPRealm
from twisted.python import filepath
class Realm(FTPRealm):
    def getHomeDirectory(self, name):
        return filepath.FilePath(sys.argv[2])
users = InMemoryUsernamePasswordDatabaseDontUse()
users.addUser("jane", "s3cret")
reactor.listenTCP(int(sys.argv[1]), FTPFactory(Portal(Realm(sys.argv[2]), [users])), interface="127.0.0.1")
reactor.run()
"#;

const AIOFTP: &str = r#"
import asyncio, pathlib, sys
import aioftp
user = aioftp.User(login="jane", password="s3cret", base_path=pathlib.Path(sys.argv[2]), home_path="/")
asyncio.run(aioftp.Server([user]).run("127.0.0.1", int(sys.argv[1])))
"#;

impl Ftp {
    /// pure-ftpd.
    pub fn pure_ftpd() -> Self {
        let dir = place();
        let (root, port) = (dir.path().join("root"), super::port::free());
        fs::create_dir(&root).unwrap();
        open_to_all(&root, 0o777);
        let shown = |name: &str| dir.path().join(name).display().to_string();
        let (list, users) = (shown("users"), shown("users.pdb"));
        // pure-pw would make a hash that costs half a second for each login.
        let hash = with_input(Command::new("openssl").args(["passwd", "-6", "-stdin"]), b"s3cret\n");
        fs::write(&list, format!("jane:{}:1:65534::{}/./::::::::::::\n", hash.trim(), root.display())).unwrap();
        let made = super::serve::run(super::ftp::program("pure-pw").args(["mkdb", &users, "-f", &list]));
        assert!(made.status.success(), "{made:?}");
        let mut command = super::ftp::program("pure-ftpd");
        command.args(["-S", &format!("127.0.0.1,{port}"), "-l", &format!("puredb:{users}"), "-g", &shown("pid")]);
        command.args(["-A", "-H", "-u", "1", "-C", "50"]);
        Self::start(command, port, "jane:s3cret@", "", root, dir)
    }

    /// pyftpdlib.
    pub fn pyftpdlib() -> Self {
        Self::python("/usr/bin/python3", PYFTPDLIB)
    }

    /// pyftpdlib on a file system that ignores case.
    pub fn folding() -> Self {
        Self::python("/usr/bin/python3", FOLDING)
    }

    /// Twisted.
    pub fn twisted() -> Self {
        Self::python("/usr/bin/python3", TWISTED)
    }

    /// aioftp.
    pub fn aioftp() -> Self {
        Self::python(PEERS, AIOFTP)
    }

    fn python(python: &str, script: &str) -> Self {
        let dir = place();
        let (root, port) = (dir.path().join("root"), super::port::free());
        fs::create_dir(&root).unwrap();
        let mut command = Command::new(python);
        command.args(["-c", script, &port.to_string()]).arg(&root);
        Self::start(command, port, "jane:s3cret@", "", root, dir)
    }
}
