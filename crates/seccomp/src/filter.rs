//! The filter: connect(2) is caught, and what would connect without it is refused. Everything else is allowed.
//!
//! | call | answer |
//! |---|---|
//! | connect | the listener's |
//! | sendto, sendmsg, sendmmsg with MSG_FASTOPEN | EOPNOTSUPP, as where fast open is off: programs then connect |
//! | io_uring_setup, io_uring_enter | ENOSYS: rings make connections without system calls |
//! | socketcall of 32-bit programs for connect, sendto, sendmsg, sendmmsg | the listener's, since its arguments are in memory |
//! | all calls of x32, whose numbers are others | ENOSYS |
//!
//! A program may run programs of the other word size, so the filter knows both architectures of the host's kernel.

/// One instruction of classic BPF (`struct sock_filter` of linux/filter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// How many instructions to skip if a condition holds.
    pub jt: u8,
    /// How many to skip if it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// What the filter returns to allow a call (linux/seccomp.h).
pub const ALLOW: u32 = 0x7fff_0000;
/// What it returns to catch a call.
pub const CATCH: u32 = 0x7fc0_0000;
/// What it returns to end the process.
const KILL: u32 = 0x8000_0000;
/// What it returns to refuse a call, plus the error.
const REFUSE: u32 = 0x0005_0000;

/// Operations (linux/bpf_common.h): load a word of `struct seccomp_data`, compare it with a constant, return.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`. The supported architectures have the low half of an argument first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// MSG_FASTOPEN.
pub(crate) const FAST_OPEN: u32 = 0x2000_0000;

/// The system calls of an architecture that matter.
struct Calls {
    /// AUDIT_ARCH_… of linux/audit.h.
    architecture: u32,
    connect: u32,
    /// socketcall(2), which does what its first argument says.
    socketcall: Option<u32>,
    refused: &'static [u32],
    /// Calls with the index of their argument of flags.
    sends: [(u32, u32); 3],
    /// From here on numbers belong to another table.
    end: Option<u32>,
}

/// The number of socketcall(2) for 32-bit programs of x86.
pub(crate) const SOCKETCALL: u32 = 102;
/// What its first argument asks for (linux/net.h).
pub(crate) const SOCKETCALL_CONNECT: u32 = 3;
/// The same for the calls with flags, with the index of these among the arguments in memory.
pub(crate) const SOCKETCALL_SENDS: [(u32, usize); 3] = [(11, 3), (16, 2), (20, 3)];

/// Has its flags as 4th argument, sendmsg as 3rd, sendmmsg as 4th.
const fn sends(sendto: u32, sendmsg: u32, sendmmsg: u32) -> [(u32, u32); 3] {
    [(sendto, 3), (sendmsg, 2), (sendmmsg, 3)]
}

/// The kernel's own architecture and that of its 32-bit programs.
#[cfg(target_arch = "x86_64")]
const CALLS: &[Calls] = &[
    Calls {
        architecture: 0xc000_003e,
        connect: 42,
        socketcall: None,
        refused: &[425, 426],
        sends: sends(44, 46, 307),
        end: Some(0x4000_0000),
    },
    Calls {
        architecture: 0x4000_0003,
        connect: 362,
        socketcall: Some(SOCKETCALL),
        refused: &[425, 426],
        sends: sends(369, 370, 345),
        end: None,
    },
];
#[cfg(target_arch = "aarch64")]
const CALLS: &[Calls] = &[
    Calls {
        architecture: 0xc000_00b7,
        connect: 203,
        socketcall: None,
        refused: &[425, 426],
        sends: sends(206, 211, 269),
        end: None,
    },
    Calls {
        architecture: 0x4000_0028,
        connect: 283,
        socketcall: None,
        refused: &[425, 426],
        sends: sends(290, 296, 374),
        end: None,
    },
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[Calls] = &[];

/// The filter for this architecture; `None` if there is none.
pub fn program() -> Option<Vec<Instruction>> {
    if CALLS.is_empty() {
        return None;
    }
    let mut all = vec![load(ARCHITECTURE)];
    for calls in CALLS {
        let block = calls.block();
        // A block is shorter than a conditional jump reaches.
        all.push(Instruction { code: IF_EQUAL, jt: 0, jf: u8::try_from(block.len()).ok()?, k: calls.architecture });
        all.extend(block);
    }
    all.push(end(KILL));
    Some(all)
}

impl Calls {
    fn block(&self) -> Vec<Instruction> {
        let refuse = |errno: i32| end(REFUSE | errno as u32);
        let mut block = vec![load(NUMBER)];
        if let Some(other) = self.end {
            block.extend([unless(IF_AT_LEAST, other), refuse(libc::ENOSYS)]);
        }
        block.extend([unless(IF_EQUAL, self.connect), end(CATCH)]);
        for number in self.refused {
            block.extend([unless(IF_EQUAL, *number), refuse(libc::ENOSYS)]);
        }
        if let Some(number) = self.socketcall {
            let caught = [SOCKETCALL_CONNECT].into_iter().chain(SOCKETCALL_SENDS.map(|(which, _)| which));
            let caught: Vec<_> = caught.flat_map(|which| [unless(IF_EQUAL, which), end(CATCH)]).collect();
            // Past the two instructions around them.
            let jf = caught.len() as u8 + 2;
            block.push(Instruction { code: IF_EQUAL, jt: 0, jf, k: number });
            block.push(load(ARGUMENTS));
            block.extend(caught);
            block.push(end(ALLOW));
        }
        for (number, argument) in self.sends {
            block.extend([
                Instruction { code: IF_EQUAL, jt: 0, jf: 4, k: number },
                load(ARGUMENTS + 8 * argument),
                unless(IF_ANY_BIT, FAST_OPEN),
                refuse(libc::EOPNOTSUPP),
                end(ALLOW),
            ]);
        }
        block.push(end(ALLOW));
        block
    }
}

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: offset }
}

