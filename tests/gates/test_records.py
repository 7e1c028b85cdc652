import gzip
import json

import pytest
import zstandard

from winnowrl.gates.records import read_groups


def row(group_id, index, actions=("a", "b"), reward=0.0, **fields):
    return {
        "step": 1, "group_id": group_id, "task_id": f"task-{group_id}", "task_type": "pick", "index": index,
        "actions": list(actions), "reward": reward, "stop_reason": "env_done", "was_gated": False, "is_audit": False,
        "num_completion_tokens": 6, "tokens_per_turn": [2, 4], **fields,
    }  # fmt: skip


def text(rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


def write(folder, rows, name="step_000001.jsonl"):
    target = folder / "rollouts"
    target.mkdir(exist_ok=True)
    (target / name).write_text(text(rows), encoding="utf-8")


def test_groups_are_read_with_what_happened(tmp_path):
    write(tmp_path, [row(7, 0, reward=1.0), row(7, 1, ("a", "c"), policy_version=3)])
    (group,) = read_groups(tmp_path)
    assert (group.step, group.group_id, group.task_id, group.task_type, group.size) == (1, 7, "task-7", "pick", 2)
    assert group.actions == (("a", "b"), ("a", "c"))
    assert group.tokens_per_turn == ((2.0, 4.0), (2.0, 4.0))
    assert group.rewards == (1.0, 0.0)
    assert group.is_usable
    assert not group.is_equal


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_every_kind_of_file_reads_alike(tmp_path, suffix):
    data = text([row(1, 0), row(1, 1)]).encode()
    pack = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstandard.ZstdCompressor().compress}
    (tmp_path / f"step_000001{suffix}").write_bytes(pack[suffix](data))
    (group,) = read_groups(tmp_path)
    assert group.size == 2
    assert read_groups(tmp_path / f"step_000001{suffix}") == [group]


def test_several_zstandard_frames_in_one_file(tmp_path):
    # A recorder that appends a frame per flush.
    frames = b"".join(zstandard.ZstdCompressor().compress(text([row(1, index)]).encode()) for index in range(3))
    (tmp_path / "step_000001.jsonl.zst").write_bytes(frames)
    assert read_groups(tmp_path)[0].size == 3


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_file_cut_by_a_crash_gives_its_whole_lines(tmp_path, suffix):
    data = text([row(group, index, note=f"{group * 17 + index}" * 40) for group in range(40) for index in range(2)])
    pack = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstandard.ZstdCompressor().compress}
    whole = pack[suffix](data.encode())
    (tmp_path / f"step_000001{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    groups = read_groups(tmp_path)
    assert len(groups) <= 30
    assert all(group.task_id == f"task-{group.group_id}" for group in groups)


def test_a_step_made_twice_counts_once_as_made_last(tmp_path):
    write(tmp_path, [row(1, 0), row(1, 1), row(1, 0, reward=1.0), row(1, 1, reward=1.0)])
    (group,) = read_groups(tmp_path)
    assert group.rewards == (1.0, 1.0)


def test_group_ids_may_start_over_in_each_step(tmp_path):
    write(tmp_path, [row(1, 0), row(1, 1)])
    write(tmp_path, [row(1, 0) | {"step": 2}, row(1, 1) | {"step": 2}], "step_000002.jsonl")
    assert [group.step for group in read_groups(tmp_path)] == [1, 2]


def test_failed_members_are_left_out_and_undecided_ones_have_no_reward(tmp_path):
    rows = [row(1, 0, reward=1.0), row(1, 1, verdict="undecided"), row(1, 2), row(1, 3, stop_reason="error")]
    rows.append(row(1, 4, error={"kind": "timeout"}))
    write(tmp_path, rows)
    (group,) = read_groups(tmp_path)
    assert group.size == 5
    assert len(group.actions) == 3
    assert group.rewards == (1.0, 0.0)


def test_a_gated_group_is_not_usable_even_without_its_flag(tmp_path):
    write(tmp_path, [row(1, 0, stop_reason="gate"), row(1, 1), row(2, 0, was_gated=True), row(2, 1, was_gated=True)])
    assert [group.is_usable for group in read_groups(tmp_path)] == [False, False]


def test_later_rounds_of_an_allocator_count_for_the_outcome_alone(tmp_path):
    rows = [row(1, 0, round_index=0), row(1, 1, round_index=0), row(1, 2, reward=1.0, round_index=1)]
    write(tmp_path, rows)
    (group,) = read_groups(tmp_path)
    assert group.size == len(group.actions) == 2
    assert not group.is_equal


def test_tokens_fall_back_to_equal_parts_and_to_turns(tmp_path):
    rows = [row(1, 0), row(1, 1)]
    del rows[0]["tokens_per_turn"]
    del rows[1]["tokens_per_turn"], rows[1]["num_completion_tokens"]
    write(tmp_path, rows)
    assert read_groups(tmp_path)[0].tokens_per_turn == ((3.0, 3.0), (1.0, 1.0))


def test_a_folder_without_recordings_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no recorded rollouts .* give a run folder"):
        read_groups(tmp_path)
    with pytest.raises(ValueError, match="nowhere has no recorded rollouts"):
        read_groups(tmp_path / "nowhere")


def test_a_line_that_is_no_rollout_is_named(tmp_path):
    write(tmp_path, [row(1, 0), {"step": 1, "group_id": 2, "index": 0, "task_id": "x", "reward": 0.0}])
    with pytest.raises(ValueError, match=r"step_000001.jsonl line 2 has no field 'actions'"):
        read_groups(tmp_path)
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text("[1, 2]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 is not a rollout record"):
        read_groups(tmp_path)


@pytest.mark.parametrize("name", ["step_000001.jsonl", "step_000001.jsonl.gz", "step_000001.jsonl.zst"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / name).write_bytes(b"\xff\xfe garbage \x00" * 50)
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        read_groups(tmp_path)


def test_what_a_run_records_is_read(tmp_path):
    from winnowrl.agents.recording import write_rollouts
    from winnowrl.agents.rollout import Group, Rollout, TokenSequence, Turn
    from winnowrl.envs.tasks import Task

    def member(index, actions, stop_reason="env_done", **fields):
        tokens = TokenSequence(list(range(10)), [True] * 10, [-0.5] * 10)
        turns = [Turn(start=3 * n, end=3 * n + 2, text=action, action=action) for n, action in enumerate(actions)]
        return Rollout(
            "t1", 5, index, seed=1, policy_version=0, task_type="pick", sequences=[tokens], turns=turns,
            stop_reason=stop_reason, **fields,
        )  # fmt: skip

    task = Task("t1", "prompt")
    open_group = Group(5, task, 0, [member(0, "abc", reward=1.0), member(1, "ab")], gate_stop=True, is_audit=True)
    stopped = Group(6, task, 0, [member(0, "ab", "gate"), member(1, "ab", "gate")], gate_stop=True, was_gated=True)
    for rollout in stopped.rollouts:
        rollout.group_id = 6
    write_rollouts(tmp_path / "rollouts", 3, [open_group, stopped])
    audited, gated = read_groups(tmp_path)
    assert (audited.step, audited.group_id, audited.task_id, audited.task_type) == (3, 5, "t1", "pick")
    assert audited.actions == (("a", "b", "c"), ("a", "b"))
    assert audited.tokens_per_turn == ((2.0, 2.0, 2.0), (2.0, 2.0))
    assert audited.rewards == (1.0, 0.0)
    assert audited.is_audit
    assert audited.is_usable
    assert gated.was_gated
    assert not gated.is_usable
