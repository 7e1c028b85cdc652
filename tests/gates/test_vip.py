import json
import math
import random

import numpy as np
import pytest

from winnowrl.gates import VipAllocator, embed_prompts
from winnowrl.gates.allocation.success_model import SuccessModel, median_distance

NEAR = np.array([[0.0, 0.0], [0.5, 0.5]])  # squared distance .5


def test_an_observation_moves_its_neighbour():
    # k = exp(-.5 / (2 * .25)) = .36788, g = logit .75 = ln 3, so the neighbour is at sigmoid(.36788 ln 3) = .59969.
    model = SuccessModel(length_scale=0.5)
    model.observe(NEAR[:1], [0.75])
    expected = 1 / (1 + math.exp(-math.exp(-1) * math.log(3)))
    assert expected == pytest.approx(0.5996859830, abs=1e-10)
    assert model.predict(NEAR) == pytest.approx([0.75, expected], abs=1e-6)


def test_without_observations_all_chances_are_even():
    assert SuccessModel().predict(NEAR).tolist() == [0.5, 0.5]


def test_the_latest_observation_of_a_prompt_replaces_earlier_ones():
    model = SuccessModel(length_scale=0.5)
    for rate in (0.2, 0.9, 0.6):
        model.observe(NEAR, [rate, 0.5])
    assert model.predict(NEAR) == pytest.approx([0.6, 0.5], abs=1e-5)
    assert model.num_points == 2


def test_the_mean_follows_the_published_recursion():
    # m[B] = g, m[rest] += K(rest, B) K(B, B)^-1 (g - m[B]), kept here for a fixed list of prompts.
    rng = np.random.default_rng(0)
    points, scale = rng.normal(size=(12, 3)), 1.3
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / (2 * scale**2))
    latent, model = np.zeros(12), SuccessModel(length_scale=scale)
    for _ in range(5):
        batch = rng.choice(12, size=4, replace=False)
        rates = rng.uniform(0.1, 0.9, size=4)
        goal = np.log(rates / (1 - rates))
        latent = latent + kernel[:, batch] @ np.linalg.solve(kernel[np.ix_(batch, batch)], goal - latent[batch])
        model.observe(points[batch], rates.tolist())
    assert model.predict(points) == pytest.approx(1 / (1 + np.exp(-latent)), abs=1e-4)


def test_equal_prompts_count_once_with_their_mean():
    model = SuccessModel(length_scale=0.5)
    model.observe(np.array([[0.0, 0.0], [0.0, -0.0]]), [0.4, 0.8])
    assert model.predict(NEAR[:1]) == pytest.approx([0.6], abs=1e-6)
    assert model.num_points == 1


def test_certain_outcomes_are_clipped():
    model = SuccessModel(length_scale=0.5, clip=0.05)
    model.observe(np.array([[0.0], [100.0]]), [0.0, 1.0])
    assert model.predict(np.array([[0.0], [100.0]])) == pytest.approx([0.05, 0.95], abs=1e-6)


def test_the_length_scale_is_the_first_steps_median_distance():
    # Distances 1, 2, 3 between 0, 1 and 3.
    assert median_distance(np.array([[0.0], [1.0], [3.0]])) == 2.0
    assert median_distance(np.array([[1.0]])) == 1.0
    model = SuccessModel()
    model.observe(np.array([[0.0], [1.0], [3.0]]), [0.5, 0.5, 0.5])
    model.observe(np.array([[0.0], [50.0]]), [0.5, 0.5])
    assert model.length_scale == 2.0


def test_state_survives_json_bit_for_bit():
    rng = np.random.default_rng(1)
    model, copy = SuccessModel(), SuccessModel()
    model.observe(rng.normal(size=(6, 4)), rng.uniform(size=6).tolist())
    copy.load_state_dict(json.loads(json.dumps(model.state_dict())))
    query, more = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    for each in (model, copy):
        each.observe(more, [0.1, 0.5, 0.9])
    assert model.predict(query).tolist() == copy.predict(query).tolist()
    empty = SuccessModel()
    empty.load_state_dict(SuccessModel().state_dict())
    assert empty.predict(query).tolist() == [0.5] * 5


def test_features_of_another_width_are_refused():
    model = SuccessModel()
    model.observe(np.zeros((1, 3)), [0.5])
    with pytest.raises(ValueError, match=r"shape \(2, 4\); allowed: \[prompts, 3\]"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="3 rows and success 2"):
        model.observe(np.zeros((3, 3)), [0.5, 0.5])


