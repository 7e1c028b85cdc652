"""A system-call filter for the sandbox, as the bytes the kernel takes (classic BPF, one 8-byte instruction each).

Namespaces leave the kernel's less travelled entrances open. Keyrings, io_uring, asynchronous I/O and VM sockets (which
reach the host of a virtual machine) are not in any namespace. Anonymous memory files, large socket buffers, file
attributes and shared memory are counted as no process's. They are refused.
"""

from __future__ import annotations

import errno
import mmap
import platform
import signal
import socket
import struct

# name: (number on x86_64, number on aarch64); None where the call does not exist.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    # sockets, but for pairs: no buffer grows, and nothing waits in a queue whose sender is gone
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "setsockopt": (54, 208),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # what the whole machine or all processes of a user have in common
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "statmount": (457, 457),
    "listmount": (458, 458),
    # the kernel itself
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "personality": (135, 92),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "fanotify_init": (300, 262),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
# Calls that are refused for some of their arguments.
CHECKED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "socketpair": (53, 199),
    "fcntl": (72, 25),
    "mmap": (9, 222),
    "prctl": (157, 167),
    "rt_sigaction": (13, 134),
}
# machine: (column above, audit architecture)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
SHARED_ANONYMOUS = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
F_SETPIPE_SZ, PR_SET_SECCOMP = 1031, 22
X32_CALLS = 0x40000000

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
REFUSE = ERRNO | errno.EPERM
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16


def build_filter(machine: str | None = None, *, may_lose_children: bool = False) -> bytes | None:
    """The filter for ``machine`` (default: this one), or None where its call numbers are not listed.

    Args:
        machine: As ``platform.machine()`` says it.
        may_lose_children: Whether SIGCHLD may be ignored. The kernel then forgets a child as it ends, and with it the
            processor time that the child used.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    column, audit_machine = known
    program = [_load(MACHINE_AT), *_unless(EQUAL, audit_machine, KILL), _load(NUMBER_AT)]
    if column == 0:
        program += _when(AT_LEAST, X32_CALLS, KILL)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _when(EQUAL, number, REFUSE)
    for name, rules in _argument_rules(may_lose_children).items():
        program += [_jump(EQUAL, CHECKED[name][column], 0, len(rules)), *rules]
    return b"".join([*program, _return(ALLOW)])


def _argument_rules(may_lose_children: bool) -> dict[str, list[bytes]]:
    """For each checked call the instructions that decide on it; they always return."""
    allow = _return(ALLOW)
    rules = {
        "clone": [_argument(0), *_when(ANY_BIT, NAMESPACE_FLAGS, REFUSE), allow],
        # Its flags lie in memory, where a filter cannot look: without it the C library falls back to clone.
        "clone3": [_return(ERRNO | errno.ENOSYS)],
        "socketpair": [_argument(0), *_unless(EQUAL, socket.AF_UNIX, ERRNO | errno.EAFNOSUPPORT), allow],
        "fcntl": [_argument(1), *_when(EQUAL, F_SETPIPE_SZ, REFUSE), allow],
        # Pages of such memory stay when a process lets go of them, and count as nobody's.
        "mmap": [_argument(3), _and(SHARED_ANONYMOUS), *_when(EQUAL, SHARED_ANONYMOUS, REFUSE), allow],
        "prctl": [_argument(0), *_when(EQUAL, PR_SET_SECCOMP, REFUSE), allow],
    }
    if not may_lose_children:
        # Asking for the present handler (no new one: both halves of its address are 0) is free.
        asks = [rule for half in (0, 4) for rule in (_argument(1, half), *_unless(EQUAL, 0, REFUSE))]
        rules["rt_sigaction"] = [_argument(0), *_unless(EQUAL, signal.SIGCHLD, ALLOW), *asks, allow]
    return rules


def _argument(number: int, byte: int = 0) -> bytes:
    return _load(ARGUMENTS_AT + 8 * number + byte)


def _and(value: int) -> bytes:
    return struct.pack("=HBBI", AND, 0, 0, value)


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", LOAD, 0, 0, offset)


def _return(value: int) -> bytes:
    return struct.pack("=HBBI", RETURN, 0, 0, value)


def _jump(test: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", test, if_true, if_false, value)


def _when(test: int, value: int, result: int) -> list[bytes]:
    return [_jump(test, value, 0, 1), _return(result)]


def _unless(test: int, value: int, result: int) -> list[bytes]:
    return [_jump(test, value, 1, 0), _return(result)]
