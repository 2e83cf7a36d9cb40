//! Entries come, are found, follow their sockets and go.

use super::*;
use crate::record::Registration;

fn socket() -> c_int {
    sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap()
}

/// One test, since there is one table.
#[test]
fn entries_are_found_by_any_descriptor_and_make_room_when_their_sockets_are_gone() {
    crate::process::create().unwrap();
    create().unwrap();
    let (fd, other) = (socket(), 900);
    assert!(find(fd).is_none());
    drop(enter(fd, libc::AF_INET).unwrap());
    assert!(!is_empty() && is_quiet());
    find(fd).unwrap().set_state(State::Pending);
    assert!(!is_quiet());
    sys::dup3(fd, other, true).unwrap();
    sys::close(fd);
    let place = find_live(other).unwrap().place();
    assert!(at(place.0).unwrap().place() == place);
    assert!(find_live(0).is_none());

    // A descriptor in an epoll set leads to the socket when the last one is gone.
    let registered = 901;
    sys::dup3(other, registered, true).unwrap();
    let mut guard = find_live(other).unwrap();
    guard.make_record().unwrap().registrations[3] =
        Some(Registration { epfd: 0, fd: registered, events: 0, data: 0, exclusive: false, shown: false });
    guard.socket_state().fd = fd;
    assert_eq!(guard.valid_descriptor(), Some(registered));
    guard.make_record().unwrap().registrations[3] = None;
    assert_eq!(guard.valid_descriptor(), None);
    drop(guard);
    sys::close(registered);

    // Another socket takes the place of the one behind a descriptor.
    let new = socket();
    let mut guard = at(place.0).unwrap();
    guard.socket_state().errno = libc::EPIPE;
    let successor = guard.successor(new).unwrap();
    sys::dup3(new, other, true).unwrap();
    // Whoever looks for it now finds it, and waits.
    let index = table().unwrap().position(sys::cookie(other).unwrap()).unwrap();
    assert!(index != place.0 && Guard::try_lock(index).is_none());
    guard.follow(successor, other);
    drop(guard);
    let mut guard = find_live(other).unwrap();
    assert!(guard.socket_state().errno == libc::EPIPE && guard.state() == State::Pending && guard.place() != place);
    guard.forget();
    drop(guard);
    assert!(find(other).is_none() && is_empty());

    // More sockets than there are places come and go, and one stays.
    let kept = socket();
    enter(kept, libc::AF_INET).unwrap().set_state(State::Pending);
    for i in 0..2 * ENTRIES {
        let fd = socket();
        let mut guard = enter(fd, libc::AF_INET).unwrap();
        guard.set_state(if i % 3 == 0 { State::Watched } else { State::Open });
        drop(guard);
        sys::close(fd);
    }
    find_live(kept).unwrap().remove();
    assert!(is_quiet());

    // What is known of a socket stays for as long as it has another descriptor, and goes some time after the last is
    // closed.
    for state in [State::Watched, State::Failed] {
        let (fd, other) = (socket(), 901);
        let mut guard = enter(fd, libc::AF_INET).unwrap();
        guard.set_state(state);
        guard.socket_state().errno = libc::ECONNREFUSED;
        drop(guard);
        sys::dup3(fd, other, true).unwrap();
        close(fd);
        let mut left = find(other).unwrap();
        assert!((left.state(), left.socket_state().errno) == (state, libc::ECONNREFUSED), "{state:?}");
        drop(left);
        close(other);
    }
    for _ in 0..crate::close::KEPT {
        let fd = socket();
        enter(fd, libc::AF_INET).unwrap().set_state(State::Failed);
        close(fd);
    }
    assert_eq!(LIVE.load(Ordering::Relaxed) as usize, crate::close::KEPT);
}

/// As the program does.
fn close(fd: c_int) {
    crate::close::closing(fd, || sys::try_close(fd)).unwrap_or_else(|| sys::try_close(fd)).unwrap();
}

#[test]
fn copied_lock_is_free_after_fork() {
    use crate::process::{acquire, try_acquire};
    let lock = AtomicU32::new(0);
    acquire(&lock);
    assert!(!try_acquire(&lock));
    release(&lock);
    lock.store(crate::process::owner().wrapping_sub(1), Ordering::Relaxed);
    assert!(try_acquire(&lock));
}
