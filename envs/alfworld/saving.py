"""Saving what can be computed again."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write under another name and rename, so that no reader sees half a file.

    A folder that cannot be written or a full disk costs the saving, no more, and nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)  # noqa: SIM115 - closed below
    except OSError:
        return
    with contextlib.suppress(OSError):
        try:
            with file:
                file.write(content)
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)
