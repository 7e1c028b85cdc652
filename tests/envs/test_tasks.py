from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from winnowrl.envs.tasks import Task, load_tasks


def _jsonl(path: Path, rows: list) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_columns_are_found_and_the_rest_is_metadata(tmp_path: Path) -> None:
    path = _jsonl(
        tmp_path / "a.jsonl", [{"id": "x", "problem": "1+1", "answer": 2, "level": 3}, {"question": "q", "target": "t"}]
    )
    tasks = load_tasks(path)
    assert tasks[0] == Task("x", "1+1", "2", tasks[0].metadata)
    assert dict(tasks[0].metadata) == {"level": 3}
    assert tasks[1].id == "a-1"
    assert len(tasks[:1]) == 1


def test_parquet_reads_like_jsonl(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"prompt": ["a", "b"], "answer": ["1", "2"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert [task.answer for task in load_tasks(tmp_path / "t.parquet")] == ["1", "2"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([{"problem": "p"}], "row 1: no answer column"),
        ([{"problem": "p", "answer": "1"}, {"problem": "q", "answer": "  "}], "row 2: the answer is empty"),
        ([{"problem": "p", "answer": None}], "row 1: the answer is empty"),
        ([{"problem": " ", "answer": "1"}], "row 1: the prompt is empty"),
        ([{"text": "p", "answer": "1"}], "row 1: no prompt column"),
        (["{not json"], "line 1: not JSON"),
        (["[1, 2]"], "line 1: a list"),
        ([{"id": 1, "problem": "p", "answer": "1"}] * 2, "stands twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(_jsonl(tmp_path / "a.jsonl", rows))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl"):
        load_tasks(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match=r"\.csv"):
        load_tasks(_jsonl(tmp_path / "a.csv", ["x"]))


def test_a_check_can_refuse_a_row(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "a.jsonl", [{"problem": "p", "answer": "?"}])
    with pytest.raises(ValueError, match="row 1: the answer cannot be read"):
        load_tasks(path, check=lambda task: "the answer cannot be read" if task.answer == "?" else None)


def test_tasks_travel_to_worker_processes() -> None:
    task = Task("a", "p", "1", {"level": 2})
    assert pickle.loads(pickle.dumps(task)) == task
