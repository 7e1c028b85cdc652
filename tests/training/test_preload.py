"""The command starts again with its allocator settings, keeping the user's."""

from __future__ import annotations

import pytest

from winnowrl.training.cli import preload


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "found_libraries", lambda: ["/lib/openmp.so"])
    given = {"MALLOC_MMAP_MAX_": "7", "LD_PRELOAD": "/lib/mine.so", "HOME": "/home"}

    started = preload.start_environment(given)

    assert started["MALLOC_MMAP_MAX_"] == "7"
    assert started["LD_PRELOAD"] == "/lib/openmp.so:/lib/mine.so"
    assert started["MALLOC_TRIM_THRESHOLD_"] == str(2**33)
    assert started["HOME"] == "/home"


@pytest.mark.parametrize(
    ("arguments", "starts_again"),
    [
        (["winnowrl", "train", "a.yaml"], True),
        (["winnowrl", "eval", "run"], True),
        (["winnowrl", "train", "--help"], False),
        (["winnowrl", "train", "a.yaml", "--dry-run"], False),
        (["winnowrl", "env", "list"], False),
        (["winnowrl"], False),
    ],
)
def test_only_commands_that_run_a_model_start_again(
    arguments: list[str], starts_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.delenv(preload.MARK, raising=False)
    monkeypatch.setattr(preload.os, "execve", lambda path, command, env: started.append((command, env)))

    preload.preload_allocators(arguments)

    assert len(started) == starts_again
    if starts_again:
        command, environment = started[0]
        assert command[-len(arguments) + 1 :] == arguments[1:]
        started.clear()
        monkeypatch.setenv(preload.MARK, environment[preload.MARK])
        preload.preload_allocators(arguments)
        assert not started, "once is enough"
