//! Checks a program before it runs: whether the dynamic loader will load the preload shim into it, and whether the
//! program connects through the calls that the shim interposes.

use crate::exit::{self, Exit};
use object::read::ReadCache;
use object::{Architecture, Object, ObjectSection};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libphoebus_preload.so";
const LIBRARY_VARIABLE: &str = "PHOEBUS_PRELOAD_LIB";
/// How many nested interpreters are followed, as in Linux (BINPRM_MAX_RECURSION is 5).
const DEPTH_MAX: usize = 5;
/// Longest `#!` line that Linux reads.
const LINE_MAX: u64 = 256;

/// The preload shim's library.
pub struct Library {
    /// Its path.
    pub file: PathBuf,
    image: Image,
}

/// Why the shim cannot work in a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The loader cannot load this library into this program: it would complain, or fail to start the program.
    Unloadable {
        /// The reason.
        what: String,
    },
    /// The program has no dynamic loader.
    Static,
    /// Go programs make system calls without the C library.
    Go,
    /// The loader ignores `LD_PRELOAD` in programs that gain privileges.
    Privileged {
        /// Which privileges the program gains.
        how: &'static str,
    },
}

/// The properties of an ELF file that decide whether the shim works.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    architecture: Architecture,
    wide: bool,
    interpreter: Option<String>,
    go: bool,
}

impl Library {
    /// Reads the library's header.
    ///
    /// # Errors
    /// A sentence that says why the file is unusable.
    pub fn open(file: PathBuf) -> Result<Self, String> {
        let shown = file.display();
        let opened = File::open(&file).map_err(|e| format!("cannot open {shown}: {}", phoebus_net::reason(&e)))?;
        let image = Image::of(opened).ok_or_else(|| format!("{shown} is not a shared library (ELF)"))?;
        Ok(Self { file, image })
    }
}

impl Trouble {
    /// The trouble with the program `name` that the user asked for, as the first part of a sentence.
    pub fn reason(&self, name: &OsStr) -> String {
        let name = name.display();
        match self {
            Self::Unloadable { what } => format!("cannot preload into \"{name}\": {what}"),
            Self::Static => format!("\"{name}\" is statically linked, so preloading does not reach it"),
            Self::Go => format!("\"{name}\" is a Go program, which makes system calls past the C library"),
            Self::Privileged { how } => format!("\"{name}\" {how}, so the dynamic loader ignores LD_PRELOAD"),
        }
    }

    /// What follows for its connections if it is run with the shim alone, as the rest of the sentence.
    pub fn consequence(&self) -> &'static str {
        match self {
            Self::Unloadable { .. } => "it is not run",
            Self::Static => "its own connections go direct (those of programs that it starts do not)",
            Self::Go | Self::Privileged { .. } => "its connections go direct",
        }
    }
}

/// Checks whether `library` will interpose the connections of the program in `file`, or of its interpreter if it is a
/// script. A file that cannot be read passes: exec reports it.
///
/// # Errors
/// The reason why the shim would not work.
pub fn inspect(file: &Path, library: &Library) -> Result<(), Trouble> {
    let Some(program) = executed(file) else { return Ok(()) };
    privileges(&program)?;
    Image::of(program).map_or(Ok(()), |program| program.takes(&library.image))
}

/// Checks whether any library is preloaded into the program in `file`, or into its interpreter if it is a script, and
/// catches its calls. A file that cannot be read passes.
///
/// # Errors
/// [`Trouble::Static`] and [`Trouble::Go`], unless it gains privileges when it starts.
pub fn inspect_reach(file: &Path) -> Result<(), Trouble> {
    let Some(program) = executed(file).filter(|program| privileges(program).is_ok()) else { return Ok(()) };
    Image::of(program).map_or(Ok(()), |program| program.is_reached())
}

/// Checks whether the program in `file`, or its interpreter if it is a script, gains privileges when it starts.
///
/// # Errors
/// [`Trouble::Privileged`].
pub fn inspect_privileges(file: &Path) -> Result<(), Trouble> {
    executed(file).map_or(Ok(()), |program| privileges(&program))
}

