"""``winnowrl/CCR-v0``: N problems in one prompt, answered in one reply under one shared token window."""

from __future__ import annotations

from typing import Any, ClassVar

from winnowrl.envs.arguments import check_arguments, check_range
from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.ccr.grouping import GROUPINGS, concurrent_task, group_problems
from winnowrl.envs.ccr.recovery import DUPLICATES, Recovery, recover
from winnowrl.envs.math.environment import DEFAULT_PROMPT, MathEnv, make_policy
from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.problems import ProblemSource
from winnowrl.envs.math.verifier import verify_answer
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

NO_ANSWER = "no answer found"
MOST_EXAMPLES = 16


class CCREnv(TextEnv):
    """Several problems a reply; accuracy counts over all of them, whether reached or not.

    reward = accuracy_weight * (right answers / N) + format_weight * format. The denominator is always N, the number
    assigned; format (one marked, boxed answer for each problem, in order) never gates accuracy. Answers are recovered
    from a reply that was cut off, so a cut costs what it left unanswered and nothing else: keep such replies in the
    loss, and do not mask truncated completions.

    Args:
        num_problems: N, problems in one train prompt.
        num_groups: Train tasks; None uses each problem once.
        grouping: ``random`` or ``stratified`` (one problem from each of N difficulty bands).
        accuracy_weight, format_weight: See above; 0 or more.
        num_examples: Worked examples before the problems, in the markup that is asked for; a model that only continues text
            (``conversation.template: plain``) needs them.
        duplicates: A problem answered twice gets its ``last`` answer or ``none``.
        mask_after_last_answer: Name in ``info["loss_text_end"]`` the character after which a reply that was cut carries
            no recoverable answer, for the trainer to leave the rest out of the loss.
        seed: Decides the groups.
        source, eval_source, heldout_fraction, min_level, max_level, limit, eval_limit, unreadable_gold: The problems,
            as in ``winnowrl/Math-v0``.
        prompt_template: Prompt of the single problems of evaluation, with ``{problem}`` in it.
        verifier: Options of :class:`~winnowrl.envs.math.VerifierPolicy` by name.

    Splits: ``train`` has groups of N, ``eval`` single problems asked and judged as in ``winnowrl/Math-v0``.
    ``info["ccr"]``: num_problems, answers, recovered, correct (all by position), n_eff (answers recovered), ambiguous.
    """

    execution: ClassVar[Execution] = "thread"

    def __init__(
        self,
        num_problems: int = 3,
        num_groups: int | None = None,
        grouping: str = "random",
        num_examples: int = 0,
        accuracy_weight: float = 1.0,
        format_weight: float = 1.0,
        duplicates: str = "last",
        mask_after_last_answer: bool = False,
        seed: int = 0,
        source: str | None = None,
        eval_source: str | None = None,
        heldout_fraction: float = 0.2,
        min_level: float | None = None,
        max_level: float | None = None,
        limit: int | None = None,
        eval_limit: int | None = None,
        unreadable_gold: str = "refuse",
        prompt_template: str = DEFAULT_PROMPT,
        verifier: dict[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_arguments(CCREnv, locals())
        check_arguments(VerifierPolicy, verifier or {}, "verifier.")
        super().__init__(render_mode)
        if num_problems < 1:
            raise ValueError(f"num_problems is {num_problems}; allowed: 1 or more")
        if num_groups is not None and num_groups < 1:
            raise ValueError(f"num_groups is {num_groups}; allowed: None, or 1 or more")
        if grouping not in GROUPINGS:
            raise ValueError(f"grouping is {grouping!r}; allowed: {', '.join(GROUPINGS)}")
        if duplicates not in DUPLICATES:
            raise ValueError(f"duplicates is {duplicates!r}; allowed: {', '.join(DUPLICATES)}")
        check_range("num_examples", num_examples, most=MOST_EXAMPLES)
        check_range("accuracy_weight", accuracy_weight)
        check_range("format_weight", format_weight)
        check_range("seed", seed)
        self.num_examples = num_examples
        self.num_problems, self.num_groups, self.grouping, self.seed = num_problems, num_groups, grouping, seed
        self.accuracy_weight, self.format_weight = accuracy_weight, format_weight
        self.duplicates, self.mask_after_last_answer = duplicates, mask_after_last_answer
        self.policy = make_policy(verifier)
        self.single = MathEnv(prompt_template=prompt_template, verifier=verifier)
        self.single.problems = ProblemSource(
            source, eval_source, heldout_fraction, min_level, max_level, limit, eval_limit, unreadable_gold
        )
        self._train: TaskSet | None = None

    def task_set(self, split: str) -> TaskSet:
        if split not in ("train", "eval"):
            raise ValueError(f"CCR has no split {split!r}; it has: train, eval")
        problems = self.single.task_set(split)
        if split == "eval":
            return problems
        if self._train is None:
            groups = group_problems(problems, self.num_problems, self.num_groups, self.grouping, self.seed)
            self._train = TaskSet(
                [concurrent_task(group, i, self.num_examples) for i, group in enumerate(groups)], "ccr/train"
            )
        return self._train

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        if _is_concurrent(task):
            return task.prompt, {}
        self.single.task = task
        return self.single.begin(task)

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        if not _is_concurrent(self.task):
            return self.single.respond(action)
        golds: tuple[str, ...] = self.task.metadata["answers"]
        recovery = recover(action, len(golds), duplicates=self.duplicates)
        verdicts = [
            verify_answer(gold, answer, self.policy) if answer is not None else Verdict("wrong", NO_ANSWER)
            for gold, answer in zip(golds, recovery.answers, strict=True)
        ]
        parts = {
            "accuracy": sum(verdict.is_correct for verdict in verdicts) / len(golds),
            "format": float(recovery.is_well_formed),
        }
        reward = self.accuracy_weight * parts["accuracy"] + self.format_weight * parts["format"]
        return "", reward, True, False, self._info(recovery, verdicts, parts)

    def _info(self, recovery: Recovery, verdicts: list[Verdict], parts: dict[str, float]) -> dict[str, Any]:
        overall = _joint_verdict(verdicts)
        info: dict[str, Any] = {
            "action": " | ".join(answer or "" for answer in recovery.answers),
            "verdict": overall,
            "success": overall.is_correct,
            "reward_parts": parts,
            "ccr": {
                "num_problems": len(verdicts),
                "answers": list(recovery.answers),
                "recovered": [answer is not None for answer in recovery.answers],
                "correct": [verdict.is_correct for verdict in verdicts],
                "n_eff": recovery.num_recovered,
                "ambiguous": sorted(recovery.ambiguous),
            },
        }
        end = max((end for end in recovery.ends if end is not None), default=0)
        # Without any answer there is nothing to keep apart, and the whole reply stays in the loss.
        if self.mask_after_last_answer and end:
            info["loss_text_end"] = end
        return info


def _is_concurrent(task: Task) -> bool:
    return task.metadata.get("style") == "concurrent"


def _joint_verdict(verdicts: list[Verdict]) -> Verdict:
    """Undecided when any part is: a count with a gap is no reward."""
    seconds = sum(verdict.seconds for verdict in verdicts)
    for position, verdict in enumerate(verdicts, start=1):
        if not verdict.is_decided:
            return Verdict("undecided", f"problem {position}: {verdict.reason}", seconds)
    if all(verdict.reason == NO_ANSWER for verdict in verdicts):
        return Verdict("wrong", NO_ANSWER, seconds)
    num_correct = sum(verdict.is_correct for verdict in verdicts)
    return Verdict(
        "correct" if num_correct == len(verdicts) else "wrong", f"{num_correct} of {len(verdicts)} right", seconds
    )
