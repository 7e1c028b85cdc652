from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnowrl.envs.alfworld.actions import MAX_ACTION, extract_action, group_actions, match_action

ADMISSIBLE = ("go to bed 1", "go to bed 2", "look", "move pen 1 to desk 1", "take pen 1 from desk 1")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("go to bed 1", "go to bed 1"),
        ("  Go  to\tbed 1. \n", "go to bed 1"),
        ("> look", "look"),
        ("`look`", "look"),
        ('"look"', "look"),
        ("- look", "look"),
        ("I need light.\nAction: use desklamp 1", "use desklamp 1"),
        ("Action: look\nThen I will see.\nACTION: go to bed 2", "go to bed 2"),
        ("<think>go to bed 1</think><action>look</action>", "look"),
        ("<action>look</action> or <action>go to bed 2", "go to bed 2"),
        ("<action>go to a<action>look</action>", "look"),
        ("<action>look</action> <ACTION>go to bed 1</ACTION> is </action> mine", "go to bed 1"),
        ("First I think.\n\ngo to bed 1\n\n", "go to bed 1"),
        ("put pen 1 in/on desk 1", "move pen 1 to desk 1"),
        ("put pen 1 on desk 1", "move pen 1 to desk 1"),
        ("place pen 1 in the drawer 2", "move pen 1 to drawer 2"),
        ("", ""),
        ("\n \n", ""),
        ("<action></action>", ""),
    ],
)
def test_the_action_is_found_in_a_reply(reply: str, action: str) -> None:
    assert extract_action(reply) == action


def test_exact_match_takes_nothing_that_differs() -> None:
    assert match_action("look", ADMISSIBLE) == "look"
    assert match_action("look around", ADMISSIBLE) is None
    assert match_action("", ADMISSIBLE) is None


def test_near_match_takes_the_most_similar_above_the_cutoff() -> None:
    # "go to bad 1" differs from "go to bed 1" in one of 11 characters: similarity 10/11 = 0.909.
    assert match_action("go to bad 1", ADMISSIBLE, match="near", cutoff=0.9) == "go to bed 1"
    assert match_action("go to bad 1", ADMISSIBLE, match="near", cutoff=0.95) is None
    # Equally near to "go to bed 1" and "go to bed 2": the first in order.
    assert match_action("go to bed 3", ADMISSIBLE, match="near") == "go to bed 1"
    assert match_action("", ADMISSIBLE, match="near", cutoff=0.01) is None


def test_grouped_actions_name_each_verb_once_and_lose_nothing() -> None:
    grouped = group_actions(ADMISSIBLE)
    assert grouped == "go to [bed 1, bed 2]; look; move [pen 1 to desk 1]; take [pen 1 from desk 1]"


@pytest.mark.parametrize(
    "reply", ["a" * 2_000_000, "\n" * 2_000_000, "<action>" * 300_000, "put " * 500_000, "> " * 900_000]
)
def test_a_huge_reply_costs_no_time_and_gives_a_short_action(reply: str) -> None:
    started = time.perf_counter()
    action = extract_action(reply)
    assert time.perf_counter() - started < 1.0
    assert len(action) <= MAX_ACTION + len("move  to ")


@given(st.text())
def test_any_reply_gives_one_normalised_line(reply: str) -> None:
    action = extract_action(reply)
    assert action == " ".join(action.split())
    assert match_action(action, ADMISSIBLE) in (None, *ADMISSIBLE)
