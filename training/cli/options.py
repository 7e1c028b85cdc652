"""Checks of what options are given, where typer lets it pass."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from winnowrl.configs.load import ConfigError
from winnowrl.envs.arguments import check_range

LARGEST_SEED = 2**63 - 1


def check_option(name: str, value: float | None, *, least: float = 0, most: float = math.inf) -> None:
    """Refuse a number out of range, or not finite; None is an option that was not given.

    Raises:
        ConfigError: naming the option, what came and what is allowed.
    """
    if value is None:
        return
    try:
        check_range(name, value, least=least, most=most)
    except ValueError as error:
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def output_folder(name: str, folder: Path | None) -> Iterator[None]:
    """Make a folder before the work that is to fill it; take it away again when nothing came of it.

    Args:
        name: Of the option, for the message.
        folder: None is an option that was not given.

    Raises:
        ConfigError: nothing can be written there.
    """
    if folder is None:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{name} is {str(folder)!r}, which is no folder that can be written ({error.strerror or error}); name one you "
            "may write to"
        ) from None
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise
