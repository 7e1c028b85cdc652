"""Seeds derived from what they are for, so that results do not depend on scheduling order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the given parts, e.g. ``(run seed, step, task id, rollout index, turn)``.

    Parts are length-prefixed, so ``("ab", "c")`` and ``("a", "bc")`` give different seeds.
    """
    return _to_seed(_digest_of(parts))


def seed_stream(*parts: int | str) -> Callable[[int], int]:
    """``seed_stream(a, b)(c)`` is ``derive_seed(a, b, c)``, with the common parts hashed once."""
    common = _digest_of(parts)

    def derive(number: int) -> int:
        digest = common.copy()
        data = str(number).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
        return _to_seed(digest)

    return derive


def _digest_of(parts: tuple[int | str, ...]) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest


def _to_seed(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest(), "big") >> 1