/// The file with the machine code that Linux executes for `file`: its own, or its interpreter's. `None` if it cannot be
/// read.
fn executed(file: &Path) -> Option<File> {
    let mut file = file.to_owned();
    for _ in 0..DEPTH_MAX {
        let mut opened = File::open(&file).ok()?;
        let mut start = [0; 2];
        opened.read_exact(&mut start).ok()?;
        if &start != b"#!" {
            return Some(opened);
        }
        file = interpreter(opened)?;
    }
    None
}

/// The first executable file of this name in `PATH`.
pub fn in_path(name: &OsStr) -> Option<PathBuf> {
    search(name, &std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
}

/// The first executable file of this name in the directories of `path`.
pub fn search(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let executable = |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(path).map(|directory| directory.join(name)).find(executable)
}

/// Finds the shim: at the path that the user sets, beside this program, or where a package installs it.
///
/// # Errors
/// It is missing, or cannot be preloaded; with the exit code [`exit::PREPARE`].
pub fn find_library() -> anyhow::Result<Library> {
    let fail = |why: String| Exit::with(exit::PREPARE, why);
    if let Some(file) = std::env::var_os(LIBRARY_VARIABLE).filter(|file| !file.is_empty()) {
        let file = std::path::absolute(&file).unwrap_or_else(|_| file.into());
        return Library::open(file).map_err(|why| fail(format!("{LIBRARY_VARIABLE}: {why}")));
    }
    let own = std::env::current_exe().unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("/"));
    let candidates = ["", "../lib", "../lib/phoebus"].map(|place| directory.join(place).join(LIBRARY));
    match candidates.iter().find(|file| file.exists()) {
        Some(file) => Library::open(file.canonicalize().unwrap_or_else(|_| file.clone())).map_err(fail),
        None => Err(fail(format!(
            "{LIBRARY} is neither in {} nor in ../lib from there; build or install it, or name it in {LIBRARY_VARIABLE}",
            directory.display()
        ))),
    }
}

impl Image {
    fn of(file: File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let image = object::File::parse(&cache).ok().filter(|image| image.format() == object::BinaryFormat::Elf)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
        let section = |name| image.section_by_name(name);
        Some(Self {
            architecture: image.architecture(),
            wide: image.is_64(),
            interpreter: section(".interp").and_then(|s| s.data().ok().map(text)),
            go: section(".go.buildinfo").is_some() || section(".note.go.buildid").is_some(),
        })
    }

    fn takes(&self, library: &Self) -> Result<(), Trouble> {
        let unloadable = |what: String| Err(Trouble::Unloadable { what });
        let name = |image: &Self| format!("{:?} ({} bits)", image.architecture, if image.wide { 64 } else { 32 });
        if (self.architecture, self.wide) != (library.architecture, library.wide) {
            return unloadable(format!("it is for {}, the library for {}", name(self), name(library)));
        }
        self.is_reached()?;
        match &self.interpreter {
            Some(loader) if loader.contains("ld-musl") != cfg!(target_env = "musl") => {
                unloadable(format!("its C library is another one than the library's (its loader is {loader})"))
            }
            _ => Ok(()),
        }
    }

    fn is_reached(&self) -> Result<(), Trouble> {
        match &self.interpreter {
            _ if self.go => Err(Trouble::Go),
            None => Err(Trouble::Static),
            Some(_) => Ok(()),
        }
    }
}

/// A setuid or setgid program runs in secure mode (ld.so(8)), unless the bit changes neither user nor group.
fn privileges(file: &File) -> Result<(), Trouble> {
    let Ok(meta) = file.metadata() else { return Ok(()) };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let how = match meta.mode() {
        mode if mode & 0o4000 != 0 && meta.uid() != uid => "is setuid",
        // Without the group's execute bit, the setgid bit means mandatory locking.
        mode if mode & 0o2010 == 0o2010 && meta.gid() != gid => "is setgid",
        _ => return Ok(()),
    };
    Err(Trouble::Privileged { how })
}

/// The interpreter that a script's first line names; for `env NAME`, the program NAME.
fn interpreter(script: File) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(script.take(LINE_MAX)).read_until(b'\n', &mut line).ok()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = PathBuf::from(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    in_path(&std::ffi::OsString::from_vec(named.to_vec()))
}
