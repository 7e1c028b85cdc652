"""What is found wrong before a model is loaded."""

from __future__ import annotations

import pytest

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.envs.arithmetic import ArithmeticEnv
from winnowrl.training.preflight import check_gate_turn, make_env

GATE = "gate.type=prefix_edit_distance"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["gate.turn=1"], "Arithmetic-v0 end after 1 turn: no group is left to stop then; set gate.type to none"),
        (
            ["environment.id=winnowrl/GuessNumber-v0", "collector.max_turns=6", "gate.turn=6"],
            "set gate.turn to 5 or less",
        ),
    ],
)
def test_a_gate_that_comes_when_all_have_ended_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_gate_turn(load_config({}, [GATE, *overrides]))


def test_a_gate_before_the_last_turn_and_no_gate_pass() -> None:
    check_gate_turn(
        load_config({}, [GATE, "gate.turn=5", "environment.id=winnowrl/GuessNumber-v0", "collector.max_turns=6"])
    )
    check_gate_turn(load_config({}))


def test_what_an_environment_needs_is_told_before_a_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArithmeticEnv, "requires", {"json": "It is there.", "no_such_module": "Get it from the sea."})
    with pytest.raises(
        ConfigError, match=r"needs the module no_such_module, which is not installed\. Get it from the sea"
    ):
        make_env(load_config({}).environment)