def test_embeddings_are_unit_vectors_that_know_wording():
    same, near, far, empty = embed_prompts(
        ["What is 12 + 35?", "what  is 12 + 36?", "Name the capital of Peru in one word.", ""]
    )
    assert np.linalg.norm(same) == pytest.approx(1.0)
    assert np.linalg.norm(same - near) < np.linalg.norm(same - far)
    assert not empty.any()
    assert embed_prompts(["What is 12 + 35?"]).tolist() == [same.tolist()]


def test_the_first_step_is_even_and_the_next_follows_what_was_seen():
    features = np.array([[0.0], [10.0], [20.0], [30.0]])
    allocator = VipAllocator(8, least=3, most=20, length_scale=1.0)
    assert allocator.first_round(4, features) == [8, 8, 8, 8]
    assert allocator.next_round([[]] * 4, [False] * 4) is None
    # Success .5, .1, .9 and .02 are the published case.
    rewards = [[1, 0], [1] + [0] * 9, [0] + [1] * 9, [1] + [0] * 49]
    allocator.observe(features, rewards, [False] * 4)
    assert allocator.first_round(4, features) == [13, 8, 8, 3]


def test_rewards_of_plus_and_minus_one():
    allocator = VipAllocator(8, length_scale=1.0, reward_low=-1.0)
    allocator.observe(np.array([[0.0]]), [[1, 1, 1, -1]], [False])
    assert allocator.model.predict(np.array([[0.0]])) == pytest.approx([0.75], abs=1e-6)


def test_stopped_and_failed_groups_teach_nothing():
    allocator = VipAllocator(8)
    allocator.observe(np.array([[0.0], [1.0]]), [[0, 0], []], [True, False])
    assert allocator.model.num_points == 0
    assert allocator.metrics()["allocator/observed_prompts"] == 0.0


def test_prediction_beats_not_knowing_on_a_run():
    # Additions whose chance of success falls with their digits; fresh prompts in each of 25 steps.
    rng = random.Random(5)
    allocator, errors = VipAllocator(8), []
    for _ in range(25):
        digits = [rng.randint(1, 4) for _ in range(16)]
        prompts = [f"What is {rng.randrange(10**d)} + {rng.randrange(10**d)}?" for d in digits]
        chances = [{1: 0.95, 2: 0.7, 3: 0.3, 4: 0.05}[d] for d in digits]
        features = embed_prompts(prompts)
        counts = allocator.first_round(16, features)
        assert sum(counts) == 128
        errors.append(float(np.mean(np.abs(allocator.model.predict(features) - chances))))
        rewards = [[float(rng.random() < p) for _ in range(n)] for p, n in zip(chances, counts, strict=True)]
        allocator.observe(features, rewards, [False] * 16)
    # Saying one half of everything is off by (.45 + .2 + .2 + .45) / 4 = .325.
    assert sum(errors[-10:]) / 10 < 0.2
    assert allocator.metrics()["allocator/prediction_error"] < 0.3


def test_resume_splits_alike():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(6, 3))
    allocator, copy = VipAllocator(8), VipAllocator(8)
    allocator.first_round(6, features)
    allocator.observe(features, [[1, 0], [1, 1], [0, 0], [0, 1], [1, 1], [0, 0]], [False] * 6)
    copy.load_state_dict(json.loads(json.dumps(allocator.state_dict())))
    query = rng.normal(size=(6, 3))
    assert allocator.first_round(6, query) == copy.first_round(6, query)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: VipAllocator(2), "the mean must lie within the bounds"),
        (lambda: VipAllocator(8, least=2), "least is 2; allowed with dr_grpo: 3"),
        (lambda: VipAllocator(8, reward_low=1.0), "reward_low is 1"),
        (lambda: VipAllocator(8).first_round(4), "features: none came"),
        (lambda: VipAllocator(8).first_round(4, np.zeros((3, 2))), "features: 3 rows came"),
        (lambda: VipAllocator(8).load_state_dict({}), "that of a VIP allocator"),
        (lambda: SuccessModel(length_scale=0.0), "length_scale is 0"),
        (lambda: SuccessModel(clip=0.5), r"clip is 0\.5"),
    ],
)
def test_mistakes_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
