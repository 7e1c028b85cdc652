"""Seeds derived from what they are for, so that results do not depend on scheduling order."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the given parts, e.g. ``(run seed, step, task id, rollout index, turn)``.

    Parts are length-prefixed, so ``("ab", "c")`` and ``("a", "bc")`` give different seeds.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(digest.digest(), "big") >> 1
