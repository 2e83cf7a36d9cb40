//! Bindings to the used parts of `gssapi/gssapi.h` and `gssapi_ext.h`, with wrappers that own and free the
//! library's objects.
#![allow(unsafe_code, reason = "calls of a C library")]

use super::Failure;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;

#[repr(C)]
struct RawBuffer {
    length: usize,
    value: *mut c_void,
}

#[repr(C)]
struct Oid {
    length: u32,
    elements: *mut c_void,
}

#[repr(C)]
struct Element {
    key: *const c_char,
    value: *const c_char,
}

#[repr(C)]
struct Store {
    count: u32,
    elements: *mut Element,
}

/// A pointer to an opaque object of the library.
type Opaque = *mut c_void;

#[link(name = "gssapi_krb5")]
unsafe extern "C" {
    fn gss_acquire_cred_from(
        minor: *mut u32,
        name: Opaque,
        time: u32,
        mechanisms: Opaque,
        usage: c_int,
        store: *const Store,
        credential: *mut Opaque,
        actual: *mut Opaque,
        left: *mut u32,
    ) -> u32;
    fn gss_accept_sec_context(
        minor: *mut u32,
        context: *mut Opaque,
        credential: Opaque,
        token: *mut RawBuffer,
        bindings: *mut c_void,
        client: *mut Opaque,
        mechanism: *mut *mut Oid,
        out: *mut RawBuffer,
        flags: *mut u32,
        left: *mut u32,
        delegated: *mut Opaque,
    ) -> u32;
    fn gss_display_name(minor: *mut u32, name: Opaque, out: *mut RawBuffer, sort: *mut *mut Oid) -> u32;
    fn gss_display_status(
        minor: *mut u32,
        status: u32,
        sort: c_int,
        mechanism: *mut Oid,
        more: *mut u32,
        out: *mut RawBuffer,
    ) -> u32;
    fn gss_wrap(
        minor: *mut u32,
        context: Opaque,
        private: c_int,
        quality: u32,
        bytes: *mut RawBuffer,
        is_private: *mut c_int,
        out: *mut RawBuffer,
    ) -> u32;
    fn gss_unwrap(
        minor: *mut u32,
        context: Opaque,
        token: *mut RawBuffer,
        out: *mut RawBuffer,
        is_private: *mut c_int,
        quality: *mut u32,
    ) -> u32;
    fn gss_release_buffer(minor: *mut u32, buffer: *mut RawBuffer) -> u32;
    fn gss_release_name(minor: *mut u32, name: *mut Opaque) -> u32;
    fn gss_release_cred(minor: *mut u32, credential: *mut Opaque) -> u32;
    fn gss_delete_sec_context(minor: *mut u32, context: *mut Opaque, out: *mut RawBuffer) -> u32;
}

/// `GSS_C_ACCEPT`.
const ACCEPT: c_int = 2;
/// `GSS_C_INDEFINITE`.
const INDEFINITE: u32 = u32::MAX;
/// `GSS_C_GSS_CODE` and `GSS_C_MECH_CODE`.
const MAJOR: c_int = 1;
const MINOR: c_int = 2;
/// Error codes are in the upper half of a status (`GSS_ERROR`).
const ERRORS: u32 = 0xffff_0000;
/// `GSS_S_CONTINUE_NEEDED`.
const CONTINUE: u32 = 1;
/// `GSS_S_DUPLICATE_TOKEN` and `GSS_S_OLD_TOKEN`: the message is a replay, or too old to tell.
const REPLAYED: u32 = 2 | 4;
/// Most lines that are read of the library's description of a status.
const LINES: usize = 8;
/// Kerberos 5 (RFC 4121): 1.2.840.113554.1.2.2.
const KRB5: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];

/// A buffer that the library allocated and must free.
struct Buffer(RawBuffer);

impl Buffer {
    fn empty() -> Self {
        Self(RawBuffer { length: 0, value: ptr::null_mut() })
    }

