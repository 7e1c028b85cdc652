"""What an argument may be follows from its annotation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from winnowrl.envs.arguments import check_arguments, check_range

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Taker:
    def __init__(
        self,
        whole: int = 0,
        number: float = 0.0,
        flag: bool = False,
        text: str = "",
        maybe: int | None = None,
        choice: Literal["a", "b"] = "a",
        names: Sequence[str] = (),
        pair: tuple[int, str] = (1, "a"),
        options: dict[str, float] | None = None,
        folder: Path | None = None,
        anything: Any = None,
        bare=None,  # type: ignore[no-untyped-def]
        unknown: Unknown = None,
        old_style: int = None,  # type: ignore[assignment]  # noqa: RUF013
        nested: Mapping[str, list[int]] | None = None,
    ) -> None: ...


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("whole", (0, -3, np.int64(2))),
        ("number", (0, 0.5, np.float32(1), math.inf)),
        ("flag", (True, False)),
        ("text", ("", "no")),
        ("maybe", (None, 3)),
        ("choice", ("a", "b")),
        ("old_style", (None, 3)),
        ("names", ([], ["a"], ("a",))),
        ("pair", ([1, "a"], (1, "a"))),
        ("options", (None, {}, {"a": 1})),
        ("folder", (None, "here", Path("here"))),
        ("nested", (None, {"a": [1]})),
        *((name, (None, 1, "a", object())) for name in ("anything", "bare", "unknown", "no_such_name")),
    ],
)
def test_a_value_that_fits_passes(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        check_arguments(Taker, {name: value})


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("whole", (1.5, 1.0, True, "1", None, [1]), "a whole number"),
        ("number", ("a", True, None, math.nan), "a number"),
        ("flag", (0, 1, "no", None), "true or false"),
        ("text", (1, True, None), "text"),
        ("maybe", (1.5, "a", False), "a whole number or null"),
        ("choice", ("c", 1), "a, b"),
        ("names", ("abc", [1], {"a": 1}), "a list, each text"),
        ("options", (3, [1], {"a": "b"}), "a mapping of name: value or null"),
        ("folder", (3, True), "a path or null"),
        ("nested", ({"a": 1}, {"a": ["b"]}), "a mapping"),
    ],
)
def test_a_value_that_does_not_is_named(name: str, values: tuple[Any, ...], allowed: str) -> None:
    for value in values:
        with pytest.raises(ValueError) as error:
            check_arguments(Taker, {name: value}, "kwargs.")
        assert str(error.value).startswith(f"kwargs.{name} is {value!r}; allowed: {allowed}")


def test_what_was_read_as_no_text_is_told_to_be_quoted() -> None:
    with pytest.raises(ValueError, match="put it in quotes: '\"3\"'"):
        check_arguments(Taker, {"text": 3})


def test_numbers_out_of_range_are_named() -> None:
    check_range("n", 0)
    check_range("n", 5, least=1, most=5)
    for value, told in ((-1, "0 or more"), (math.nan, "0 or more"), (math.inf, "0 or more")):
        with pytest.raises(ValueError, match=f"n is {value}; allowed: {told}"):
            check_range("n", value)
    with pytest.raises(ValueError, match="n is 6; allowed: 1 to 5"):
        check_range("n", 6, least=1, most=5)
