"""Simple selectors, building from the config, candidates from rollouts, dynamic sampling."""

import pytest

from winnowrl.agents.rollout import Group, Rollout, TokenSequence
from winnowrl.configs.sections.objective import ObjectiveConfig
from winnowrl.configs.sections.selector import DynamicSamplingConfig, ReplayConfig, SelectorConfig, check_reuse
from winnowrl.envs.tasks import Task
from winnowrl.training.batch import SequenceStats
from winnowrl.training.batching import make_batch
from winnowrl.training.selection import (
    SELECTORS,
    AllSelector,
    CbsSelector,
    CbsStarSelector,
    RandomSelector,
    ReplaySelector,
    RoundStats,
    build_selector,
    groups_to_train,
    make_candidates,
    needs_refill,
    set_entropies,
)


def group(group_id, rewards, **kwargs):
    rollouts = []
    for i, reward in enumerate(rewards):
        sequence = TokenSequence([1, 2, 3, 4], [False, True, True, False], [0.0, -0.5, -1.5 - i, 0.0])
        rollouts.append(
            Rollout(f"t{group_id}", group_id, i, seed=0, policy_version=0, sequences=[sequence], reward=reward)
        )
        rollouts[-1].rollout_id = 100 * group_id + i
    return Group(group_id, Task(id=f"t{group_id}", prompt="p"), 0, rollouts, **kwargs)


def candidates(groups):
    return make_candidates(groups, make_batch(groups, ObjectiveConfig(), step=3).sequences)


# --- candidates --------------------------------------------------------------------------------------------------


def test_a_candidate_knows_its_group_and_its_entropy_at_generation():
    found = candidates([group(0, [1.0, 0.0, 0.0, 0.0])])
    assert [c.rollout_id for c in found] == [0, 1, 2, 3]
    first = found[0]
    assert (first.reward, first.group_mean) == (1.0, 0.25)
    assert first.group_std == pytest.approx(0.5)  # sample std
    assert first.entropy == pytest.approx((0.5 + 1.5) / 2)
    assert found[2].entropy == pytest.approx((0.5 + 3.5) / 2)
    assert (first.num_tokens, first.birth_step, first.num_uses) == (2, 3, 0)
    assert first.advantage == pytest.approx(3**0.5, rel=1e-4)


def test_sequences_of_one_rollout_are_one_candidate():
    made = group(0, [1.0, 0.0])
    made.rollouts[0].sequences.append(TokenSequence([1, 5], [False, True], [0.0, -0.5]))
    found = candidates([made])
    assert [len(c.sequences) for c in found] == [2, 1]
    assert [s.fork_of for c in found for s in c.sequences] == [0, 0, 1]
    assert found[0].entropy == pytest.approx((0.5 + 1.5 + 0.5) / 3)


def test_the_learner_can_replace_the_entropy():
    found = candidates([group(0, [1.0, 0.0])])
    set_entropies(found, {s.rollout_id: SequenceStats([], 0.123, 0.0) for c in found for s in c.sequences})
    assert [c.entropy for c in found] == [0.123, 0.123]


def test_round_statistics_are_over_all_rollouts_not_only_informative_ones():
    groups = [group(0, [1.0, 1.0]), group(1, [1.0, 0.0]), group(2, [0.0] * 6), group(3, [1.0], was_gated=True)]
    assert RoundStats.of_groups(groups).mean_reward == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert len(candidates(groups)) == 2
    assert RoundStats.of_groups(groups).num_rollouts == 10


def test_nothing_is_known_of_a_round_without_rollouts():
    assert RoundStats.of_groups([]) is None
    assert RoundStats.of_groups([group(0, []), group(1, [1.0, 0.0], was_gated=True)]) is None
    assert RoundStats.of_candidates([]) is None


# --- simple selectors --------------------------------------------------------------------------------------------


def test_all_takes_everything():
    fresh = candidates([group(0, [1.0, 0.0]), group(1, [0.0, 1.0])])
    assert AllSelector().select(fresh, 0) == [s for c in fresh for s in c.sequences]


def test_random_takes_its_share_of_every_group_and_depends_on_the_step():
    fresh = candidates([group(0, [1.0, 0.0] * 8), group(1, [1.0, 0.0, 0.0])])
    selector = RandomSelector(keep_fraction=0.5, seed=1)
    picks = [tuple(c.rollout_id for c in selector.pick(fresh, step)) for step in range(6)]
    for pick in picks:
        assert sum(i < 100 for i in pick) == 8
        assert sum(i >= 100 for i in pick) == 1
    assert len(set(picks)) > 1
    assert tuple(c.rollout_id for c in RandomSelector(keep_fraction=0.5, seed=1).pick(fresh, 0)) == picks[0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all", AllSelector), ("random", RandomSelector), ("cbs_star", CbsStarSelector), ("cbs", CbsSelector)],
)
def test_every_type_builds(kind, expected):
    assert set(SELECTORS) == set(SelectorConfig.TYPES)
    assert type(build_selector(SelectorConfig(type=kind), seed=0, max_tokens=8)) is expected
    replay = SelectorConfig(type=kind, replay=ReplayConfig(type="advantage_prioritized"))
    assert isinstance(build_selector(replay, seed=0, max_tokens=8), ReplaySelector)


