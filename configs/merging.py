"""One configuration over another: overrides over a file, a file over the one it extends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_overrides(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """As :func:`merge`, but another environment does not inherit the arguments of the first."""
    first, other = base.get("environment"), overrides.get("environment")
    if (
        isinstance(first, Mapping)
        and isinstance(other, Mapping)
        and other.get("id", first.get("id")) != first.get("id")
    ):
        base = base | {"environment": {key: value for key, value in first.items() if key != "kwargs"}}
    return merge(base, overrides)


def merge(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``other`` over ``base``; mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in other.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
