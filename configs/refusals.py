"""Refusing what a configuration gives before it is built: unknown keys, values of another kind, fields nothing uses."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from winnowrl.configs.fields import all_keys, fields_of, section_of
from winnowrl.configs.schema import RunConfig


def refuse_unknown(given: Mapping[str, Any], schema: type, where: str) -> None:
    fields = fields_of(schema)
    for key, value in given.items():
        full = f"{where}{key}"
        if key not in fields:
            nearest = _nearest(full, where, fields)
            known = f"did you mean {nearest!r}?" if nearest else f"allowed here: {', '.join(fields)}"
            _refuse(f"unknown key {full!r}; {known}")
        nested = section_of(schema, key)
        if nested is None:
            _refuse_odd_value(full, value, str(fields[key].type))
            continue
        if not isinstance(value, Mapping):
            _refuse(f"{full} is {value!r}; it is a section: write its fields under it")
        refuse_unknown(value, nested, f"{full}.")


def _refuse_odd_value(full: str, value: Any, wanted: str) -> None:
    """What OmegaConf refuses without saying where, or takes without a word: mapping or list, no value, no number."""
    if isinstance(value, Mapping) and wanted.startswith("list"):
        _refuse(f"{full} is {dict(value)!r}; allowed: a list, e.g. [a, b]")
    if isinstance(value, list) and wanted.startswith("dict"):
        _refuse(f"{full} is {value!r}; allowed: a mapping, e.g. {{name: value}}")
    refuse_open(full, value)
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(f"{full} is {value}; allowed: a finite number")
    if wanted.startswith("float") and isinstance(value, int) and abs(value) > sys.float_info.max:
        _refuse(f"{full} is a number of {value.bit_length()} bits; allowed: up to {sys.float_info.max:.1e}")
    if wanted == "bool" and not isinstance(value, bool) and not (isinstance(value, str) and "${" in value):
        _refuse(f"{full} is {value!r}; allowed: true or false")
    if wanted.startswith("str"):
        _refuse_no_text(full, value)
    if wanted == "list[str]" and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _refuse_no_text(f"{full}[{number}]", item)


def _refuse_no_text(full: str, value: Any) -> None:
    """OmegaConf would make ``'True'`` of a bool, and of 1e3 ``'1000.0'``."""
    if isinstance(value, bool | int | float):
        _refuse(f"{full} is {value!r}, which is no text; put it in quotes")


def refuse_open(full: str, value: Any) -> None:
    """``???`` is OmegaConf's mark of a value still to be given, wherever it stands."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_open(f"{full}.{key}" if full else str(key), item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            refuse_open(f"{full}[{number}]", item)
    elif isinstance(value, str) and value == "???":
        _refuse(f"{full} is ???, which marks a value still to be given; give one, or remove the line")


def _nearest(full: str, where: str, fields: Mapping[str, Any]) -> str | None:
    key = full.rpartition(".")[2]
    close = difflib.get_close_matches(str(key), list(fields), n=1, cutoff=0.6)
    if close:
        return f"{where}{close[0]}"
    everywhere = list(all_keys())
    exact = [name for name in everywhere if name.rpartition(".")[2] == key]
    if exact:
        return exact[0]
    close = difflib.get_close_matches(full, everywhere, n=1, cutoff=0.7)
    return close[0] if close else None


def refuse_unused(given: Mapping[str, Any], schema: type = RunConfig, where: str = "") -> None:
    """A field that the section's chosen ``type`` does not use would be accepted and ignored: refuse it."""
    for name, values in given.items():
        section = section_of(schema, name)
        if section is None:
            continue
        full = f"{where}{name}"
        refuse_unused(values, section, f"{full}.")
        types: dict[str, tuple[str, ...]] | None = getattr(section, "TYPES", None)
        if types is not None:
            _refuse_unused_fields(values, section, types, full)


def _refuse_unused_fields(
    values: Mapping[str, Any], section: type, types: Mapping[str, tuple[str, ...]], full: str
) -> None:
    chosen = values.get("type", fields_of(section)["type"].default)
    if not isinstance(chosen, str) or chosen not in types:
        close = difflib.get_close_matches(str(chosen), list(types), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        _refuse(f"{full}.type is {chosen!r}; allowed: {', '.join(types)}{hint}")
    governed = {field for fields in types.values() for field in fields}
    for key in values:
        if key in governed and key not in types[chosen]:
            users = [kind for kind, fields in types.items() if key in fields]
            _refuse(
                f"{full}.{key} is given but {full}.type is {chosen!r}, which does not use it; "
                f"remove it, or set {full}.type to {' or '.join(users)}"
            )


def _refuse(message: str) -> NoReturn:
    from winnowrl.configs.load import ConfigError

    raise ConfigError(message)
