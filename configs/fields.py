"""Walking the schema: which fields and sections a configuration has, and what each field takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from winnowrl.configs.schema import RunConfig


def fields_of(schema: type) -> dict[str, dataclasses.Field[Any]]:
    """Fields of a section by name."""
    return {field.name: field for field in dataclasses.fields(schema)}


def section_of(schema: type, name: Any) -> type | None:
    """The dataclass of a nested section, or None for a plain field and for no field at all."""
    field = fields_of(schema).get(name)
    factory = field.default_factory if field else None
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def kind_of(key: str, schema: type = RunConfig) -> type | str:
    """What a dotted key holds: the dataclass of a section, the written type of a field (``str | None``), or ``""``."""
    kind: type | str = schema
    for name in key.split(".") if key else ():
        if isinstance(kind, str):
            return ""
        field = fields_of(kind).get(name)
        kind = section_of(kind, name) or (str(field.type) if field else "")
    return kind


def all_keys(schema: type = RunConfig, where: str = "") -> Iterator[str]:
    """Dotted keys of every plain field."""
    for name in fields_of(schema):
        nested = section_of(schema, name)
        if nested is None:
            yield f"{where}{name}"
        else:
            yield from all_keys(nested, f"{where}{name}.")
