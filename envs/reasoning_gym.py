"""``winnowrl/ReasoningGym-v0``: any generated data set of the reasoning-gym package, with its own scorer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from winnowrl.envs.arguments import check_arguments, check_range
from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.isolation.shared import SharedPool
from winnowrl.envs.math.extract import balanced_boxes, outside_thinking
from winnowrl.envs.reasoning_gym_scorer import entry_job
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

DEFAULT_PROMPT = "{problem}\n\nThink first, then give your final answer between <answer> and </answer>."
REWARDS = ("exact", "score")
HELDOUT_FRACTION = 0.2
DRAWS_PER_TASK = 20
NUM_OTHERS = 12
MAX_ANSWER_CHARS = 20_000

_pool = SharedPool("winnowrl.envs.reasoning_gym_scorer")


class ReasoningGymEnv(TextEnv):
    """Tasks drawn from one generator; one reply, scored by the data set itself in a process that can be killed.

    Args:
        dataset: Name of the data set (``leg_counting``, ``countdown``, ...).
        config: Its configuration by name.
        num_train, num_eval: Most tasks of each split.
        seed: Seed of the generator. A task is held out when a hash of its question says so (a fifth are), whatever the
            seed: the splits never share one. A generator with few questions gives fewer tasks.
        reward: ``exact``: 1 for full marks, else 0. ``score``: the marks, less the most that garbage gets (words, small
            numbers, answers of other tasks), so that little is earned without reading the question.
        prompt_template: The first message, with ``{problem}`` in it.
        time_limit_s: Wall-clock seconds for scoring one reply; over it the verdict is undecided.

    The answer is what stands between the last ``<answer>`` tags, else in the last ``\\boxed{}``.
    """

    execution: ClassVar[Execution] = "thread"

    def __init__(
        self,
        dataset: str = "leg_counting",
        config: dict[str, Any] | None = None,
        num_train: int = 512,
        num_eval: int = 64,
        seed: int = 0,
        reward: str = "exact",
        prompt_template: str = DEFAULT_PROMPT,
        time_limit_s: float = 5.0,
        render_mode: str | None = None,
    ) -> None:
        check_arguments(ReasoningGymEnv, locals())
        super().__init__(render_mode)
        if reward not in REWARDS:
            raise ValueError(f"reward is {reward!r}; allowed: {', '.join(REWARDS)}")
        if "{problem}" not in prompt_template:
            raise ValueError(f"prompt_template is {prompt_template!r}; it must contain {{problem}}")
        if min(num_train, num_eval) < 1:
            raise ValueError(f"num_train is {num_train} and num_eval {num_eval}; allowed: 1 or more")
        if not 0 < time_limit_s <= 600:
            raise ValueError(f"time_limit_s is {time_limit_s}; allowed: above 0, up to 600 seconds")
        check_range("seed", seed)
        _check_dataset(dataset)
        self.dataset, self.config = dataset, dict(config or {})
        self.counts = {"train": num_train, "eval": num_eval}
        self.seed, self.reward = seed, reward
        self.prompt_template, self.time_limit_s = prompt_template, time_limit_s
        self._sets: dict[str, TaskSet] = {}

    def task_set(self, split: str) -> TaskSet:
        if split not in self.counts:
            raise ValueError(f"ReasoningGym has no split {split!r}; it has: train, eval")
        if not self._sets:
            self._sets = self._draw()
        return self._sets[split]

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        return self.prompt_template.replace("{problem}", task.prompt), {}

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        answer = tagged_answer(action)
        if answer is None:
            verdict, score = Verdict("wrong", "no answer found"), 0.0
        elif len(answer) > MAX_ANSWER_CHARS:
            verdict, score = Verdict("wrong", f"prediction beyond limits: {len(answer)} characters"), 0.0
        else:
            metadata = self.task.metadata
            job = entry_job(self.dataset, self.config, metadata["entry"], answer, metadata["others"])
            reply = _pool.get().run(job, self.time_limit_s)
            verdict, score = Verdict(reply.status, reply.reason), reply.score  # type: ignore[arg-type]
        reward = float(verdict.is_correct) if self.reward == "exact" else score
        info = {
            "action": answer or "",
            "verdict": verdict,
            "success": verdict.is_correct,
            "reward_parts": {"accuracy": float(verdict.is_correct), "score": score},
        }
        return "", reward, True, False, info

    def _draw(self) -> dict[str, TaskSet]:
        """Generate entries until both splits are full or the generator has no more new questions to give."""
        drawn: dict[str, list[tuple[int, str, dict[str, Any]]]] = {"train": [], "eval": []}
        seen: set[str] = set()
        for index, entry in self._entries():
            question = str(entry["question"])
            if question in seen:
                continue
            seen.add(question)
            split = "eval" if _is_held_out(question) else "train"
            if len(drawn[split]) < self.counts[split]:
                drawn[split].append((index, question, entry))
            if all(len(drawn[name]) >= count for name, count in self.counts.items()):
                break
        for split, found in drawn.items():
            if not found:
                raise ValueError(f"{self.dataset} gave no {split} task; give it a config with more different questions")
        answers = dict.fromkeys(entry["answer"] for _, _, entry in drawn["train"])
        others = tuple(answer for answer in answers if isinstance(answer, str))[:NUM_OTHERS]
        return {
            split: TaskSet(
                [_task(self.dataset, *each, others) for each in found], f"reasoning_gym/{self.dataset}/{split}"
            )
            for split, found in drawn.items()
        }

    def _entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        import reasoning_gym

        size = DRAWS_PER_TASK * sum(self.counts.values())
        try:
            dataset = reasoning_gym.create_dataset(self.dataset, size=size, seed=self.seed, **self.config)
        except (TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"config of {self.dataset} is {self.config}; reasoning-gym refuses it: {error}") from error
        for index in range(size):
            yield index, dataset[index]


def tagged_answer(reply: str) -> str | None:
    """What stands between the last answer tags outside thinking, else in the last box, else None."""
    visible = outside_thinking(reply)
    for part in reversed(visible.split("<answer>")[1:]):
        answer, end, _ = part.partition("</answer>")
        if end:
            return answer.strip()
    boxes = balanced_boxes(visible)
    return boxes[-1][2] if boxes else None


def close_pool() -> None:
    """End the scoring processes; the next reply starts new ones."""
    _pool.close()


def _task(dataset: str, index: int, question: str, entry: dict[str, Any], others: tuple[str, ...]) -> Task:
    """A task carries the reference answers of other entries: what they earn here is earned without reading the question."""
    answer = entry["answer"]
    metadata = MappingProxyType({"task_type": dataset, "entry": entry, "others": others})
    return Task(f"{dataset}-{index}", question, None if answer is None else str(answer), metadata)


def _is_held_out(question: str) -> bool:
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELDOUT_FRACTION * 2**64


@lru_cache(maxsize=256)
def _check_dataset(name: str) -> None:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ImportError("winnowrl/ReasoningGym-v0 needs: pip install 'winnowrl[reasoning-gym]'") from None
    if name not in DATASETS:
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(name, DATASETS, n=3)) or ", ".join(sorted(DATASETS)[:5]) + ", ..."
        raise ValueError(f"dataset is {name!r}, which reasoning-gym does not have; nearest: {near}")
