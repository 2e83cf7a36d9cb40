//! A scripted FTP server, which can be told to misbehave.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod tools;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Files by their paths.
pub type Files = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A different behaviour: returns whether it answered a command. It receives the command and its argument.
pub type Hook = Arc<dyn Fn(&mut Client, &str, &str) -> bool + Send + Sync>;

/// A running server.
pub struct Fake {
    pub addr: SocketAddr,
    pub files: Files,
    log: Arc<Mutex<Vec<String>>>,
}

/// One of its clients.
pub struct Client {
    control: BufReader<TcpStream>,
    pub listener: Option<TcpListener>,
    pub aim: Option<SocketAddr>,
    pub files: Files,
    pub rest: usize,
    /// Whether it has stopped answering.
    pub mute: bool,
    from: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// A server that does everything right.
    pub fn good() -> Self {
        Self::with(|_, _, _| false)
    }

    /// A server with a different behaviour.
    pub fn with(hook: impl Fn(&mut Client, &str, &str) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, files, log) = (listener.local_addr().unwrap(), Files::default(), Arc::default());
        let fake = Self { addr, files: files.clone(), log: Arc::clone(&log) };
        let hook: Hook = Arc::new(hook);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let client = Client {
                    control: BufReader::new(stream),
                    listener: None,
                    aim: None,
                    files: files.clone(),
                    rest: 0,
                    mute: false,
                    from: String::new(),
                    log: Arc::clone(&log),
                };
                let hook = hook.clone();
                std::thread::spawn(move || client.serve(&hook));
            }
        });
        fake
    }

    /// All commands that came.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn put(&self, path: &str, content: &[u8]) {
        self.files.lock().unwrap().insert(path.to_owned(), content.to_owned());
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.files.lock().unwrap().get(path).cloned()
    }

    pub fn names(&self) -> Vec<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }
}

impl Client {
    fn serve(mut self, hook: &Hook) {
        if !hook(&mut self, "", "") {
            self.say("220 ready");
        }
        loop {
            let mut line = Vec::new();
            if self.control.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
            self.log.lock().unwrap().push(line.clone());
            let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
            if !hook(&mut self, verb, argument) {
                self.answer(verb, argument);
            }
        }
    }

    /// Sends a line, or several.
    pub fn say(&mut self, line: &str) {
        if self.mute {
            return;
        }
        // A client that has disconnected does not receive it.
        let _ = self.control.get_mut().write_all(format!("{line}\r\n").as_bytes());
    }

    /// The source of a rename (RNFR).
    pub fn from(&self) -> &str {
        &self.from
    }

    /// Lists these lines.
    pub fn list(&mut self, lines: &str) {
        self.say("150 coming");
        let _ = self.data().write_all(lines.as_bytes());
        self.say("226 done");
    }

