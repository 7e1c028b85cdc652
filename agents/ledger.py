"""Where every token went: a double-entry account of what the engine wrote and what became of it.

Every token the engine delivered falls in exactly one class; after every entry the classes add up to what was generated,
to the token. Tokens of requests that failed or were cancelled under way were never delivered: their number is counted
in requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from winnowrl.agents.accounts import CLASSES, TRAINABLE, Account, classify, tokens_after, was_live_at_gate

if TYPE_CHECKING:
    from winnowrl.agents.collecting.outcome import StepRollouts
    from winnowrl.agents.rollout import Group, Rollout
    from winnowrl.gates.audit import AuditLedger

# Members a mean of tokens after the gate's turn is taken over at least.
MIN_REFERENCE = 8


class Ledger:
    """Accounts of a run, of its last step, and by environment and task type.

    Call :meth:`record_collection` after a step's rollouts are in, then :meth:`record_update` for what was trained on.

    What a gate saved is an estimate: the live members it stopped, times what such members write after the gate's turn
    on the average. The average is that of audited groups (a random share of what the gate stops, so it is unbiased)
    once these have 8 members, of the same environment and task type where possible; before, that of groups let run,
    whose members may write more or less than those of stopped ones. With neither it is unknown (NaN). Budget that goes to
    other tasks in place of a stopped group, by ``respend`` or in later rounds of an allocator, is not set off against it.

    Args:
        reward_tolerance: Rewards that differ by no more count as equal.
    """

    def __init__(self, reward_tolerance: float = 1e-6) -> None:
        self._reward_tolerance = reward_tolerance
        self.total = Account()
        self.last_step = Account()
        self.by_type: dict[str, Account] = {}
        self.collect_s = 0.0
        self.num_steps = 0
        self._open: dict[int, tuple[Rollout, str, str]] = {}

    def record_collection(self, result: StepRollouts) -> None:
        """Enter the rollouts of a step, each under the class it will stay in unless it is trained on.

        Raises:
            AssertionError: a rollout is not over or stands twice, or the accounts do not balance.
        """
        self.last_step = Account()
        self._open = {}
        self.collect_s += result.collect_s
        self.num_steps += 1
        for group in result.groups:
            key = type_key(group)
            accounts = (self.total, self.last_step, self.by_type.setdefault(key, Account()))
            kinds = classify(group, self._reward_tolerance)
            for rollout, kind in zip(group.rollouts, kinds, strict=True):
                assert rollout.stop_reason is not None, f"rollout {rollout.rollout_id} is not over"
                assert rollout.rollout_id not in self._open, f"rollout {rollout.rollout_id} stands twice in a step"
                self._open[rollout.rollout_id] = (rollout, key, kind)
                num_tokens = rollout.num_completion_tokens
                for account in accounts:
                    account.add(rollout, kind, num_tokens)
                    account.respent += num_tokens if group.is_replacement else 0
                    if group.gate_turn is not None:
                        account.add_gate(group, rollout)
        self.check_balance()

    def record_update(self, trained: Mapping[int, int], replayed: Mapping[int, int] | None = None) -> None:
        """Enter an update.

        Args:
            trained: rollout id to its number of tokens in the loss, for rollouts of this step. One that stands in
                several updates of the step is entered once.
            replayed: the same for rollouts of earlier steps.

        Raises:
            AssertionError: a rollout that must not be trained on was (stopped by a gate, failed, undecided), an unknown
                one, or more tokens in the loss than it has.
        """
        for rollout_id, loss_tokens in trained.items():
            assert rollout_id in self._open, f"rollout {rollout_id} was trained on but not collected in this step"
            rollout, key, kind = self._open[rollout_id]
            if kind == "trained":
                continue
            assert kind in TRAINABLE, f"rollout {rollout_id} was trained on although it is {kind}: {CLASSES[kind]}"
            assert 0 <= loss_tokens <= rollout.num_completion_tokens, (
                f"rollout {rollout_id} has {rollout.num_completion_tokens} tokens and {loss_tokens} in the loss"
            )
            for account in (self.total, self.last_step, self.by_type[key]):
                account.move_to_trained(rollout, kind, loss_tokens)
            self._open[rollout_id] = (rollout, key, "trained")
        num_replayed = sum((replayed or {}).values())
        self.total.replayed += num_replayed
        self.last_step.replayed += num_replayed
        self.check_balance()

    def check_balance(self) -> None:
        """Raise AssertionError unless every account balances and the types add up to the total."""
        for account in (self.total, self.last_step, *self.by_type.values()):
            account.check()
        for name in CLASSES:
            parts = sum(account.tokens[name] for account in self.by_type.values())
            assert parts == self.total.tokens[name], f"{name}: {parts} tokens by type, {self.total.tokens[name]} in all"

    @property
    def saved_tokens(self) -> float:
        """Estimated tokens that gates saved over the run (see the class); NaN where nothing tells yet."""
        return sum(self._saved(account) for account in self.by_type.values())

    @property
    def saved_tokens_last_step(self) -> float:
        """Estimated tokens that gates saved in the last step; NaN where nothing tells yet."""
        return self._saved(self.last_step)

    @property
    def saved_s(self) -> float:
        """Estimated wall-clock seconds of collection saved: saved tokens at the run's mean rate; NaN as for tokens."""
        return self.saved_tokens * self.collect_s / self.total.generated if self.total.generated else 0.0

    def _saved(self, account: Account) -> float:
        return account.stopped_members * self._mean_after(account) if account.stopped_members else 0.0

    def _mean_after(self, account: Account) -> float:
        for members, tokens in (
            (account.audited_members, account.audited_tokens),
            (self.total.audited_members, self.total.audited_tokens),
            (account.kept_members, account.kept_tokens),
            (self.total.kept_members, self.total.kept_tokens),
        ):
            if members >= MIN_REFERENCE:
                return tokens / members
        members = self.total.audited_members + self.total.kept_members
        return (self.total.audited_tokens + self.total.kept_tokens) / members if members else math.nan

    def metrics(self) -> dict[str, float]:
        """Numbers of the last step and sums of the run, for the log; unknown ones are left out."""
        step, total = self.last_step, self.total
        share = max(1, step.generated)
        found = {
            "ledger/generated": float(step.generated),
            **{f"ledger/{name}_share": count / share for name, count in step.tokens.items()},
            "ledger/prefill_computed": float(step.prefill - step.cached),
            "ledger/prefill_cached": float(step.cached),
            "ledger/audit": float(step.audit),
            "ledger/replayed": float(step.replayed),
            "ledger/respent": float(step.respent),
            "ledger/saved_by_gate": self.saved_tokens_last_step,
            "ledger/run_generated": float(total.generated),
            "ledger/run_trained": float(total.tokens["trained"]),
            "ledger/run_saved_by_gate": self.saved_tokens,
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def summary(self) -> dict[str, Any]:
        """The run's account as plain values, for ``summary.json``."""
        return {
            "steps": self.num_steps,
            "collect_s": self.collect_s,
            "saved_by_gate_tokens_estimate": _known(self.saved_tokens),
            "saved_by_gate_s_estimate": _known(self.saved_s),
            "total": self.total.state_dict(),
            "by_type": {key: account.state_dict() for key, account in sorted(self.by_type.items())},
        }

    def state_dict(self) -> dict[str, Any]:
        """The run's accounts. Take it between steps: which rollouts of a step are still open is not kept."""
        return {
            "total": self.total.state_dict(),
            "by_type": {key: account.state_dict() for key, account in self.by_type.items()},
            "collect_s": self.collect_s,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.total = Account.from_state(state["total"])
        self.by_type = {key: Account.from_state(value) for key, value in state["by_type"].items()}
        self.collect_s, self.num_steps = state["collect_s"], state["num_steps"]
        self.last_step, self._open = Account(), {}
        self.check_balance()


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def type_key(group: Group) -> str:
    """Environment and task type, the key of :attr:`Ledger.by_type`."""
    return f"{group.env_id}:{group.task.task_type}" if group.task.task_type else group.env_id


def record_gate_outcomes(audit: AuditLedger, groups: list[Group]) -> None:
    """Tell the gate's audit ledger how each judged group ended."""
    for group in groups:
        if group.gate_turn is None or not group.rollouts:
            continue
        num_tokens = sum(rollout.num_completion_tokens for rollout in group.rollouts)
        if group.was_gated:
            audit.record_stopped(num_tokens)
        elif group.is_audit:
            turn = group.gate_turn
            after = sum(tokens_after(rollout, turn) for rollout in group.rollouts if was_live_at_gate(rollout, turn))
            audit.record_audited(
                group.rewards, tokens_before=num_tokens - after, tokens_after=after, task_type=group.task.task_type
            )
        else:
            audit.record_kept(group.rewards, num_tokens)