fn end(result: u32) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: result }
}

/// Skips the next instruction unless the condition holds.
fn unless(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 1, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call, as the kernel does.
    fn verdict(architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&number.to_le_bytes());
        data[4..8].copy_from_slice(&architecture.to_le_bytes());
        for (place, argument) in data[16..].chunks_exact_mut(8).zip(arguments) {
            place.copy_from_slice(&argument.to_le_bytes());
        }
        let program = program().unwrap();
        let (mut at, mut word) = (0, 0u32);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            let holds = match code {
                RETURN => return k,
                LOAD => {
                    word = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap());
                    at += 1;
                    continue;
                }
                IF_EQUAL => word == k,
                IF_AT_LEAST => word >= k,
                IF_ANY_BIT => word & k != 0,
                _ => panic!("{code}"),
            };
            at += 1 + usize::from(if holds { jt } else { jf });
        }
    }

    #[test]
    fn connects_are_caught_and_other_ways_refused_in_each_word_size() {
        let refused = |errno: i32| REFUSE | errno as u32;
        for calls in CALLS {
            let of = |number, arguments| verdict(calls.architecture, number, arguments);
            assert_eq!(of(calls.connect, [3, 0, 16, 0, 0, 0]), CATCH);
            for number in calls.refused {
                assert_eq!(of(*number, [0; 6]), refused(libc::ENOSYS));
            }
            for (number, argument) in calls.sends {
                let mut arguments = [u64::MAX; 6];
                arguments[argument as usize] = 0xffff_ffff_dfff_ffff;
                assert_eq!(of(number, arguments), ALLOW, "all other flags");
                arguments[argument as usize] = u64::from(FAST_OPEN);
                assert_eq!(of(number, arguments), refused(libc::EOPNOTSUPP));
            }
            if let Some(number) = calls.socketcall {
                for which in 1..=20 {
                    let is_caught = [3, 11, 16, 20].contains(&which);
                    let expected = if is_caught { CATCH } else { ALLOW };
                    assert_eq!(of(number, [which, 0, 0, 0, 0, 0]), expected, "socketcall {which}");
                }
            }
            // exit_group and friends.
            for number in [0, 1, 59, 231, 231 + 200] {
                assert_eq!(of(number, [u64::MAX; 6]), ALLOW, "{number}");
            }
            if let Some(other) = calls.end {
                assert_eq!(of(other | calls.connect, [0; 6]), refused(libc::ENOSYS));
            }
        }
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let own = &CALLS[0];
        assert_eq!(i64::from(own.connect), libc::SYS_connect);
        let sends = [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg];
        assert_eq!(own.sends.map(|(number, _)| i64::from(number)), sends);
        assert_eq!(i64::from(own.refused[0]), libc::SYS_io_uring_setup);
        assert_eq!(i64::from(own.refused[1]), libc::SYS_io_uring_enter);
        assert_eq!(FAST_OPEN, libc::MSG_FASTOPEN as u32);
    }

    #[test]
    fn unknown_architectures_are_ended() {
        assert_eq!(verdict(0x1234, 42, [0; 6]), KILL);
    }
}
