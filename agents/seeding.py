"""Seeds derived from what they are for, so that results do not depend on scheduling order."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the given parts, e.g. ``(run seed, step, task id, rollout index, turn)``.

    Parts are length-prefixed, so ``("ab", "c")`` and ``("a", "bc")`` give different seeds.
    """
    return _to_seed(_digest_of(parts))


class SeedStream:
    """Seeds with common first parts, which are hashed once: ``SeedStream(a, b).seed(c)`` is ``derive_seed(a, b, c)``."""

    __slots__ = ("_digest",)

    def __init__(self, *parts: int | str) -> None:
        self._digest = _digest_of(parts)

    def seed(self, part: int | str) -> int:
        return _to_seed(self._extended(part))

    def child(self, part: int | str) -> SeedStream:
        """The stream whose parts are these and ``part``."""
        stream = SeedStream.__new__(SeedStream)
        stream._digest = self._extended(part)
        return stream

    def own(self) -> int:
        """The seed of these parts themselves."""
        return _to_seed(self._digest)

    def _extended(self, part: int | str) -> hashlib.blake2b:
        digest = self._digest.copy()
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
        return digest


def _digest_of(parts: tuple[int | str, ...]) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest


def _to_seed(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest(), "big") >> 1
