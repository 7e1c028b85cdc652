"""The environment contract: a Gymnasium environment of strings that serves the tasks of a task set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from winnowrl.envs.spaces import UnicodeText
from winnowrl.envs.tasks import Task, TaskSet

Execution = Literal["inline", "thread", "process"]
StepResult = tuple[str, float, bool, bool, dict[str, Any]]


class TextEnv(gymnasium.Env[str, str]):
    """One episode of one task, in text.

    A subclass implements :meth:`task_set`, :meth:`begin` and :meth:`respond`. The agent's reply is the action; the
    observation is the next message to it. A single-turn problem terminates at its first step. Environments never see
    tokens.

    ``info`` may carry:
        action: canonical action string, what gates compare (the reply itself when absent).
        admissible_actions: list of the actions allowed now.
        reward_parts: named components of the reward, ``dict[str, float]``.
        verdict: a :class:`~winnowrl.envs.verdict.Verdict`; an undecided one takes the rollout out of its group.
        success: whether the task was solved, for evaluation.

    Class attributes:
        execution: where ``step`` runs. ``inline``: microseconds, in the event loop. ``thread``: it waits on a process
            or a file. ``process``: it computes, blocks for long or may crash its process.
        system_prompt: the system message for the agent, or None.
        stop: strings that end a reply (the reply keeps the stop string).
        requires: modules that its episodes import, each with how to get it; a missing one is told before a model loads.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    execution: ClassVar[Execution] = "inline"
    system_prompt: str | None = None
    stop: tuple[str, ...] = ()
    requires: ClassVar[Mapping[str, str]] = MappingProxyType({})
    _generator: np.random.Generator | None = None
    _unused_seed: int | None = None

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'ansi'")
        self.render_mode = render_mode
        self.observation_space: spaces.Space[str] = UnicodeText()
        self.action_space: spaces.Space[str] = UnicodeText()
        self.task: Task | None = None
        self._transcript: list[str] = []

    @abstractmethod
    def task_set(self, split: str) -> TaskSet:
        """The tasks of ``split`` ("train", "eval", or what the environment documents). Disjoint between splits.

        Raises:
            ValueError: the environment has no such split (the message lists those it has).
        """

    @abstractmethod
    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        """Set the episode up for ``task`` and return the first observation and info.

        Only ``task`` and ``self.np_random`` (seeded by ``reset``) may decide the outcome: members of a group reset with
        the same task and seed and must see the same first observation.
        """

    @abstractmethod
    def respond(self, action: str) -> StepResult:
        """Answer the agent's reply: observation, reward, terminated, truncated, info."""

    @property
    def _np_random(self) -> np.random.Generator | None:
        """Gymnasium's generator, seeded on first use: seeding costs more than the whole reset of most text environments."""
        if self._unused_seed is not None:
            self._generator, _ = seeding.np_random(self._unused_seed)
            self._unused_seed = None
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator, self._unused_seed = generator, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode of ``options["task"]``; without one, of a train task drawn with ``seed``."""
        if type(seed) is int and seed >= 0:
            self._generator, self._unused_seed, self._np_random_seed = None, seed, seed
        else:
            super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            tasks = self.task_set("train")
            task = tasks[int(self.np_random.integers(len(tasks)))]
        self.task = task
        observation, info = self.begin(task)
        self._transcript = [observation]
        return observation, info

    def step(self, action: str) -> StepResult:
        if self.task is None:
            raise gymnasium.error.ResetNeeded("step() was called before reset()")
        result = self.respond(action)
        self._transcript += [action, result[0]]
        return result

    def render(self) -> str | None:  # type: ignore[override]
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None
