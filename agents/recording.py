"""Rollouts on disk: one JSON row each, one compressed file a step, exact in both directions."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from winnowrl.agents.errors import ErrorRecord
from winnowrl.agents.rollout import Group, Rollout, TokenSequence, Turn

SUFFIX = ".jsonl.zst"
_LEVEL = 3
# Columns of the row that hold one value per turn, and the attribute of the turn they come from.
_TURN_COLUMNS = {
    "actions": "action",
    "texts": "text",
    "observations": "observation",
    "finish_reasons": "finish_reason",
    "turn_rewards": "reward",
    "turn_starts": "start",
    "turn_ends": "end",
    "turn_sequences": "sequence",
    "turn_loss_ends": "loss_end",
    "turn_generate_s": "generate_s",
    "turn_env_s": "env_s",
}
_SAME_NAME = (
    "task_id",
    "task_type",
    "group_id",
    "rollout_id",
    "index",
    "round_index",
    "is_in_baseline",
    "seed",
    "policy_version",
    "reward",
    "reward_parts",
    "verdict",
    "verdict_reason",
    "success",
    "terminated",
    "truncated",
    "stop_reason",
    "num_prefill_tokens",
    "num_cached_tokens",
    "generate_s",
    "env_s",
    "total_s",
    "was_request_lost",
    "info",
)
_GROUP_FIELDS = (
    "was_gated",
    "gate_stop",
    "gate_distance",
    "gate_reason",
    "gate_turn",
    "is_audit",
    "env_id",
    "env_seed",
    "is_replacement",
)


def rollout_row(step: int, group: Group, rollout: Rollout) -> dict[str, Any]:
    """Everything known of a rollout and of what its group decided, as plain values.

    ``token_ids``, ``completion_mask`` (0 and 1) and ``sampler_logprobs`` are those of its last token sequence;
    ``earlier_sequences`` holds those before it, empty unless the conversation forked.
    """
    *earlier, last = [
        {
            "token_ids": list(sequence.token_ids),
            "completion_mask": [int(is_sampled) for is_sampled in sequence.completion_mask],
            "sampler_logprobs": list(sequence.sampler_logprobs),
        }
        for sequence in rollout.sequences
    ]
    error = rollout.error
    return {
        "step": step,
        **{name: getattr(rollout, name) for name in _SAME_NAME},
        **{name: getattr(group, name) for name in _GROUP_FIELDS},
        "error": None if error is None else {"kind": error.kind, "message": error.message},
        "num_completion_tokens": rollout.num_completion_tokens,
        "tokens_per_turn": [turn.num_tokens for turn in rollout.turns],
        **{column: [getattr(turn, name) for turn in rollout.turns] for column, name in _TURN_COLUMNS.items()},
        **last,
        "earlier_sequences": earlier,
    }


def rollout_from_row(row: Mapping[str, Any]) -> Rollout:
    """The rollout that :func:`rollout_row` wrote, equal in every field."""
    columns = [row[column] for column in _TURN_COLUMNS]
    turns = [Turn(**dict(zip(_TURN_COLUMNS.values(), values, strict=True))) for values in zip(*columns, strict=True)]
    sequences = [
        TokenSequence(part["token_ids"], [bool(flag) for flag in part["completion_mask"]], part["sampler_logprobs"])
        for part in (*row["earlier_sequences"], row)
    ]
    error = ErrorRecord(**row["error"]) if row["error"] else None
    return Rollout(**{name: row[name] for name in _SAME_NAME}, turns=turns, sequences=sequences, error=error)


def step_path(folder: str | Path, step: int) -> Path:
    """``FOLDER/step_000012.jsonl.zst``."""
    return Path(folder) / f"step_{step:06d}{SUFFIX}"


def write_rollouts(folder: str | Path, step: int, groups: Iterable[Group]) -> Path:
    """Write the rollouts of a step. The file appears whole or not at all; one that is there is replaced."""
    path = step_path(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw:
            with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw, closefd=False) as compressed:
                for group in groups:
                    for rollout in group.rollouts:
                        compressed.write(_row_text(rollout_row(step, group, rollout)).encode("ascii") + b"\n")
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return path


def _row_text(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=repr)
    except Exception:  # noqa: BLE001 - what an environment put there must not end a run
        # Only an environment's own info can hold itself, keys that are no text, or what cannot be printed.
        return json.dumps({**row, "info": {"unreadable": _printed(row["info"])}}, default=repr)


def _printed(info: dict[str, Any]) -> str:
    try:
        return repr(info)[:1000]
    except Exception as error:  # noqa: BLE001
        return f"cannot be printed ({type(error).__name__}): keys {', '.join(map(str, info))[:900]}"


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of one file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged (the message names it and the last good row).
    """
    number = 0
    try:
        for line in _read_lines(Path(path)):
            number += 1
            yield json.loads(line)
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"{path} is damaged after row {max(0, number - 1)}: {error}") from None


def _read_lines(path: Path) -> Iterator[bytes]:
    reader, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    with path.open("rb") as raw:
        while chunk := raw.read(1 << 18):
            *lines, rest = (rest + reader.decompress(chunk)).split(b"\n")
            yield from lines
    if rest or not reader.eof:
        raise ValueError("it ends in the middle")


def read_run(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of all steps in a ``rollouts`` folder, in order.

    Raises:
        FileNotFoundError: the folder holds no recorded step.
    """
    paths = sorted(Path(folder).glob(f"step_*{SUFFIX}"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no rollouts (step_*{SUFFIX}); record them with run.save_rollouts")
    for path in paths:
        yield from read_rows(path)