    /// Sends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.control.get_mut().write_all(bytes);
    }

    /// Ends the control connection.
    pub fn hang_up(&mut self) {
        let _ = self.control.get_mut().shutdown(std::net::Shutdown::Both);
    }

    /// Whether the client is there for as long as `limit`; what it sends is dropped.
    pub fn wait_for_end(&mut self, limit: Duration) -> bool {
        self.control.get_ref().set_read_timeout(Some(limit)).unwrap();
        let mut room = [0; 100];
        !matches!(self.control.read(&mut room), Ok(0) | Err(_))
    }

    /// Whether the client closes within `limit`; what it sends is dropped.
    pub fn has_gone(&mut self, limit: Duration) -> bool {
        self.control.get_ref().set_read_timeout(Some(limit)).unwrap();
        let mut room = [0; 100];
        match self.control.read(&mut room) {
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        }
    }

    /// Stays silent for as long as any test waits.
    pub fn hold(&mut self) {
        self.wait_for_end(Duration::from_secs(30));
    }

    /// The data connection.
    pub fn data(&mut self) -> TcpStream {
        match (self.aim.take(), self.listener.take()) {
            (Some(to), _) => TcpStream::connect(to).unwrap(),
            (None, Some(listener)) => listener.accept().unwrap().0,
            (None, None) => panic!("nobody said where data goes"),
        }
    }

    pub fn listen(&mut self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        self.listener = Some(listener);
        port
    }

    /// Receives all bytes of the data connection.
    pub fn take(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.data().read_to_end(&mut all).unwrap_or(0);
        all
    }

    /// Writes the bytes to the file, at their offset.
    pub fn store(&mut self, path: &str, bytes: &[u8]) {
        let (mut files, from) = (self.files.lock().unwrap(), std::mem::take(&mut self.rest));
        let file = files.entry(path.to_owned()).or_default();
        file.truncate(from);
        file.extend(bytes);
    }

    /// Answers as a correct server.
    pub fn answer(&mut self, verb: &str, argument: &str) {
        let size = |files: &Files| files.lock().unwrap().get(argument).map(Vec::len);
        match verb {
            "USER" => self.say("331 password"),
            "PASS" => self.say("230 in"),
            "FEAT" => self.say(
                "211-Features\r\n CKSM ADLER32:10;MD5:10;\r\n MLST type*;size*;modify*;\r\n SIZE\r\n MDTM\r\n MFMT\r\n REST STREAM\r\n PARALLEL\r\n211 End",
            ),
            "TYPE" | "NOOP" | "MODE" | "OPTS" | "ALLO" | "SITE" => self.say("200 ok"),
            "PWD" => self.say("257 \"/home\" is here"),
            "CWD" => self.say("250 there"),
            "EPSV" => {
                let port = self.listen();
                self.say(&format!("229 Entering Extended Passive Mode (|||{port}|)"));
            }
            "PASV" => {
                let [high, low] = self.listen().to_be_bytes();
                self.say(&format!("227 Entering Passive Mode (127,0,0,1,{high},{low})"));
            }
            "PORT" => {
                let n: Vec<u16> = argument.split(',').map(|n| n.parse().unwrap()).collect();
                self.aim = Some(SocketAddr::from(([127, 0, 0, 1], n[4] << 8 | n[5])));
                self.say("200 ok");
            }
            "REST" => {
                self.rest = argument.parse().unwrap();
                self.say("350 ok");
            }
            "SIZE" => match size(&self.files) {
                Some(size) => self.say(&format!("213 {size}")),
                None => self.say("550 no such file"),
            },
            "MDTM" => self.say("213 20261121200000"),
            "MFMT" => self.say("213 ok"),
            "MLST" => match size(&self.files) {
                Some(size) => {
                    self.say(&format!("250-Listing\r\n type=file;size={size};modify=20261121200000; {argument}\r\n250 End"));
                }
                None => self.say("550 no such file"),
            },
            "MLSD" => {
                let names: Vec<(String, usize)> =
                    self.files.lock().unwrap().iter().map(|(k, v)| (k.trim_start_matches('/').to_owned(), v.len())).collect();
                self.say("150 coming");
                let mut data = self.data();
                for (name, size) in names {
                    data.write_all(format!("type=file;size={size}; {name}\r\n").as_bytes()).unwrap();
                }
                drop(data);
                self.say("226 done");
            }
            "RETR" => {
                let from = std::mem::take(&mut self.rest);
                let Some(content) = self.files.lock().unwrap().get(argument).cloned() else {
                    return self.say("550 no such file");
                };
                self.say("150 coming");
                let _ = self.data().write_all(&content[from.min(content.len())..]);
                self.say("226 done");
            }
            "STOR" => {
                self.say("150 go on");
                let bytes = self.take();
                self.store(argument, &bytes);
                self.say("226 done");
            }
            "CKSM" => {
                let path = argument.splitn(4, ' ').nth(3).unwrap();
                let content = self.files.lock().unwrap().get(path).cloned().unwrap_or_default();
                self.say(&format!("213 {:08x}", adler32(&content)));
            }
            "RNFR" => {
                argument.clone_into(&mut self.from);
                self.say("350 to what");
            }
            "RNTO" => {
                let mut files = self.files.lock().unwrap();
                let content = files.remove(&self.from).unwrap();
                files.insert(argument.to_owned(), content);
                drop(files);
                self.say("250 done");
            }
            "DELE" => {
                let removed = self.files.lock().unwrap().remove(argument).is_some();
                self.say(if removed { "250 done" } else { "550 no such file" });
            }
            "QUIT" => {
                self.say("221 bye");
                self.hang_up();
            }
            _ => self.say("502 not here"),
        }
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65_521;
        (a, (a + b) % 65_521)
    });
    b << 16 | a
}