@pytest.mark.parametrize("source", ["sampler", "learner"])
def test_only_the_learner_as_source_of_entropy_needs_a_forward_pass(source):
    config = SelectorConfig(type="cbs", entropy_source=source, replay=ReplayConfig(type="advantage_prioritized"))
    assert build_selector(config, seed=0, max_tokens=8).needs_scores is (source == "learner")


# --- dynamic sampling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("informative", "wanted", "drawn", "attempt", "num_tasks", "reason"),
    [
        (8, 8, 8, 0, 0, "enough"),
        (9, 8, 12, 1, 0, "enough"),
        (4, 8, 8, 0, 8, "refill"),  # half were informative: 4 missing / .5
        (6, 8, 8, 0, 3, "refill"),  # 2 missing / .75, rounded up
        (0, 8, 8, 0, 16, "refill"),  # 8 / (1/4) = 32, but 16 are left of 3 * 8
        (2, 8, 8, 3, 0, "attempts used up"),
        (2, 8, 24, 1, 0, "tasks used up"),
    ],
)
def test_needs_refill(informative, wanted, drawn, attempt, num_tasks, reason):
    found = needs_refill(informative, wanted, drawn, attempt, max_attempts=3, max_tasks_factor=3.0)
    assert (found.num_tasks, found.reason) == (num_tasks, reason)
    assert found.is_needed is (num_tasks > 0)


def test_a_step_whose_tasks_are_all_solved_ends():
    drawn, attempt = 8, 0
    while (refill := needs_refill(0, 8, drawn, attempt)).is_needed:
        drawn, attempt = drawn + refill.num_tasks, attempt + 1
    assert drawn == 24
    assert groups_to_train([], 8, "train") == []


def test_groups_to_train():
    assert groups_to_train([5, 3, 9], 2, "skip") == [5, 3]
    assert groups_to_train([5], 2, "train") == [5]
    assert groups_to_train([5], 2, "skip") == []
    with pytest.raises(ValueError, match="fallback is 'crash'"):
        groups_to_train([5], 2, "crash")


# --- config ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: SelectorConfig(type="best"), "selector.type is 'best'"),
        (lambda: SelectorConfig(keep_fraction=0.0), "selector.keep_fraction"),
        (lambda: SelectorConfig(ema_mode="zscore"), "selector.ema_mode"),
        (lambda: SelectorConfig(entropy_source="engine"), "selector.entropy_source"),
        (lambda: SelectorConfig(explore_unit="rollout"), "selector.explore_unit"),
        (lambda: SelectorConfig(explore_start=1.5), "selector.explore_start"),
        (lambda: SelectorConfig(buffer_rounds=0), "selector.buffer_rounds"),
        (lambda: SelectorConfig(entropy_weight=-1.0), "selector.entropy_weight"),
        (lambda: SelectorConfig(scheduler_learning_rate=0.0), "selector.scheduler_learning_rate"),
        (lambda: SelectorConfig(birth_logprobs="engine"), "selector.birth_logprobs"),
        (lambda: ReplayConfig(type="uniform"), "selector.replay.type"),
        (lambda: ReplayConfig(max_age=0), "selector.replay.max_age"),
        (lambda: ReplayConfig(ratio=-0.5), "selector.replay.ratio"),
        (lambda: ReplayConfig(priority_eps=0.0), "selector.replay.priority_eps"),
        (lambda: DynamicSamplingConfig(fallback="crash"), "selector.dynamic_sampling.fallback"),
        (lambda: DynamicSamplingConfig(max_attempts=0), "selector.dynamic_sampling.max_attempts"),
    ],
)
def test_config_mistakes_are_named(build, named):
    with pytest.raises(ValueError, match=named):
        build()


REPLAY = ReplayConfig(type="advantage_prioritized")


@pytest.mark.parametrize("selector", [SelectorConfig(type="cbs"), SelectorConfig(replay=REPLAY)])
def test_reuse_needs_a_bound_on_the_ratio(selector):
    with pytest.raises(ValueError, match=r"objective\.dual_clip"):
        check_reuse(ObjectiveConfig(), selector)
    for bounded in ({"dual_clip": 10.0}, {"delta": 4.0}, {"loss_type": "cispo"}):
        check_reuse(ObjectiveConfig(**bounded), selector)


@pytest.mark.parametrize("kind", ["all", "random", "cbs_star"])
def test_fresh_rollouts_need_no_bound(kind):
    check_reuse(ObjectiveConfig(), SelectorConfig(type=kind))
