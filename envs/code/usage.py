"""What the processes of a sandbox use together, as the kernel counts it in ``/proc``.

Resident memory alone would miss what a program keeps inside the kernel, so sockets and files count by the most that one
can hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What a full socket of default size takes (its bytes may pass net.core.wmem_default by one message), and an empty file.
SOCKET_BYTES = 256 << 10
FILE_BYTES = 1 << 10


class Usage(NamedTuple):
    """What a sandbox uses now.

    Attributes:
        memory_mb: Resident memory, plus what its sockets and the files in its ``/tmp`` may hold in the kernel.
        cpu_s: Processor time, that of processes which ended and were waited for included.
        waited_s: Time its first thread was ready to run and had no processor.
        others_cpu_s: Of ``cpu_s``, what was not the first thread's.
        num_threads: Threads of all processes.
    """

    memory_mb: float = 0.0
    cpu_s: float = 0.0
    waited_s: float = 0.0
    others_cpu_s: float = 0.0
    num_threads: int = 0


def read_usage(pid: int) -> Usage:
    """What all processes below ``pid`` use; one that is just ending counts as nothing."""
    pages, ticks, threads = 0, 0, 0
    waiting = children(pid)
    first = waiting[0] if waiting else None
    while waiting:
        each = waiting.pop()
        fields = _stat(f"/proc/{each}/stat")
        if not fields:
            continue
        # Fields 14 to 17, 20 and 24 of proc(5), which counts from the process id, two before the first one here.
        ticks += sum(map(int, fields[11:15]))
        threads += int(fields[17])
        pages += int(fields[21])
        if fields[0] == b"Z" and int(fields[17]) > 1:
            pages += _pages_of_threads(each)
        waiting += children(each)
    if first is None:
        return Usage()
    # Read after the ticks: what the first thread ran meanwhile must not look like another's.
    ran_s, waited_s = _first_thread_s(first)
    cpu_s = ticks / TICKS_PER_S
    return Usage(pages * PAGE / 2**20 + _kernel_mb(first), cpu_s, waited_s, cpu_s - ran_s, threads)


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started and that are still there."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names alone, many times a second
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:
        pass
    return found


def _stat(path: str) -> list[bytes]:
    """The fields after the name, which may be any bytes; none where the process is gone."""
    try:
        return Path(path).read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _pages_of_threads(pid: int) -> int:
    """Resident pages of a process whose first thread has ended, which shows none itself."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names alone
    except OSError:
        return 0
    return max((int(fields[21]) for task in tasks if (fields := _stat(f"/proc/{pid}/task/{task}/stat"))), default=0)


def _first_thread_s(pid: int) -> tuple[float, float]:
    """Seconds it ran, and seconds it was ready to run and had no processor; 0 where the kernel does not count them."""
    try:
        ran, waited = Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def _kernel_mb(pid: int) -> float:
    """The most that the sockets and files of its namespaces hold; 0 where they cannot be counted."""
    held = 0
    try:
        # "sockets: used 3"
        held += int(Path(f"/proc/{pid}/net/sockstat").read_text().split(maxsplit=3)[2]) * SOCKET_BYTES
        disk = os.statvfs(Path("/proc", str(pid), "root", "tmp"))
        held += (disk.f_files - disk.f_ffree) * FILE_BYTES
    except (OSError, IndexError, ValueError):
        pass
    return held / 2**20
