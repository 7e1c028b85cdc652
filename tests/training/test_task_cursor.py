from __future__ import annotations

import pytest

from winnowrl.envs.tasks import Task
from winnowrl.training.task_cursor import TaskCursor

TASKS = [Task(str(i), "p") for i in range(10)]


def _ids(cursor: TaskCursor, *counts: int) -> list[list[str]]:
    return [[task.id for task in cursor.draw(count)] for count in counts]


def test_an_epoch_draws_every_task_once_and_epochs_differ() -> None:
    cursor = TaskCursor(TASKS, seed=1)
    first, second = _ids(cursor, 10, 10)
    assert sorted(first) == sorted(second) == sorted(task.id for task in TASKS)
    assert first != second


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5, 7])
def test_a_restored_cursor_goes_on_where_it_stopped_also_at_the_end_of_an_epoch(stop_after: int) -> None:
    straight = TaskCursor(TASKS, seed=2)
    expected = _ids(straight, *[5] * 9)
    cursor = TaskCursor(TASKS, seed=2)
    got = _ids(cursor, *[5] * stop_after)
    restored = TaskCursor(TASKS, seed=99)
    restored.load_state_dict(cursor.state_dict())
    assert got + _ids(restored, *[5] * (9 - stop_after)) == expected


def test_no_task_comes_twice_in_a_draw_that_crosses_an_epoch() -> None:
    for seed in range(50):
        cursor = TaskCursor(TASKS, seed=seed)
        for _ in range(10):
            drawn = [task.id for task in cursor.draw(7)]
            assert len(set(drawn)) == 7


def test_a_draw_larger_than_the_set_repeats_tasks() -> None:
    assert len(TaskCursor(TASKS[:3], seed=0).draw(8)) == 8


def test_an_empty_set_and_another_set_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TaskCursor([], seed=0)
    with pytest.raises(ValueError, match="10 train tasks"):
        TaskCursor(TASKS[:4], seed=0).load_state_dict(TaskCursor(TASKS, seed=0).state_dict())
