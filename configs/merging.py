"""One configuration over another: overrides over a file, a file over the one it extends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from winnowrl.configs.fields import fields_of, section_of
from winnowrl.configs.sections.environment import EnvironmentConfig


def merge(base: Mapping[str, Any], other: Mapping[str, Any], schema: type | None = None) -> dict[str, Any]:
    """``other`` over ``base``; mappings merge, everything else replaces.

    Args:
        base: What is built on.
        other: What wins.
        schema: Where given, a section whose ``type`` (or environment whose ``id``) ``other`` changes does not inherit what
            only the first one of ``base`` uses.
    """
    merged = dict(base)
    for key, value in other.items():
        old, section = merged.get(key), section_of(schema, key) if schema else None
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            merged[key] = value
        elif section is None:
            merged[key] = merge(old, value)
        else:
            dropped = _outdated(old, value, section)
            merged[key] = merge({name: old[name] for name in old if name not in dropped}, value, section)
    return merged


def _outdated(old: Mapping[str, Any], new: Mapping[str, Any], section: type) -> set[str]:
    """Fields of ``old`` that belong to a choice which ``new`` changes."""
    types: Mapping[str, tuple[str, ...]] = getattr(section, "TYPES", {})
    name = "id" if section is EnvironmentConfig else "type"
    if name not in new or not (types or section is EnvironmentConfig):
        return set()
    first, chosen = (values.get(name, fields_of(section)[name].default) for values in (old, new))
    if chosen == first:
        return set()
    if section is EnvironmentConfig:
        return {"kwargs"}
    governed = {field for fields in types.values() for field in fields}
    # A choice that is none of the types is refused later.
    return governed - set(types[chosen]) if isinstance(chosen, str) and chosen in types else set()
