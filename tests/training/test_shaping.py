"""Length penalty."""

import pytest

from winnowrl.training.shaping import soft_overlong_penalty


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(0, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (20481, -1.0), (90000, -1.0)]
)
def test_soft_overlong_penalty(num_tokens, expected):
    # limit 20480, interval 4096: it begins at 16384, and 18432 is half way.
    assert soft_overlong_penalty(num_tokens, 20480, 4096) == expected


@pytest.mark.parametrize("cache", [0, -1, 11])
def test_an_interval_outside_the_limit_is_refused(cache):
    with pytest.raises(ValueError, match="overlong_cache"):
        soft_overlong_penalty(5, 10, cache)
