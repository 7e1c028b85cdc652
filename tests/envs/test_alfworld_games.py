from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from winnowrl.envs.alfworld.games import TASK_TYPES, find_games, game_tasks
from winnowrl.envs.alfworld.rooms import pddl_problem, read_room_games
from winnowrl.envs.alfworld.saving import write_whole

GRAMMAR = '{"task": [{"rhs": "Your task is to: put a pen in the safe."}]}'


def write_game(root: Path, name: str, **content: object) -> Path:
    folder = root / "json_2.1.1" / name
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps({"grammar": GRAMMAR, "solvable": True, **content}))
    return folder


def test_importing_the_package_loads_neither_textworld_nor_alfworld() -> None:
    code = (
        "import sys, winnowrl.envs.alfworld as a; a.ALFWorldEnv(games='shipped').task_set('train'); "
        "print(sorted({'textworld', 'alfworld', 'fast_downward', 'torch'} & {n.split('.')[0] for n in sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_every_split_of_the_shipped_games_has_all_six_task_types(split: str, tmp_path: Path) -> None:
    tasks = game_tasks(None, split, TASK_TYPES, tmp_path)
    assert set(Counter(task.task_type for task in tasks)) == set(TASK_TYPES)
    assert len({task.id for task in tasks}) == len(tasks)


def test_splits_are_disjoint_and_eval_is_unseen(tmp_path: Path) -> None:
    ids = {
        split: {t.id for t in game_tasks(None, split, TASK_TYPES, tmp_path)}
        for split in ("train", "seen", "unseen", "eval")
    }
    assert not ids["train"] & ids["seen"]
    assert not ids["train"] & ids["unseen"]
    assert ids["eval"] == ids["unseen"]
    # Unseen rooms, not only unseen goals.
    games = {game.id: game for game in read_room_games()}
    assert not {games[i].room for i in ids["train"]} & {games[i].room for i in ids["unseen"]}


def test_an_unknown_split_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'test'; it has: train, seen, unseen, eval"):
        game_tasks(None, "test", TASK_TYPES, tmp_path)


def test_games_of_a_folder_are_read_with_type_and_goal(tmp_path: Path) -> None:
    write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-1/trial_1")
    write_game(tmp_path, "train/pick_two_obj_and_place-Pen-None-Safe-1/trial_1", solvable=False)
    write_game(tmp_path, "train/pick_and_place_with_movable_recep-Pen-Cup-Safe-1/trial_1")
    folder = find_games(tmp_path)
    tasks = game_tasks(folder, "train", TASK_TYPES, tmp_path / "cache")
    assert [(t.id, t.prompt, t.task_type) for t in tasks] == [
        ("train/pick_and_place_simple-Pen-None-Safe-1/trial_1", "put a pen in the safe", "pick_and_place_simple")
    ]
    with pytest.raises(ValueError, match="no game of pick_two_obj_and_place"):
        game_tasks(folder, "train", ["pick_two_obj_and_place"], tmp_path / "cache")


def test_the_list_is_remembered_until_a_game_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import winnowrl.envs.alfworld.games as games

    first = write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-1/trial_1")
    folder, cache = find_games(tmp_path), tmp_path / "cache"
    read, original = [], games._read_row
    monkeypatch.setattr(games, "_read_row", lambda trial, root: (read.append(trial), original(trial, root))[1])
    game_tasks(folder, "train", TASK_TYPES, cache)
    game_tasks(folder, "train", TASK_TYPES, cache)
    assert read == [first.resolve()]
    second = write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-2/trial_1")
    assert len(game_tasks(folder, "train", TASK_TYPES, cache)) == 2
    assert read == [first.resolve(), first.resolve(), second.resolve()]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seen": 1}'])
def test_a_broken_list_is_made_again(content: str, tmp_path: Path) -> None:
    write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-1/trial_1")
    folder, cache = find_games(tmp_path), tmp_path / "cache"
    game_tasks(folder, "train", TASK_TYPES, cache)
    (index,) = cache.glob("games-*.json")
    index.write_text(content)
    assert len(game_tasks(folder, "train", TASK_TYPES, cache)) == 1


DAMAGED = [
    "",
    '{"grammar": "',
    "[]",
    "null",
    '{"solvable": true}',
    '{"solvable": true, "grammar": 3}',
    "\xff",
    "[" * 100_000,
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_game_is_left_out_and_named(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-1/trial_1")
    damaged = write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-2/trial_1") / "game.tw-pddl"
    damaged.write_bytes(content.encode("latin-1"))
    folder, cache = find_games(tmp_path), tmp_path / "cache"
    for _ in range(2):  # from the files, then from the remembered list
        caplog.clear()
        (task,) = game_tasks(folder, "train", TASK_TYPES, cache)
        assert task.id == "train/pick_and_place_simple-Pen-None-Safe-1/trial_1"
        assert f"1 of its games are damaged and left out: {damaged.resolve()} (" in caplog.text
    (tmp_path / "json_2.1.1" / task.id / "game.tw-pddl").unlink()
    with pytest.raises(ValueError, match=r"no game of .*split 'train'; 1 of its games are damaged .*Safe-2"):
        game_tasks(folder, "train", TASK_TYPES, cache)


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_save_that_fails_leaves_nothing_behind(
    is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept" / "list"
    if is_folder:
        (path / "in the way").mkdir(parents=True)
    else:
        monkeypatch.setattr(Path, "replace", lambda *_: os.replace(tmp_path / "gone", path))
    write_whole(path, b"content")
    assert [entry.name for entry in path.parent.iterdir()] == ["list"] * is_folder


def test_a_folder_without_games_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"games is .*alfworld-download"):
        find_games(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"\$ALFWORLD_DATA is"):
        find_games(None)


def test_the_shipped_games_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert find_games(None) is None
    # What `import alfworld` sets the variable to when it was not set.
    monkeypatch.setenv("ALFWORLD_DATA", str(Path.home() / ".cache" / "alfworld"))
    if not (Path.home() / ".cache" / "alfworld" / "json_2.1.1").exists():
        assert find_games(None) is None
    write_game(tmp_path, "train/pick_and_place_simple-Pen-None-Safe-1/trial_1")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert find_games(None) == (tmp_path / "json_2.1.1").resolve()
    assert find_games("shipped") is None


def test_a_problem_declares_every_name_that_it_uses() -> None:
    for game in read_room_games():
        text = pddl_problem(game)
        assert text.count("(") == text.count(")")
        declared = {line.split(" - ")[0] for line in text.split("(:init")[0].splitlines() if " - " in line}
        used = {
            word
            for line in text.split("(:init")[1].split("(:goal")[0].splitlines()
            for word in line.strip("()").split()[1:]
        }
        assert used <= declared
