//! Decides whether a file may be loaded as a driver: it becomes part of this process, with all of the
//! process's rights (invariant 5).

use super::LoadError;
use object::elf::PT_LOAD;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Write permission for users other than the owner: group and world.
const WRITE_BY_OTHERS: u32 = 0o022;
/// The sticky bit: in such a directory, users cannot rename or remove the files of others.
const STICKY: u32 = 0o1000;

/// The canonical path of the library, if only root and this process's user could have written or replaced it,
/// and if it is a shared library for this machine.
pub(super) fn approved(path: &Path) -> Result<PathBuf, LoadError> {
    let refuse = |why: String| LoadError::new(path, why);
    if !path.is_absolute() {
        return Err(refuse("its path must be absolute, so that it cannot mean another file elsewhere".into()));
    }
    let real = path.canonicalize().map_err(|error| refuse(crate::error::reason(&error)))?;
    for place in real.ancestors() {
        let about = fs::metadata(place).map_err(|error| refuse(crate::error::reason(&error)))?;
        trusted(place, &about, place == real).map_err(refuse)?;
    }
    let bytes = fs::read(&real).map_err(|error| refuse(crate::error::reason(&error)))?;
    fits_this_machine(&bytes).map_err(refuse)?;
    Ok(real)
}

/// Checks that nobody else can modify a file, or a directory on the way to it.
fn trusted(place: &Path, about: &Metadata, is_library: bool) -> Result<(), String> {
    let me = rustix::process::geteuid().as_raw();
    let name = if is_library { "it".into() } else { format!("the directory {}", place.display()) };
    if is_library && !about.is_file() {
        return Err("it is not a regular file".into());
    }
    if about.uid() != 0 && about.uid() != me {
        let owner = about.uid();
        return Err(format!("{name} belongs to user {owner}; only root and the user who runs this, {me}, are trusted"));
    }
    let mode = about.mode();
    if mode & WRITE_BY_OTHERS != 0 && (is_library || mode & STICKY == 0) {
        let mode = mode & 0o7777;
        return Err(format!("{name} can be written by others (mode {mode:o}); take that away with chmod go-w"));
    }
    Ok(())
}

/// The ELF header of this machine's word size.
#[cfg(target_pointer_width = "64")]
type Header = elf::FileHeader64<Endianness>;
/// The ELF header of this machine's word size.
#[cfg(target_pointer_width = "32")]
type Header = elf::FileHeader32<Endianness>;

/// Checks the headers of an ELF file (gABI, chapters 4 and 5): the file type, the machine, and that the file
/// is complete. The dynamic loader maps what the headers promise, and a process that touches a page beyond
/// the end of the file is killed (SIGBUS).
fn fits_this_machine(bytes: &[u8]) -> Result<(), String> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err("it is not a shared library (no ELF file)".into());
    }
    let arch = std::env::consts::ARCH;
    let header = Header::parse(bytes)
        .ok()
        .filter(|header| header.is_little_endian() == cfg!(target_endian = "little"))
        .ok_or_else(|| format!("it is for another kind of machine; a library for {arch} was expected"))?;
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
    if header.e_type(endian) != elf::ET_DYN {
        return Err("it is an ELF file but not a shared library".into());
    }
    let machine = header.e_machine(endian);
    if let Some(own) = machine_number().filter(|own| *own != machine) {
        return Err(format!(
            "it is for another kind of machine (ELF machine {machine}); a library for {arch} (ELF machine {own}) was expected"
        ));
    }
    let damaged = |error: object::Error| format!("it is a damaged library: {error}");
    for part in header.program_headers(endian, bytes).map_err(damaged)? {
        #[allow(clippy::useless_conversion, reason = "they have 32 bits on machines of 32 bits")]
        let (start, len): (u64, u64) = (part.p_offset(endian).into(), part.p_filesz(endian).into());
        let end = start.checked_add(len);
        if part.p_type(endian) == PT_LOAD && end.is_none_or(|end| end > bytes.len() as u64) {
            let (all, end) = (bytes.len(), end.unwrap_or(u64::MAX));
            return Err(format!("it is cut short: it has {all} bytes, and its headers speak of {end}"));
        }
    }
    Ok(())
}

/// The ELF number of this program's architecture if known here; for others, the dynamic loader reports a
/// mismatch.
fn machine_number() -> Option<u16> {
    match std::env::consts::ARCH {
        "x86_64" => Some(elf::EM_X86_64),
        "aarch64" => Some(elf::EM_AARCH64),
        "riscv64" => Some(elf::EM_RISCV),
        "powerpc64" => Some(elf::EM_PPC64),
        "s390x" => Some(elf::EM_S390),
        _ => None,
    }
}
