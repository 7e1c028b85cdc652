"""One account of tokens: what was generated, by what became of it, and what a gate's saving is estimated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.agents.rollout import Group, Rollout

CLASSES = {
    "trained": "in the loss of an update",
    "masked": "of trained rollouts, kept out of the loss by the environment or a filter",
    "unselected": "informative, not selected for the update",
    "zero_variance": "in groups of equal rewards",
    "screening": "of allocation rounds that only chose tasks (exclude_selection_rounds)",
    "unpaired": "in groups left with fewer than two valid rewards",
    "gated": "in groups the gate stopped, up to the stop",
    "undecided": "of rollouts the verifier could not judge",
    "failed": "of rollouts that failed",
}
# Rollouts of the other classes must never reach the loss.
TRAINABLE = ("unselected", "zero_variance", "unpaired")


def _zeros() -> dict[str, int]:
    return dict.fromkeys(CLASSES, 0)


@dataclass(slots=True)
class Account:
    """Sums over rollouts. Tokens are sampled tokens unless they say prefill.

    Attributes:
        generated: All tokens delivered. tokens, rollouts, seconds: by class; seconds are those that the episodes waited
            for engine and environment, which overlap.
        prefill: Prompt tokens sent; cached: those of them the engine did not compute again.
        audit: Tokens that audited groups wrote after the gate's stop. They stand in a class as well.
        replayed: Tokens of earlier steps in the loss again (not generated anew).
        lost_requests: Requests whose tokens were never delivered.
        respent: Tokens of fresh tasks that took the budget of stopped groups. They stand in a class as well.
        stopped_members: Live members that a gate stopped. audited_*, kept_*: members that were live at the gate's turn
            in audited groups, and in groups let run, and what they wrote after it. Members of later allocation rounds
            are in none of these: they were not there to be stopped.
    """

    generated: int = 0
    tokens: dict[str, int] = field(default_factory=_zeros)
    rollouts: dict[str, int] = field(default_factory=_zeros)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    prefill: int = 0
    cached: int = 0
    audit: int = 0
    replayed: int = 0
    respent: int = 0
    lost_requests: int = 0
    stopped_members: int = 0
    audited_members: int = 0
    audited_tokens: int = 0
    kept_members: int = 0
    kept_tokens: int = 0

    @property
    def num_rollouts(self) -> int:
        return sum(self.rollouts.values())

    def add(self, rollout: Rollout, kind: str, num_tokens: int) -> None:
        """Enter one rollout of ``num_tokens`` sampled tokens under the class ``kind``."""
        self.generated += num_tokens
        self.tokens[kind] += num_tokens
        self.rollouts[kind] += 1
        self.seconds[kind] += rollout.generate_s + rollout.env_s
        self.prefill += rollout.num_prefill_tokens
        self.cached += rollout.num_cached_tokens
        self.lost_requests += rollout.was_request_lost

    def add_gate(self, group: Group, rollout: Rollout) -> None:
        """Enter what one rollout tells of the gate: it was stopped, or what it wrote after the gate's turn."""
        if rollout.stop_reason == "gate":
            self.stopped_members += 1
        elif group.gate_turn is not None and not group.was_gated and was_live_at_gate(rollout, group.gate_turn):
            after = tokens_after(rollout, group.gate_turn)
            if group.is_audit:
                self.audited_members += 1
                self.audited_tokens += after
                self.audit += after
            else:
                self.kept_members += 1
                self.kept_tokens += after

    def move_to_trained(self, rollout: Rollout, kind: str, loss_tokens: int) -> None:
        """A rollout entered under ``kind`` was trained on, with ``loss_tokens`` of its tokens in the loss."""
        num_tokens, seconds = rollout.num_completion_tokens, rollout.generate_s + rollout.env_s
        self.tokens[kind] -= num_tokens
        self.tokens["trained"] += loss_tokens
        self.tokens["masked"] += num_tokens - loss_tokens
        self.rollouts[kind] -= 1
        self.rollouts["trained"] += 1
        self.seconds[kind] -= seconds
        self.seconds["trained"] += seconds

    def check(self) -> None:
        total = sum(self.tokens.values())
        assert total == self.generated, f"the ledger does not balance: {total} tokens in classes of {self.generated}"
        assert min(self.tokens.values()) >= 0, f"the ledger has a negative class: {self.tokens}"

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Account:
        empty = asdict(cls())
        fields = {name: empty[name] | dict(v) if isinstance(v, Mapping) else v for name, v in state.items()}
        return cls(**fields)


def classify(group: Group, reward_tolerance: float = 1e-6) -> list[str]:
    """The class of each rollout's tokens as long as it is not trained on, in the order of the group."""
    if sum(rollout.is_in_baseline for rollout in group.valid_rollouts) < 2:
        of_valid = "unpaired"
    else:
        of_valid = "unselected" if group.is_informative(reward_tolerance) else "zero_variance"
    kinds = []
    for rollout in group.rollouts:
        if rollout.error is not None:
            kinds.append("failed")
        elif group.was_gated:
            kinds.append("gated")
        elif rollout.verdict == "undecided":
            kinds.append("undecided")
        else:
            kinds.append(of_valid if rollout.is_in_baseline else "screening")
    return kinds


def tokens_after(rollout: Rollout, turn: int) -> int:
    """Tokens sampled after the first ``turn`` replies."""
    return sum(reply.num_tokens for reply in rollout.turns[turn:])


def was_live_at_gate(rollout: Rollout, turn: int) -> bool:
    """It was drawn in the first round, took ``turn`` actions and did not end with the last of them."""
    if rollout.round_index > 0:
        return False
    return len(rollout.turns) > turn or (len(rollout.turns) == turn and rollout.stop_reason in ("error", "token_limit"))