    fn bytes(&self) -> &[u8] {
        if self.0.length == 0 || self.0.value.is_null() {
            return &[];
        }
        // SAFETY: the library states that `length` bytes are there, and they stay until the buffer is
        // released.
        unsafe { slice::from_raw_parts(self.0.value.cast(), self.0.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer belongs to the library or is empty, and is not used afterwards.
        unsafe { gss_release_buffer(&mut minor, &mut self.0) };
    }
}

/// Lends bytes to the library, which only reads them.
fn borrowed(bytes: &[u8]) -> RawBuffer {
    RawBuffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// A principal's name in the library's form.
struct Name(Opaque);

impl Name {
    fn text(&self) -> Result<String, Failure> {
        let (mut minor, mut out) = (0, Buffer::empty());
        // SAFETY: the library created the name; a null pointer skips the name's type.
        let major = unsafe { gss_display_name(&mut minor, self.0, &mut out.0, ptr::null_mut()) };
        check("the client's name", major, minor)?;
        String::from_utf8(out.bytes().to_vec()).map_err(|_| Failure::new("the client's name", "it is not UTF-8"))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the library created the name, or it is null; it is not used afterwards.
        unsafe { gss_release_name(&mut minor, &mut self.0) };
    }
}

/// The credential by which this end proves its identity.
pub(super) struct Credential(Opaque);

// SAFETY: any thread may use the library's credentials, several at once: they are only read, under the
// library's locks.
unsafe impl Send for Credential {}
// SAFETY: as above.
unsafe impl Sync for Credential {}

impl Credential {
    /// Loads all keys of a keytab, given by its Kerberos name (`FILE:PATH`).
    pub(super) fn of_keytab(keytab: &CStr) -> Result<Self, Failure> {
        let mut element = Element { key: c"keytab".as_ptr(), value: keytab.as_ptr() };
        let store = Store { count: 1, elements: &mut element };
        let (mut minor, mut credential) = (0, ptr::null_mut());
        // SAFETY: the store and what it points to live until the call returns; null selects any name and
        // mechanism, and skips unused outputs.
        let major = unsafe {
            gss_acquire_cred_from(
                &mut minor,
                ptr::null_mut(),
                INDEFINITE,
                ptr::null_mut(),
                ACCEPT,
                &store,
                &mut credential,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let credential = Self(credential);
        check("the keytab", major, minor).map(|()| credential)
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the library created the credential, or it is null; it is not used afterwards.
        unsafe { gss_release_cred(&mut minor, &mut self.0) };
    }
}

/// A context, complete or not.
pub(super) struct Context(Opaque);

// SAFETY: any thread may use the library's contexts, one at a time.
unsafe impl Send for Context {}

/// The result of processing a token.
pub(super) struct Accepted {
    /// The client's name, once the context is established.
    pub(super) client: Option<String>,
    /// Whether the mechanism is Kerberos.
    pub(super) is_krb5: bool,
    /// The token to send to the client.
    pub(super) token: Vec<u8>,
    /// The properties of the context, as bits of [`flag`].
    pub(super) flags: u32,
}

/// Properties of a context (RFC 2744, section 5.1).
pub(super) mod flag {
    /// Mutual authentication.
    pub(crate) const MUTUAL: u32 = 2;
    /// Replay detection.
    pub(crate) const REPLAY: u32 = 4;
    /// Confidentiality.
    pub(crate) const CONFIDENTIALITY: u32 = 16;
    /// Integrity.
    pub(crate) const INTEGRITY: u32 = 32;
}

/// A decrypted message.
pub(super) struct Unwrapped {
    pub(super) bytes: Vec<u8>,
    /// Whether it was encrypted.
    pub(super) private: bool,
    /// Whether the library reports a replay, or cannot rule one out.
    pub(super) replayed: bool,
}

impl Context {
    pub(super) fn none() -> Self {
        Self(ptr::null_mut())
    }

    /// Processes a token. After an error the context must not be used again.
    pub(super) fn accept(&mut self, credential: &Credential, token: &[u8]) -> Result<Accepted, Failure> {
        let (mut minor, mut client, mut mechanism) = (0, Name(ptr::null_mut()), ptr::null_mut::<Oid>());
        let mut own = token.to_vec();
        let mut token = RawBuffer { length: own.len(), value: own.as_mut_ptr().cast() };
        let (mut out, mut flags) = (Buffer::empty(), 0);
        // SAFETY: the context is null or the library's; the token is this call's own copy, and lives until
        // the call returns; owners take the outputs; the mechanism is static data of the library. Channel
        // bindings to addresses are not used, since address translators change addresses.
        let major = unsafe {
            gss_accept_sec_context(
                &mut minor,
                &mut self.0,
                credential.0,
                &mut token,
                ptr::null_mut(),
                &mut client.0,
                &mut mechanism,
                &mut out.0,
                &mut flags,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("the ticket", major, minor)?;
        let done = major & CONTINUE == 0;
        let client = if done { Some(client.text()?) } else { None };
        // SAFETY: if not null, the mechanism is an object identifier of the library, which lives as long as
        // the process.
        let is_krb5 = unsafe { mechanism.as_ref() }.is_some_and(|oid| {
            let elements = oid.elements.cast::<u8>();
            // SAFETY: the library states that `length` bytes are there.
            !elements.is_null() && unsafe { slice::from_raw_parts(elements, oid.length as usize) } == KRB5
        });
        Ok(Accepted { client, is_krb5, token: out.bytes().to_vec(), flags })
    }

    /// Protects a message; returns whether it was encrypted.
    pub(super) fn wrap(&self, bytes: &[u8], private: bool) -> Result<(Vec<u8>, bool), Failure> {
        let (mut minor, mut is_private, mut out) = (0, 0, Buffer::empty());
        let mut bytes = borrowed(bytes);
        // SAFETY: the context is established; the bytes are only read.
        let major =
            unsafe { gss_wrap(&mut minor, self.0, c_int::from(private), 0, &mut bytes, &mut is_private, &mut out.0) };
        check("the message", major, minor)?;
        Ok((out.bytes().to_vec(), is_private != 0))
    }

    /// Decrypts a message.
    pub(super) fn unwrap(&self, token: &[u8]) -> Result<Unwrapped, Failure> {
        let (mut minor, mut is_private, mut out) = (0, 0, Buffer::empty());
        // The library modifies the token in place, so it gets a copy.
        let mut own = token.to_vec();
        let mut token = RawBuffer { length: own.len(), value: own.as_mut_ptr().cast() };
        // SAFETY: the context is established; the token is this call's own copy, and lives until the call
        // returns; null skips the quality of protection.
        let major = unsafe { gss_unwrap(&mut minor, self.0, &mut token, &mut out.0, &mut is_private, ptr::null_mut()) };
        check("the message", major, minor)?;
        Ok(Unwrapped { bytes: out.bytes().to_vec(), private: is_private != 0, replayed: major & REPLAYED != 0 })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the library created the context, or it is null; it is not used afterwards.
        unsafe { gss_delete_sec_context(&mut minor, &mut self.0, ptr::null_mut()) };
    }
}

/// Turns a status into a result.
fn check(what: &'static str, major: u32, minor: u32) -> Result<(), Failure> {
    if major & ERRORS == 0 {
        return Ok(());
    }
    let mut said = words(major, MAJOR);
    said.extend(words(minor, MINOR));
    Err(Failure::new(what, said.join("; ")))
}

/// The library's description of a status, without control characters, which could break a log line.
fn words(status: u32, sort: c_int) -> Vec<String> {
    let (mut lines, mut more) = (Vec::new(), 0);
    for _ in 0..LINES {
        let (mut minor, mut out) = (0, Buffer::empty());
        // SAFETY: all pointers are valid outputs; null selects the default mechanism.
        let major = unsafe { gss_display_status(&mut minor, status, sort, ptr::null_mut(), &mut more, &mut out.0) };
        if major & ERRORS != 0 {
            break;
        }
        let line = String::from_utf8_lossy(out.bytes()).replace(char::is_control, " ");
        if !line.is_empty() {
            lines.push(line);
        }
        if more == 0 {
            break;
        }
    }
    lines
}
