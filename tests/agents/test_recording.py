"""Rollouts on disk: exact both ways, whole or not there at all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from winnowrl.agents.errors import ErrorRecord
from winnowrl.agents.recording import read_rows, read_run, rollout_from_row, step_path, write_rollouts
from winnowrl.agents.rollout import Group, Rollout, TokenSequence, Turn
from winnowrl.envs.tasks import Task


def make_group() -> Group:
    full = Rollout(
        task_id="task/ü\ud800",
        group_id=7,
        index=3,
        seed=2**62 + 1,
        policy_version=4,
        task_type="easy",
        rollout_id=70003,
        round_index=1,
        is_in_baseline=False,
        sequences=[
            TokenSequence([1, 2], [False, True], [0.0, -0.1]),
            TokenSequence([5, 6, 7], [False, True, True], [0.0, -1 / 3, -1e-30]),
        ],
        turns=[
            Turn(1, 2, "a\u2028b", "act", "obs\n", "length", 0, 0.1, 1.5, 0.25, None),
            Turn(1, 3, "cd", "cd", "", "stop", 1, 0.2, 0.5, 0.125, 2),
        ],
        reward=0.1 + 0.2,
        reward_parts={"accuracy": 1 / 3},
        verdict="correct",
        success=True,
        terminated=True,
        stop_reason="env_done",
        info={"note": [1, {"x": None}]},
        num_prefill_tokens=9,
        num_cached_tokens=3,
        generate_s=0.7,
        env_s=0.1,
        total_s=1.0,
    )
    failed = Rollout(
        "t", 7, 4, 1, 4, stop_reason="error", error=ErrorRecord("engine", "it broke"), was_request_lost=True
    )
    return Group(7, Task("t", "p"), 4, [full, failed], gate_stop=True, is_audit=True, gate_distance=0.05, gate_turn=10)


def test_a_rollout_reads_back_equal_in_every_field(tmp_path: Path) -> None:
    group = make_group()
    path = write_rollouts(tmp_path / "rollouts", 12, [group])
    assert path.name == "step_000012.jsonl.zst"
    rows = list(read_rows(path))
    assert [rollout_from_row(row) for row in rows] == group.rollouts
    assert {row["step"] for row in rows} == {12}
    first = rows[0]
    assert (first["is_audit"], first["was_gated"], first["gate_distance"], first["gate_turn"]) == (
        True,
        False,
        0.05,
        10,
    )
    assert first["tokens_per_turn"] == [1, 2]
    assert first["num_completion_tokens"] == 3
    assert first["actions"] == ["act", "cd"]
    assert rows[1]["error"] == {"kind": "engine", "message": "it broke"}


def test_every_field_of_a_rollout_is_recorded() -> None:
    # A field added to the contract and forgotten here would silently be lost on disk.
    from winnowrl.agents.recording import _SAME_NAME, _TURN_COLUMNS

    assert {field.name for field in dataclasses.fields(Rollout)} == {*_SAME_NAME, "turns", "sequences", "error"}
    assert {field.name for field in dataclasses.fields(Turn)} == set(_TURN_COLUMNS.values())


def test_a_file_is_replaced_whole_and_nothing_partial_stays(tmp_path: Path) -> None:
    group = make_group()
    write_rollouts(tmp_path, 1, [group])

    class Interrupted(Exception):
        pass

    def breaks_half_way():  # type: ignore[no-untyped-def]
        yield group
        raise Interrupted

    with pytest.raises(Interrupted):
        write_rollouts(tmp_path, 1, breaks_half_way())
    with pytest.raises(Interrupted):
        write_rollouts(tmp_path, 2, breaks_half_way())
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001.jsonl.zst"]
    assert len(list(read_rows(step_path(tmp_path, 1)))) == 2


def test_a_run_is_read_in_the_order_of_its_steps(tmp_path: Path) -> None:
    for step in (10, 2, 1):
        write_rollouts(tmp_path, step, [make_group()])
    assert [row["step"] for row in read_run(tmp_path)] == [1, 1, 2, 2, 10, 10]
    with pytest.raises(FileNotFoundError, match="no rollouts"):
        next(read_run(tmp_path / "absent"))


def test_damage_is_named(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, 1, [make_group()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="is damaged after row"):
        list(read_rows(path))


def test_odd_numbers_survive(tmp_path: Path) -> None:
    group = make_group()
    group.rollouts[0].sequences[1].sampler_logprobs = [0.0, -math.inf, 5e-324]
    group.rollouts[0].info = {"path": Path("x")}
    row = next(read_rows(write_rollouts(tmp_path, 1, [group])))
    assert row["sampler_logprobs"] == [0.0, -math.inf, 5e-324]
    assert "x" in row["info"]["path"]


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize("make", [lambda: 10**5000, _deep, _Unprintable])
def test_an_info_that_cannot_even_be_printed_costs_the_info_alone(make: Callable[[], Any], tmp_path: Path) -> None:
    group = make_group()
    group.rollouts[0].info = {"n": make()}
    write_rollouts(tmp_path, 1, [group])
    rows = list(read_rows(step_path(tmp_path, 1)))
    assert len(rows) == len(group.rollouts)
    assert "n" in rows[0]["info"]["unreadable"]
    assert rows[0]["token_ids"] == group.rollouts[0].token_ids


def test_an_info_that_cannot_be_written_costs_the_info_alone(tmp_path: Path) -> None:
    group = make_group()
    circle: dict[object, object] = {("a", 1): 2}
    circle["itself"] = circle
    group.rollouts[0].info = circle  # type: ignore[assignment]
    write_rollouts(tmp_path, 1, [group])
    rows = list(read_rows(step_path(tmp_path, 1)))
    assert len(rows) == len(group.rollouts)
    assert "itself" in rows[0]["info"]["unreadable"]
    assert rows[0]["token_ids"] == group.rollouts[0].token_ids
