"""What child processes print, in a file that does not grow without end: only its last bytes are ever read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile

KEPT_BYTES = 4096


class OutputFile:
    """An unnamed file for the standard output and error of a child; it is gone with the last process that has it open.

    A pipe would hold the child up whenever nobody reads. The file takes all, and its owner calls ``trim`` now and then.

    Args:
        limit_bytes: Size above which it is cut.
    """

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the child
        descriptor = self._file.fileno()
        # The child shares this flag: after a cut it writes on at the new end and leaves no hole.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        """Bytes it holds now."""
        return os.fstat(self.fileno()).st_size

    def end(self, num_bytes: int = KEPT_BYTES) -> bytes:
        """The last bytes that were written."""
        return os.pread(self.fileno(), num_bytes, max(0, self.size() - num_bytes))

    def trim(self) -> None:
        """Above the limit, keep the last 4 KiB. What is written in this very moment may be lost."""
        if self.size() > self._limit_bytes:
            kept = self.end()
            os.ftruncate(self.fileno(), 0)
            with contextlib.suppress(OSError):  # a full disk
                os.write(self.fileno(), kept)

    def close(self) -> None:
        """Calling it twice is fine."""
        self._file.close()
