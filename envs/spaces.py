"""Text spaces that hold any Unicode string."""

from __future__ import annotations

import string
from typing import Any

from gymnasium import spaces


class UnicodeText(spaces.Text):
    """Gymnasium's ``Text`` with every character allowed; sampling draws from printable ASCII.

    ``spaces.Text`` lists its characters, which cannot be done for what a language model or an environment may write.
    """

    def __init__(self, max_length: int = 1_000_000, *, min_length: int = 0, seed: int | None = None) -> None:
        printable = string.ascii_letters + string.digits + " .,:;-+*/=()\n"
        super().__init__(max_length, min_length=min_length, charset=printable, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(self, *args: Any, **kwargs: Any) -> str:
        # A million random characters help nobody: sample lengths a person can read.
        length = int(self.np_random.integers(self.min_length, min(self.max_length, 64) + 1))
        characters = self.character_list
        return "".join(characters[i] for i in self.np_random.integers(len(characters), size=length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and (self.min_length, self.max_length) == (
            other.min_length,
            other.max_length,
        )

    __hash__ = None  # type: ignore[assignment]
