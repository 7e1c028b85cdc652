import json
import math

import pytest

from winnowrl.gates import AuditLedger, AuditSampler
from winnowrl.gates.intervals import squared_advantages, wilson_interval


def test_the_sample_has_the_asked_size():
    sampler = AuditSampler(0.2, seed=3)
    hits = sum(sampler.should_audit(step, f"task-{task}") for step in range(50) for task in range(100))
    # Binomial(5000, 0.2): mean 1000, standard deviation 28.
    assert abs(hits - 1000) < 4 * 28.3


def test_the_draw_depends_on_seed_step_and_task_alone():
    first = [AuditSampler(0.5, 1).should_audit(step, "a") for step in range(64)]
    assert first == [AuditSampler(0.5, 1).should_audit(step, "a") for step in range(64)]
    assert first != [AuditSampler(0.5, 2).should_audit(step, "a") for step in range(64)]
    assert first != [AuditSampler(0.5, 1).should_audit(step, "b") for step in range(64)]


def test_the_ends_of_the_range():
    assert not any(AuditSampler(0.0, 1).should_audit(step, "a") for step in range(100))
    assert all(AuditSampler(1.0, 1).should_audit(step, "a") for step in range(100))
    with pytest.raises(ValueError, match=r"fraction is 1\.5"):
        AuditSampler(1.5, 1)


def test_wilson_by_hand():
    # n = 21, p = 17/21, z = 1.96: center (.80952 + .09147) / 1.18293 = .76166, half .16167.
    z, n, p = 1.959963984540054, 21, 17 / 21
    scale = 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    center = (p + z * z / (2 * n)) / scale
    assert wilson_interval(17, 21) == pytest.approx((center - half, center + half), abs=1e-12)
    assert wilson_interval(17, 21) == pytest.approx((0.6000, 0.9233), abs=1e-4)


def test_wilson_at_the_edges():
    # All of n: the lower end is n / (n + z^2).
    low, high = wilson_interval(10, 10)
    assert low == pytest.approx(10 / (10 + 1.959963984540054**2))
    assert high == pytest.approx(1.0)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes is 3 of 2"):
        wilson_interval(3, 2)


def test_every_group_whose_rewards_differ_weighs_its_size():
    # mean .875, population std .33072: seven of .37796^2 and one of 2.64575^2 make 8.
    rewards = [1, 1, 1, 1, 0, 1, 1, 1]
    std = math.sqrt(sum((r - 0.875) ** 2 for r in rewards) / 8)
    assert sum(((r - 0.875) / std) ** 2 for r in rewards) == pytest.approx(squared_advantages(rewards))
    assert squared_advantages([0.7] * 7) == 0.0
    assert squared_advantages([1.0]) == 0.0


MIXED, EQUAL = [1.0] + [0.0] * 7, [0.0] * 8


def reference_ledger():
    """The 100 groups of the paper's offline table as if all 21 stops had been audited: 61 mixed, 17 + 4 stopped."""
    ledger = AuditLedger()
    for _ in range(57):
        ledger.record_kept(MIXED, 240)
    for _ in range(22):
        ledger.record_kept(EQUAL, 240)
    for _ in range(17):
        ledger.record_audited(EQUAL, tokens_before=80, tokens_after=160)
    for _ in range(4):
        ledger.record_audited(MIXED, tokens_before=80, tokens_after=160)
    return ledger


def test_precision_recall_and_advantage_kept_of_the_reference():
    ledger = reference_ledger()
    figures = ledger.metrics()
    assert figures["gate/precision"] == pytest.approx(17 / 21)
    assert figures["gate/recall"] == pytest.approx(17 / 39)
    # sqrt(57 * 8) / sqrt(61 * 8) = 21.3541565041 / 22.0907220344
    assert figures["gate/advantage_kept"] == pytest.approx(0.9666572451, abs=1e-10)
    assert figures["gate/tokens_saved"] == 0.0


def test_one_false_cut_of_sixty_one():
    ledger = AuditLedger()
    for _ in range(60):
        ledger.record_kept(MIXED, 1)
    ledger.record_audited(MIXED, tokens_before=1, tokens_after=1)
    assert ledger.advantage_kept == pytest.approx(0.9917694074, abs=1e-10)


