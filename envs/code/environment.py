"""``winnowrl/Code-v0``: write a program, have it run against tests that nobody but the judge can see."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any, ClassVar, Literal

from winnowrl.envs.arguments import check_arguments
from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.code.execution import ExecutionResult, Limits
from winnowrl.envs.code.problems import ProblemSource, load_splits, visible_tests
from winnowrl.envs.code.programs import canonical_program, complete_program, extract_program, head_as_module
from winnowrl.envs.code.runner import run_tests
from winnowrl.envs.code.sandbox import SandboxFailureError, SandboxKind, require_sandbox, warn_unsafe
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

logger = logging.getLogger(__name__)

RewardKind = Literal["all_pass", "fraction"]
DEFAULT_PROMPT = "{problem}\n\nReply with one Python code block that defines `{entry_point}`."
MAX_PROGRAM = 100_000


class CodeEnv(TextEnv):
    """Programming problems with hidden tests. Programs run in a sandbox; see docs/sandbox.md for what it covers.

    Args:
        source: A ``.jsonl`` or ``.parquet`` file or a Hugging Face data set with the columns prompt, entry_point and
            tests, and where wanted visible_tests, style (``completion``: the prompt is the head of the function), topic
            and split. None is a starter set of 28 problems that comes with the package.
        eval_source, heldout_fraction, limit, eval_limit: See :class:`~winnowrl.envs.code.problems.ProblemSource`.
        max_turns: Replies per episode. With more than one, the first visible test that a program fails is the next
            observation; the episode ends when all visible tests pass, or with the last reply.
        reward: ``all_pass``: 1 if every test passes. ``fraction``: the part of the tests that pass.
        limits: Fields of :class:`~winnowrl.envs.code.Limits` by name.
        sandbox: ``bubblewrap``, or ``none`` to run programs without protection.
        prompt_template: The first message, with ``{problem}`` and, if wanted, ``{entry_point}`` in it.

    ``info["action"]`` is the program without comments and layout. ``info["verdict"]`` is undecided where the tests need
    what cannot cross the sandbox. Splits: train, eval.

    Raises:
        SandboxUnavailableError: programs cannot be confined here; says how to mend it.
    """

    execution: ClassVar[Execution] = "thread"

    def __init__(
        self,
        source: str | None = None,
        eval_source: str | None = None,
        heldout_fraction: float = 0.2,
        limit: int | None = None,
        eval_limit: int | None = None,
        max_turns: int = 1,
        reward: RewardKind = "all_pass",
        limits: dict[str, Any] | None = None,
        sandbox: SandboxKind = "bubblewrap",
        prompt_template: str = DEFAULT_PROMPT,
        render_mode: str | None = None,
    ) -> None:
        check_arguments(CodeEnv, locals())
        super().__init__(render_mode)
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; allowed: 1 or more")
        if "{problem}" not in prompt_template:
            raise ValueError(f"prompt_template is {prompt_template!r}; it must contain {{problem}}")
        self.problems = ProblemSource(source, eval_source, heldout_fraction, limit, eval_limit)
        self.limits = make_limits(limits)
        self.max_turns, self.reward, self.sandbox = max_turns, reward, sandbox
        self.prompt_template = prompt_template
        self._turn = 0
        if sandbox == "none":
            warn_unsafe()
        else:
            require_sandbox()

    def task_set(self, split: str) -> TaskSet:
        splits = load_splits(self.problems)
        if split not in splits:
            raise ValueError(f"Code has no split {split!r}; it has: {', '.join(splits)}")
        return splits[split]

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self._turn = 0
        problem = task.prompt
        if _is_completion(task):
            problem = f"Complete this function.\n\n```python\n{problem.rstrip()}\n```"
        message = self.prompt_template.replace("{entry_point}", str(task.metadata["entry_point"]))
        return message.replace("{problem}", problem), {}

    def respond(self, action: str) -> StepResult:
        task = self.task
        assert task is not None
        self._turn += 1
        program = extract_program(action, str(task.metadata["entry_point"]))
        shown = visible_tests(task)
        if self._turn < self.max_turns and shown:
            result = self._run(program, shown, task)
            if result.status != "passed" and result.is_decided:
                return self._go_on(result, program)
        hidden = str(task.metadata["tests"])
        # Visible tests that were given apart from the hidden ones count as well.
        tests = f"{shown}\n\n{hidden}" if task.metadata.get("visible_tests") else hidden
        return self._finish(self._run(program, tests, task), program)

    def _run(self, program: str, tests: str, task: Task) -> ExecutionResult:
        entry_point = str(task.metadata["entry_point"])
        if len(program) > MAX_PROGRAM:
            return ExecutionResult(0, 1, "invalid", message=f"the program is longer than {MAX_PROGRAM} characters")
        prelude = ""
        if _is_completion(task):
            program, prelude = complete_program(task.prompt, program, entry_point), head_as_module(task.prompt)
        try:
            return run_tests(program, tests, entry_point, self.limits, prelude=prelude, sandbox=self.sandbox)
        except SandboxFailureError as error:
            logger.warning("the sandbox failed, trying once more: %s", error)
            return run_tests(program, tests, entry_point, self.limits, prelude=prelude, sandbox=self.sandbox)

    def _go_on(self, result: ExecutionResult, program: str) -> StepResult:
        info = {
            "action": canonical_program(program),
            "success": False,
            "verdict": Verdict("wrong", _reason(result), result.seconds),
            "reward_parts": {"tests": 0.0},
        }
        return describe_failure(result), 0.0, False, False, info

    def _finish(self, result: ExecutionResult, program: str) -> StepResult:
        has_passed = result.status == "passed"
        reward = float(has_passed) if self.reward == "all_pass" else result.fraction
        status: Literal["correct", "wrong", "undecided"] = "correct" if has_passed else "wrong"
        if not result.is_decided:
            status, reward = "undecided", 0.0
        info = {
            "action": canonical_program(program),
            "success": has_passed,
            "verdict": Verdict(status, _reason(result), result.seconds),
            "reward_parts": {"tests": reward},
        }
        return "", reward, True, False, info


def describe_failure(result: ExecutionResult) -> str:
    """What the agent is told about visible tests that its program failed."""
    if result.failures:
        failure = result.failures[0]
        text = f"Your program fails this test:\n\n{failure.source}\n\n"
        text += f"The call {failure.message}." if failure.message else "The test did not hold."
    else:
        text = f"Your program could not be tested ({result.status}): {result.message}."
    return f"{text}\n\nReply with the corrected program in one Python code block."


def make_limits(options: dict[str, Any] | None) -> Limits:
    """Limits from options by name.

    Raises:
        ValueError: an option that does not exist, or a value that is not allowed.
    """
    known = [field.name for field in fields(Limits)]
    for name in options or {}:
        if name not in known:
            raise ValueError(f"limits.{name} is no option; allowed: {', '.join(known)}")
    check_arguments(Limits, options or {}, "limits.")
    return Limits(**(options or {}))


def _is_completion(task: Task) -> bool:
    return task.metadata.get("style") == "completion"


def _reason(result: ExecutionResult) -> str:
    told = f"{result.status}: {result.passed} of {result.total} checks"
    return f"{told}; {result.message[:200]}" if result.message else told
