"""The command line: ``winnowrl train | resume | eval | export | env | gate | doctor``. Exit 2 means the user's mistake."""

from __future__ import annotations

import sys

from winnowrl.training.cli.preload import preload_allocators


def main() -> None:
    """Entry point of the ``winnowrl`` command."""
    # vLLM and torch are faster with these; the process starts again once with them.
    preload_allocators(sys.argv)
    from winnowrl.training.cli.app import run_app

    run_app()
