"""An environment in which even a random policy earns rewards that differ, for tests of the loop."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium

from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

KILL_AT = "WINNOWRL_TEST_KILL_AT"


class ParityEnv(TextEnv):
    """Each turn asks for an even character code; the reward is the share of replies whose first one is even."""

    def __init__(self, num_turns: int = 1, num_train: int = 12, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.num_turns, self.num_train = num_turns, num_train
        self._replies: list[bool] = []

    def task_set(self, split: str) -> TaskSet:
        if split not in ("train", "eval"):
            raise ValueError(f"no split {split!r}; train, eval")
        count = self.num_train if split == "train" else 6
        return TaskSet(
            [Task(f"{split}-{n}", f"{split} {n}: ", str(n), {"task_type": f"t{n % 2}"}) for n in range(count)]
        )

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self._replies = []
        return task.prompt, {}

    def respond(self, action: str) -> StepResult:
        self._replies.append(bool(action) and ord(action[0]) % 2 == 0)
        is_over = len(self._replies) == self.num_turns
        reward = sum(self._replies) / self.num_turns if is_over else 0.0
        info = {
            "action": action[:1],
            "success": reward == 1.0,
            "verdict": Verdict("correct" if reward == 1.0 else "wrong"),
        }
        return " next: ", reward, is_over, False, info


def kill_when_due() -> None:
    """SIGKILL this process once as many episodes have begun as the environment variable says."""
    limit = os.environ.get(KILL_AT)
    if limit is None:
        return
    global _num_begun
    _num_begun += 1
    if _num_begun == int(limit):
        os.kill(os.getpid(), signal.SIGKILL)


_num_begun = 0


class DeadlyParityEnv(ParityEnv):
    """Kills its process in the middle of a step when asked to."""

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        kill_when_due()
        return super().begin(task)


gymnasium.register("WinnowTest/Parity-v0", entry_point=ParityEnv, max_episode_steps=8)
gymnasium.register("WinnowTest/DeadlyParity-v0", entry_point=DeadlyParityEnv, max_episode_steps=8)
