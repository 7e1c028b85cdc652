"""A system-call filter for the sandbox, as the bytes the kernel takes (classic BPF, one 8-byte instruction each).

Namespaces leave the kernel's less travelled entrances open: keyrings, io_uring and VM sockets (which reach the host of
a virtual machine) are not in any namespace, and anonymous memory files escape the memory limits. They are refused.
"""

from __future__ import annotations

import errno
import platform
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
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "fanotify_init": (300, 262),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
# machine: (column above, audit architecture, clone, clone3, socket)
MACHINES = {"x86_64": (0, 0xC000003E, 56, 435, 41), "aarch64": (1, 0xC00000B7, 220, 435, 198)}
ALLOWED_SOCKETS = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
X32_CALLS = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16


def build_filter(machine: str | None = None) -> bytes | None:
    """The filter for ``machine`` (default: this one), or None where its call numbers are not listed."""
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    column, audit_machine, clone, clone3, make_socket = known
    program = [_load(MACHINE_AT), *_unless(EQUAL, audit_machine, KILL), _load(NUMBER_AT)]
    if column == 0:
        program += _when(AT_LEAST, X32_CALLS, KILL)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _when(EQUAL, number, ERRNO | errno.EPERM)
    # The flags of clone3 lie in memory, where a filter cannot look: without it the C library falls back to clone.
    program += _when(EQUAL, clone3, ERRNO | errno.ENOSYS)
    namespaces = [_load(FIRST_ARGUMENT_AT), *_when(ANY_BIT, NAMESPACE_FLAGS, ERRNO | errno.EPERM), _return(ALLOW)]
    program += [_jump(EQUAL, clone, 0, len(namespaces)), *namespaces]
    domains = [_load(FIRST_ARGUMENT_AT)]
    for domain in ALLOWED_SOCKETS:
        domains += _when(EQUAL, domain, ALLOW)
    domains.append(_return(ERRNO | errno.EAFNOSUPPORT))
    program += [_jump(EQUAL, make_socket, 0, len(domains)), *domains, _return(ALLOW)]
    return b"".join(program)


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
