"""The ledger: every token in one class, the balance asserted, what a gate saved estimated and exact."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from winnowrl.agents.accounts import CLASSES
from winnowrl.agents.collecting.outcome import StepRollouts
from winnowrl.agents.errors import ErrorRecord
from winnowrl.agents.ledger import Ledger, record_gate_outcomes
from winnowrl.agents.ledger_table import ledger_table, type_table
from winnowrl.agents.rollout import Group, Rollout, TokenSequence, Turn
from winnowrl.envs.tasks import Task
from winnowrl.gates.audit import AuditLedger


def make_rollout(group_id: int, index: int, reward: float, turns: list[int], **fields: Any) -> Rollout:
    """A rollout with a prompt of 3 tokens and replies of ``turns`` tokens each, an observation of 1 between them."""
    sequence, spans = TokenSequence([1] * 3, [False] * 3, [0.0] * 3), []
    for length in turns:
        start = len(sequence)
        spans.append(Turn(start, start + length, "text", "act"))
        sequence.token_ids += [2] * length + [3]
        sequence.completion_mask += [True] * length + [False]
        sequence.sampler_logprobs += [-0.5] * length + [0.0]
    fields = {"stop_reason": "env_done", "num_prefill_tokens": 10, "num_cached_tokens": 4, **fields}
    return Rollout(
        task_id=f"t{group_id}",
        group_id=group_id,
        index=index,
        seed=0,
        policy_version=0,
        rollout_id=group_id * 100 + index,
        sequences=[sequence],
        turns=spans,
        reward=reward,
        **fields,
    )


def make_group(group_id: int, rollouts: list[Rollout], task_type: str = "", **fields: Any) -> Group:
    task = Task(f"t{group_id}", "prompt", metadata={"task_type": task_type} if task_type else {})
    return Group(group_id, task, 0, rollouts, env_id="env/E-v0", **fields)


def printed(table: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(table)
    return stream.getvalue()


def collection(*groups: Group) -> StepRollouts:
    return StepRollouts(0, 0, list(groups), collect_s=2.0, failures=Counter())


def test_each_class_gets_the_tokens_of_its_rollouts() -> None:
    error = ErrorRecord("engine", "x")
    ledger = Ledger()
    ledger.record_collection(
        collection(
            make_group(0, [make_rollout(0, 0, 1.0, [2, 3]), make_rollout(0, 1, 0.0, [4])]),
            make_group(1, [make_rollout(1, 0, 1.0, [6]), make_rollout(1, 1, 1.0, [7])]),
            make_group(
                2, [make_rollout(2, 0, 1.0, [8]), make_rollout(2, 1, 0.0, [9], stop_reason="error", error=error)]
            ),
            make_group(3, [make_rollout(3, 0, 0.0, [10], verdict="undecided")]),
            make_group(4, [make_rollout(4, i, 0.0, [11], stop_reason="gate") for i in range(2)], was_gated=True),
        )
    )
    expected = {"unselected": 9, "zero_variance": 13, "unpaired": 8, "failed": 9, "undecided": 10, "gated": 22}
    assert {name: count for name, count in ledger.total.tokens.items() if count} == expected
    assert ledger.total.generated == 71
    assert ledger.total.prefill - ledger.total.cached == 9 * 6
    # Rollout 0/0 has 5 tokens, 3 of them in the loss.
    ledger.record_update({0: 3, 1: 4}, replayed={99999: 50})
    assert (ledger.total.tokens["trained"], ledger.total.tokens["masked"], ledger.total.tokens["unselected"]) == (
        7,
        2,
        0,
    )
    assert ledger.total.replayed == 50
    assert ledger.metrics()["ledger/trained_share"] == pytest.approx(7 / 71)


def test_a_rollout_trained_in_several_updates_counts_once() -> None:
    ledger = Ledger()
    ledger.record_collection(collection(make_group(0, [make_rollout(0, i, float(i), [5]) for i in range(2)])))
    ledger.record_update({0: 5})
    ledger.record_update({0: 5, 1: 5})
    assert ledger.total.tokens["trained"] == 10


@pytest.mark.parametrize(
    ("fields", "group_fields", "what"),
    [
        ({"stop_reason": "gate"}, {"was_gated": True}, "gated"),
        ({"verdict": "undecided"}, {}, "undecided"),
        ({"stop_reason": "error", "error": ErrorRecord("engine", "x")}, {}, "failed"),
    ],
)
def test_training_on_what_must_not_be_trained_on_is_caught(
    fields: dict[str, Any], group_fields: dict[str, Any], what: str
) -> None:
    ledger = Ledger()
    rollouts = [make_rollout(0, i, float(i), [5], **fields) for i in range(2)]
    ledger.record_collection(collection(make_group(0, rollouts, **group_fields)))
    with pytest.raises(AssertionError, match=f"although it is {what}"):
        ledger.record_update({0: 5})


def test_unknown_repeated_and_overcounted_rollouts_are_caught() -> None:
    ledger = Ledger()
    rollouts = [make_rollout(0, i, float(i), [5]) for i in range(2)]
    ledger.record_collection(collection(make_group(0, rollouts)))
    with pytest.raises(AssertionError, match="not collected in this step"):
        ledger.record_update({77: 5})
    with pytest.raises(AssertionError, match="5 tokens and 6 in the loss"):
        ledger.record_update({0: 6})
    with pytest.raises(AssertionError, match="stands twice"):
        Ledger().record_collection(collection(make_group(0, [rollouts[0], rollouts[0]])))
    with pytest.raises(AssertionError, match="is not over"):
        Ledger().record_collection(collection(make_group(0, [make_rollout(0, 0, 0.0, [5], stop_reason=None)])))


def test_saved_tokens_are_stopped_members_times_what_audited_members_wrote_after_the_gate() -> None:
    gated = make_group(
        0, [make_rollout(0, i, 0.0, [5, 5], stop_reason="gate") for i in range(4)], was_gated=True, gate_turn=2
    )
    # 8 members live at turn 2, each with 7 tokens after it; two more ended with their second action.
    members = [make_rollout(1, i, 0.0, [5, 5, 3, 4]) for i in range(8)] + [
        make_rollout(1, 8 + i, 0.0, [5, 5]) for i in range(2)
    ]
    audited = make_group(1, members, gate_stop=True, is_audit=True, gate_turn=2)
    # Groups let run write more; they must not enter the mean once audits are there.
    kept = make_group(2, [make_rollout(2, i, float(i % 2), [5, 5, 100]) for i in range(8)], gate_turn=2)
    ledger = Ledger()
    ledger.record_collection(collection(gated, audited, kept))
    assert ledger.total.stopped_members == 4
    assert (ledger.total.audited_members, ledger.total.audited_tokens, ledger.total.audit) == (8, 56, 56)
    assert ledger.saved_tokens == 4 * 7
    # Without audits the mean is that of groups let run.
    other = Ledger()
    other.record_collection(collection(gated, kept))
    assert other.saved_tokens == 4 * 100
    # 2 s for 4 x 10 + 8 x 110 tokens.
    assert other.saved_s == pytest.approx(400 * 2.0 / 920)


def test_the_gates_audit_ledger_hears_of_every_judged_group() -> None:
    audit = AuditLedger()
    gated = make_group(
        0, [make_rollout(0, i, 0.0, [5], stop_reason="gate") for i in range(2)], was_gated=True, gate_turn=1
    )
    true_stop = make_group(1, [make_rollout(1, i, 1.0, [5, 6]) for i in range(2)], "a", is_audit=True, gate_turn=1)
    kept = make_group(2, [make_rollout(2, i, float(i), [5, 6]) for i in range(2)], gate_turn=1)
    record_gate_outcomes(audit, [gated, true_stop, kept, make_group(3, [make_rollout(3, 0, 1.0, [5])])])
    counts = audit.counts
    assert (counts.stopped_groups, counts.tp, counts.fp, counts.kept_groups) == (1, 1, 0, 1)
    assert (counts.tokens_after_tp, counts.audited_tokens, counts.kept_tokens) == (12, 22, 22)
    assert audit.by_type == {"a": [1, 0]}


def test_state_survives_a_round_trip_and_tables_show_it() -> None:
    ledger = Ledger()
    groups = [make_group(i, [make_rollout(i, j, float(j), [5 + i]) for j in range(2)], f"type{i}") for i in range(3)]
    ledger.record_collection(collection(*groups))
    ledger.record_update({0: 5, 1: 5})
    restored = Ledger()
    restored.load_state_dict(ledger.state_dict())
    assert restored.state_dict() == ledger.state_dict()
    assert restored.summary() == ledger.summary()
    shown = printed(ledger_table(restored)) + printed(type_table(restored))
    assert "trained: in the loss of an update" in shown
    assert "env/E-v0:type2" in shown
    assert "36" in shown  # 2 x (5 + 6 + 7) tokens generated


rollout_kinds = st.sampled_from(["fine", "error", "undecided", "gate"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(rollout_kinds, st.integers(0, 30), st.booleans()), max_size=5), max_size=8), st.data()
)
def test_the_ledger_balances_whatever_is_collected_and_trained(shape: Any, data: st.DataObject) -> None:
    groups, lengths, trainable = [], 0, {}
    for group_id, members in enumerate(shape):
        is_gated = any(kind == "gate" for kind, _, _ in members)
        rollouts = []
        for index, (kind, length, reward) in enumerate(members):
            fields: dict[str, Any] = {
                "fine": {},
                "error": {"stop_reason": "error", "error": ErrorRecord("timeout", "x")},
                "undecided": {"verdict": "undecided"},
                "gate": {"stop_reason": "gate"},
            }[kind]
            rollouts.append(make_rollout(group_id, index, float(reward), [length], **fields))
            lengths += length
            if kind == "fine" and not is_gated:
                trainable[rollouts[-1].rollout_id] = length
        groups.append(make_group(group_id, rollouts, f"type{group_id % 3}", was_gated=is_gated))
    ledger = Ledger()
    ledger.record_collection(collection(*groups))
    chosen = {key: data.draw(st.integers(0, length)) for key, length in trainable.items() if data.draw(st.booleans())}
    ledger.record_update(chosen)
    assert ledger.total.generated == lengths == sum(ledger.total.tokens.values())
    assert ledger.total.tokens["trained"] == sum(chosen.values())
    assert ledger.total.num_rollouts == sum(map(len, shape))
    assert set(ledger.total.tokens) == set(CLASSES)


def test_members_of_later_rounds_are_not_counted_as_saved() -> None:
    gated = make_group(
        0, [make_rollout(0, i, 0.0, [5], stop_reason="gate") for i in range(4)], was_gated=True, gate_turn=1
    )
    # 8 members of the first round wrote 2 tokens after turn 1; 20 of a later round, which no stop could cut, 50 each.
    first = [make_rollout(1, i, 0.0, [5, 2]) for i in range(8)]
    later = [make_rollout(1, 8 + i, 0.0, [5, 50], round_index=1) for i in range(20)]
    audited = make_group(1, first + later, gate_stop=True, is_audit=True, gate_turn=1)
    ledger, audit = Ledger(), AuditLedger()
    ledger.record_collection(collection(gated, audited))
    record_gate_outcomes(audit, [gated, audited])
    assert ledger.saved_tokens == 4 * 2
    assert ledger.total.audit == 8 * 2
    # One stopped group for one audited one, whose first round wrote 16 tokens after the gate.
    assert audit.tokens_saved == (16.0, 16.0)


def test_what_a_gate_saved_is_unknown_until_some_group_has_run_on() -> None:
    ledger = Ledger()
    members = [make_rollout(0, i, 0.0, [5], stop_reason="gate") for i in range(4)]
    ledger.record_collection(collection(make_group(0, members, was_gated=True, gate_turn=1)))
    assert "ledger/saved_by_gate" not in ledger.metrics()
    assert ledger.summary()["saved_by_gate_tokens_estimate"] is None
    assert "unknown" in printed(ledger_table(ledger))


def test_tokens_of_replacements_have_a_row_of_their_own() -> None:
    stopped = make_group(
        0, [make_rollout(0, i, 0.0, [5], stop_reason="gate") for i in range(2)], was_gated=True, gate_turn=1
    )
    fresh = make_group(1, [make_rollout(1, i, float(i), [30]) for i in range(2)], gate_turn=1, is_replacement=True)
    ledger = Ledger()
    ledger.record_collection(collection(stopped, fresh))
    assert ledger.total.respent == 60
    assert ledger.metrics()["ledger/respent"] == 60
    assert "respent on fresh tasks" in printed(ledger_table(ledger))


def test_rounds_kept_out_of_the_update_are_screening() -> None:
    screened = [make_rollout(0, i, float(i), [3], is_in_baseline=False) for i in range(2)]
    # The last round's rewards are equal, so what remains teaches nothing although the group's rewards differ.
    last = [make_rollout(0, 2 + i, 1.0, [4], round_index=1) for i in range(2)]
    ledger = Ledger()
    ledger.record_collection(collection(make_group(0, screened + last)))
    assert {name: count for name, count in ledger.total.tokens.items() if count} == {"screening": 6, "zero_variance": 8}
    with pytest.raises(AssertionError, match="although it is screening"):
        ledger.record_update({0: 3})


def test_a_task_type_is_shown_as_it_is() -> None:
    ledger = Ledger()
    groups = [
        make_group(i, [make_rollout(i, j, float(j), [3]) for j in range(2)], kind)
        for i, kind in enumerate(["[/x]", "[red]"])
    ]
    ledger.record_collection(collection(*groups))
    assert all(f"env/E-v0:{kind}" in printed(type_table(ledger)) for kind in ("[/x]", "[red]"))


def test_an_account_saved_before_a_class_existed_loads() -> None:
    ledger = Ledger()
    ledger.record_collection(collection(make_group(0, [make_rollout(0, i, float(i), [3]) for i in range(2)])))
    state = ledger.state_dict()
    del state["total"]["tokens"]["screening"], state["by_type"]["env/E-v0"]["tokens"]["screening"]
    del state["total"]["respent"]
    restored = Ledger()
    restored.load_state_dict(state)
    assert restored.total.generated == 6
    assert restored.total.tokens["screening"] == 0
