"""Warnings for the known sicknesses of a run, each with what usually causes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnowrl.configs.sections.run import DiagnosticsConfig

# A mismatch below this is bfloat16's own (nats per token), however far above the first step's it is.
LEAST_GROWN_MISMATCH = 0.02


class Diagnostics:
    """Watches the metrics of every step and says what looks wrong, at most once in ``repeat_after_steps``."""

    def __init__(self, config: DiagnosticsConfig) -> None:
        self._config = config
        self._constant_steps = 0
        self._uninformative_steps = 0
        self._last_said: dict[str, int] = {}
        self._first_mismatch: float | None = None

    def check(self, step: int, metrics: Mapping[str, float], gate_warning: str | None = None) -> list[str]:
        """Sentences to show for this step; ``gate_warning`` is what the gate's audits say of it.

        A step that lacks a metric (no valid rollout: no reward) neither lengthens nor ends a streak.
        """
        found = {
            "constant reward": self._constant_reward(metrics),
            "nothing informative": self._nothing_informative(metrics),
            "entropy collapse": self._entropy(metrics),
            "mismatch": self._mismatch(metrics),
            "weight sync": self._after_sync(metrics),
            "parse failures": self._parse_failures(metrics),
            "gate precision": gate_warning,
        }
        return [text for name, text in found.items() if text and self._may_say(name, step)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "constant": self._constant_steps,
            "uninformative": self._uninformative_steps,
            "said": dict(self._last_said),
            "first_mismatch": self._first_mismatch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._constant_steps, self._uninformative_steps = state["constant"], state["uninformative"]
        self._last_said, self._first_mismatch = dict(state["said"]), state["first_mismatch"]

    def _may_say(self, name: str, step: int) -> bool:
        last = self._last_said.get(name)
        if last is not None and step - last < self._config.repeat_after_steps:
            return False
        self._last_said[name] = step
        return True

    def _constant_reward(self, metrics: Mapping[str, float]) -> str:
        low, high = metrics.get("reward/min"), metrics.get("reward/max")
        if low is None or high is None:
            return ""
        self._constant_steps = self._constant_steps + 1 if high - low <= 1e-9 else 0
        if self._constant_steps < self._config.constant_reward_steps:
            return ""
        return (
            f"every reward has been {high:.3g} for {self._constant_steps} steps: the verifier may not read "
            "the answers (look at a rollout), or the tasks are all too hard or too easy"
        )

    def _nothing_informative(self, metrics: Mapping[str, float]) -> str:
        informative = metrics.get("groups/informative")
        if informative is None:
            return ""
        self._uninformative_steps = self._uninformative_steps + 1 if informative == 0 else 0
        if self._uninformative_steps < self._config.uninformative_steps:
            return ""
        return (
            f"no group has been informative for {self._uninformative_steps} steps: all members of each group get one reward; "
            "raise rollouts_per_task or the temperature, or choose tasks of medium difficulty"
        )

    def _entropy(self, metrics: Mapping[str, float]) -> str:
        entropy = metrics.get("policy/entropy")
        if entropy is None or entropy >= self._config.min_entropy:
            return ""
        return (
            f"token entropy is {entropy:.4f} nats: the policy has collapsed to one reply; lower the learning rate, "
            "add objective.entropy_coef, or raise clip_high"
        )

    def _mismatch(self, metrics: Mapping[str, float]) -> str:
        mismatch = metrics.get("mismatch/mean_abs")
        if mismatch is None:
            return ""
        if self._first_mismatch is None:
            self._first_mismatch = mismatch
        has_grown = mismatch > max(5 * self._first_mismatch, LEAST_GROWN_MISMATCH)
        if mismatch <= self._config.max_mismatch and not has_grown:
            return ""
        return (
            f"engine and learner log-probs differ by {mismatch:.3f} on average (first step: {self._first_mismatch:.3f}): the "
            "engine may hold old weights or sample at another temperature; check engine.dtype and the weight sync"
        )

    def _after_sync(self, metrics: Mapping[str, float]) -> str:
        mismatch = metrics.get("mismatch/after_sync", 0.0)
        # Not a number is no match either.
        if mismatch <= self._config.max_mismatch:
            return ""
        return (
            f"right after the weight load engine and learner log-probs differ by {mismatch:.3f} on average (allowed: "
            f"{self._config.max_mismatch:g}): the engine did not take the new weights; check engine.dtype and engine.type"
        )

    def _parse_failures(self, metrics: Mapping[str, float]) -> str:
        rate = metrics.get("reward/parse_failure_rate")
        if rate is None or rate < self._config.max_parse_failure_rate:
            return ""
        return (
            f"{rate:.0%} of the replies held no answer that could be read: say in the prompt how to write it, or raise "
            "conversation.turn_tokens if replies are cut"
        )
