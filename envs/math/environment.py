"""``winnowrl/Math-v0``: one mathematics problem, one reply, judged by the verifier."""

from __future__ import annotations

from typing import Any, ClassVar

from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.math.extract import balanced_boxes, extract_answer, outside_thinking
from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.problems import ProblemSource, load_splits
from winnowrl.envs.math.verifier import verify_answer
from winnowrl.envs.tasks import Task, TaskSet

DEFAULT_PROMPT = "{problem}\n\nReason step by step, and put your final answer within \\boxed{}."


class MathEnv(TextEnv):
    """Problems with a reference answer; reward 1 for a right answer.

    Args:
        source: A ``.jsonl`` or ``.parquet`` file (columns problem and answer; level, subject and id when there) or the
            name of a Hugging Face data set. None is a starter set of 42 problems that comes with the package, ``sums``
            one of 1,600 sums for models too small for that.
        eval_source: What to evaluate on. None holds out ``heldout_fraction`` of ``source`` by a hash of each problem,
            so that no problem is in both splits; train problems that stand in ``eval_source`` are left out.
        heldout_fraction: See ``eval_source``.
        prompt_template: The first message, with ``{problem}`` in it.
        min_level, max_level: Keep problems whose level is in this range.
        limit, eval_limit: At most this many problems of each split.
        unreadable_gold: ``refuse`` reference answers that cannot be judged (naming the row) or ``drop`` them.
        require_boxed: Only a ``\\boxed{}`` counts as an answer.
        format_weight: Reward for a reply with a balanced box, whatever is in it.
        verifier: Options of :class:`~winnowrl.envs.math.VerifierPolicy` by name.

    ``info["action"]`` is the answer found, ``info["verdict"]`` what was decided about it; an undecided verdict (time
    limit) takes the rollout out of its group. Splits: train, eval.
    """

    execution: ClassVar[Execution] = "thread"

    def __init__(
        self,
        source: str | None = None,
        eval_source: str | None = None,
        heldout_fraction: float = 0.2,
        prompt_template: str = DEFAULT_PROMPT,
        min_level: float | None = None,
        max_level: float | None = None,
        limit: int | None = None,
        eval_limit: int | None = None,
        unreadable_gold: str = "refuse",
        require_boxed: bool = False,
        format_weight: float = 0.0,
        verifier: dict[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        if "{problem}" not in prompt_template:
            raise ValueError(f"prompt_template is {prompt_template!r}; it must contain {{problem}}")
        self.problems = ProblemSource(
            source, eval_source, heldout_fraction, min_level, max_level, limit, eval_limit, unreadable_gold
        )
        self.policy = make_policy(verifier, require_boxed=require_boxed)
        self.prompt_template, self.format_weight = prompt_template, format_weight

    def task_set(self, split: str) -> TaskSet:
        splits = load_splits(self.problems, self.policy)
        if split not in splits:
            raise ValueError(f"Math has no split {split!r}; it has: {', '.join(splits)}")
        return splits[split]

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        return self.prompt_template.replace("{problem}", task.prompt), {}

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        answer = extract_answer(
            action,
            require_boxed=self.policy.require_boxed,
            multiline_inline_math=self.policy.multiline_inline_math,
        )
        verdict = verify_answer(self.task.answer or "", answer, self.policy)
        parts = {"accuracy": float(verdict.is_correct)}
        if self.format_weight:
            parts["format"] = float(bool(balanced_boxes(outside_thinking(action))))
        reward = parts["accuracy"] + self.format_weight * parts.get("format", 0.0)
        info = {"action": answer or "", "verdict": verdict, "success": verdict.is_correct, "reward_parts": parts}
        return "", reward, True, False, info


def make_policy(options: dict[str, Any] | None, *, require_boxed: bool = False) -> VerifierPolicy:
    """A verifier policy from options by name.

    Raises:
        ValueError: an option that does not exist, or a value that is not allowed.
    """
    options = {"require_boxed": require_boxed, **(options or {})}
    known = VerifierPolicy.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ValueError(f"verifier.{name} is no option; allowed: {', '.join(known)}")
    return VerifierPolicy(**options)