def test_stopped_groups_are_estimated_from_the_audited_ones():
    ledger = AuditLedger()
    ledger.record_kept(MIXED, 100)
    ledger.record_kept(MIXED, 100)
    for _ in range(8):
        ledger.record_stopped(30)
    ledger.record_audited(EQUAL, tokens_before=30, tokens_after=70)
    ledger.record_audited(MIXED, tokens_before=30, tokens_after=50)
    # Each audit stands for 8 / 2 = 4 stops: 4 * (70 + 50) tokens, 4 * 70 of them safe.
    assert ledger.tokens_saved == (480.0, 280.0)
    # Kept 16 of 16 + (1 + 4) * 8 squared advantages.
    assert ledger.advantage_kept == pytest.approx(math.sqrt(16 / 56))
    # (1 + 4) equal groups stopped, none let run.
    assert ledger.recall == 1.0


def test_without_an_audit_estimates_are_left_out():
    ledger = AuditLedger()
    ledger.record_stopped(10)
    figures = ledger.metrics()
    assert "gate/precision" not in figures
    assert "gate/tokens_saved" not in figures
    assert "gate/advantage_kept" not in figures
    assert figures["gate/stopped_groups"] == 1.0
    assert all(math.isfinite(value) for value in figures.values())


def test_an_audit_without_two_rewards_is_not_judged():
    ledger = AuditLedger()
    ledger.record_audited([1.0], tokens_before=5, tokens_after=5)
    assert ledger.counts.unjudged == 1
    assert ledger.counts.judged == 0
    assert ledger.precision_interval == (0.0, 1.0)


def test_a_gate_below_its_floor_warns_once_the_interval_says_so():
    ledger = AuditLedger(precision_floor=0.8)
    for _ in range(2):
        ledger.record_audited(MIXED, tokens_before=1, tokens_after=1)
    # 0 of 2: upper end z^2 / (2 + z^2) = .66 < .8
    assert ledger.warning() is not None
    fair = AuditLedger(precision_floor=0.8)
    for _ in range(10):
        fair.record_kept(MIXED, 1)
    for rewards in [EQUAL] * 7 + [MIXED] * 3:
        fair.record_audited(rewards, tokens_before=1, tokens_after=1)
    # 7 of 10: interval .40 to .89 does not rule .8 out.
    assert fair.warning() is None
    for rewards in ([EQUAL] * 7 + [MIXED] * 3) * 20:
        fair.record_audited(rewards, tokens_before=1, tokens_after=1)
    text = fair.warning()
    assert text is not None
    assert "0.70 over the last 200 audited groups" in text
    assert "gate.precision_floor 0.8" in text


def test_a_precise_gate_that_stops_what_would_have_taught_warns():
    # Nine groups in ten have equal rewards: stopping all of them has precision .9 and leaves nothing.
    ledger = AuditLedger(precision_floor=0.8)
    for rewards in [EQUAL] * 18 + [MIXED] * 2:
        ledger.record_audited(rewards, tokens_before=1, tokens_after=1)
    text = ledger.warning()
    assert text is not None
    assert "leaves 0.00 of the advantages' L2 norm (estimated from 20 audited groups, 2 of them wrong stops)" in text
    # Three informative groups let run against two stopped: sqrt(3 / 5) = .77 is left, the larger half.
    for _ in range(3):
        ledger.record_kept(MIXED, 1)
    assert ledger.warning() is None


def test_the_warning_looks_at_the_latest_audits():
    ledger = AuditLedger(precision_floor=0.8, window=20)
    for _ in range(500):
        ledger.record_audited(EQUAL, tokens_before=1, tokens_after=1)
    for _ in range(20):
        ledger.record_audited(MIXED, tokens_before=1, tokens_after=1)
    assert ledger.precision_interval[0] > 0.9
    assert ledger.warning() is not None


def test_precision_by_task_type():
    ledger = AuditLedger()
    ledger.record_audited(EQUAL, tokens_before=1, tokens_after=1, task_type="clean")
    ledger.record_audited(MIXED, tokens_before=1, tokens_after=1, task_type="pick")
    ledger.record_audited(EQUAL, tokens_before=1, tokens_after=1, task_type="pick")
    figures = ledger.metrics()
    assert figures["gate/precision/clean"] == 1.0
    assert figures["gate/precision/pick"] == 0.5


def test_state_survives_json_and_goes_on_alike():
    ledger = reference_ledger()
    ledger.record_stopped(7)
    copy = AuditLedger()
    copy.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    for each in (ledger, copy):
        each.record_audited(MIXED, tokens_before=3, tokens_after=4, task_type="pick")
    assert copy.metrics() == ledger.metrics()
    assert copy.warning() == ledger.warning()
    assert copy.state_dict() == ledger.state_dict()
