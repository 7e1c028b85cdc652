"""Reading a configuration: YAML, then command-line overrides; every mistake is one clear sentence before a model loads."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from winnowrl.configs.schema import RunConfig

BUILT_IN_FOLDER = Path(__file__).parent


class ConfigError(ValueError):
    """The user's mistake in a configuration: what is wrong, what is allowed, how to mend it."""


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration from a YAML file (or a mapping) and ``section.field=value`` overrides.

    Args:
        source: Path of a YAML file, the name of a built-in one (``quickstart``), or a mapping.
        overrides: Later ones win. Values are read as YAML: ``learner.learning_rate=1e-5``, ``gate.type=none``.

    Raises:
        ConfigError: a missing file, an unknown key (the nearest one is named), a wrong type, a key that the chosen
            ``type`` does not use, or a combination that cannot work.
    """
    given = _merge_overrides(_read(source), _parse_overrides(overrides))
    _refuse_unknown(given, RunConfig, "")
    _refuse_unused(given)
    return _build(given)


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries and lists, defaults included."""
    return dataclasses.asdict(config)


def config_to_yaml(config: RunConfig) -> str:
    """The configuration as YAML that :func:`load_config` reads back to an equal one."""
    text: str = yaml.safe_dump(_prune(config, config_to_dict(config)), sort_keys=False, allow_unicode=True)
    return text


def built_in_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(path.stem for path in BUILT_IN_FOLDER.glob("*.yaml"))


def _read(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source).expanduser()
    if not path.exists():
        built_in = BUILT_IN_FOLDER / f"{path.stem}.yaml"
        if len(path.parts) > 2 or not built_in.exists():
            raise ConfigError(
                f"configuration {str(source)!r} does not exist; give the path of a YAML file, or one that comes with the "
                f"package: {', '.join(built_in_configs()) or 'none'}"
            )
        path = built_in
    if path.is_dir():
        raise ConfigError(f"configuration {str(source)!r} is a folder; give the path of a YAML file")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {str(error).splitlines()[0]} {_position(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}; a configuration is a mapping of sections")
    base = content.pop("extends", None)
    return content if base is None else _merge(_read(_resolve_base(base, path)), content)


def _resolve_base(base: Any, path: Path) -> str | Path:
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends is {base!r}; give the path or the name of one configuration")
    beside = path.parent / base
    return beside if beside.exists() else base


class _Loader(yaml.SafeLoader):
    """Reads ``1e-5`` as a number (YAML 1.1 wants a dot) and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _number_resolver() -> None:
    import re

    pattern = re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)$")
    _Loader.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+0123456789."))


_number_resolver()


def _position(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", "") or ""
    return f"({problem}, line {mark.line + 1}, column {mark.column + 1})" if mark else ""


def _parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"override {override!r} has no '='; write section.field=value")
        try:
            parsed = yaml.load(value, Loader=_Loader) if value.strip() else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"override {override!r}: the value is not YAML {_position(error)}") from None
        if isinstance(parsed, bool | int | float) and _type_name(key.strip()).startswith("str"):
            # YAML reads on, no and 1e5 as other things than a name.
            parsed = value.strip()
        nested: Any = parsed
        for part in reversed(key.strip().split(".")):
            nested = {part: nested}
        result = _merge(result, nested)
    return result


def _merge_overrides(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """As :func:`_merge`, but another environment does not inherit the arguments of the first."""
    first, other = base.get("environment"), overrides.get("environment")
    if (
        isinstance(first, Mapping)
        and isinstance(other, Mapping)
        and other.get("id", first.get("id")) != first.get("id")
    ):
        base = base | {"environment": {key: value for key, value in first.items() if key != "kwargs"}}
    return _merge(base, overrides)


def _merge(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``other`` over ``base``; mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in other.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _refuse_unknown(given: Mapping[str, Any], schema: type, where: str) -> None:
    fields = _fields(schema)
    for key, value in given.items():
        full = f"{where}{key}"
        if key not in fields:
            nearest = _nearest(full, where, fields)
            known = f"did you mean {nearest!r}?" if nearest else f"allowed here: {', '.join(fields)}"
            raise ConfigError(f"unknown key {full!r}; {known}")
        nested = _section_of(schema, key)
        if nested is None:
            _refuse_odd_value(full, value, str(fields[key].type))
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{full} is {value!r}; it is a section: write its fields under it")
        _refuse_unknown(value, nested, f"{full}.")


def _refuse_odd_value(full: str, value: Any, wanted: str) -> None:
    """What OmegaConf refuses without saying where, or takes without a word: mapping or list, no value, no number."""
    if isinstance(value, Mapping) and wanted.startswith("list"):
        raise ConfigError(f"{full} is {dict(value)!r}; allowed: a list, e.g. [a, b]")
    if isinstance(value, list) and wanted.startswith("dict"):
        raise ConfigError(f"{full} is {value!r}; allowed: a mapping, e.g. {{name: value}}")
    if value == "???":
        raise ConfigError(f"{full} is ???, which marks a value still to be given; give one, or remove the line")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{full} is {value}; allowed: a finite number")


def _nearest(full: str, where: str, fields: Mapping[str, Any]) -> str | None:
    key = full.rpartition(".")[2]
    close = difflib.get_close_matches(str(key), list(fields), n=1, cutoff=0.6)
    if close:
        return f"{where}{close[0]}"
    everywhere = list(_all_keys(RunConfig, ""))
    exact = [name for name in everywhere if name.rpartition(".")[2] == key]
    if exact:
        return exact[0]
    close = difflib.get_close_matches(full, everywhere, n=1, cutoff=0.7)
    return close[0] if close else None


def _all_keys(schema: type, where: str) -> Iterator[str]:
    for field in dataclasses.fields(schema):
        nested = _section_of(schema, field.name)
        if nested is None:
            yield f"{where}{field.name}"
        else:
            yield from _all_keys(nested, f"{where}{field.name}.")


def _fields(schema: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(schema)}


def _section_of(schema: type, name: str) -> type | None:
    """The dataclass of a nested section, or None for a plain field."""
    factory = _fields(schema)[name].default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def _refuse_unused(given: Mapping[str, Any], schema: type = RunConfig, where: str = "") -> None:
    """A field that the section's chosen ``type`` does not use would be accepted and ignored: refuse it."""
    for name, values in given.items():
        section = _section_of(schema, name)
        if section is None:
            continue
        full = f"{where}{name}"
        _refuse_unused(values, section, f"{full}.")
        types: dict[str, tuple[str, ...]] | None = getattr(section, "TYPES", None)
        if types is not None:
            _refuse_unused_fields(values, section, types, full)


def _refuse_unused_fields(
    values: Mapping[str, Any], section: type, types: Mapping[str, tuple[str, ...]], full: str
) -> None:
    chosen = values.get("type", _fields(section)["type"].default)
    chosen = "none" if chosen is None else chosen
    if not isinstance(chosen, str) or chosen not in types:
        close = difflib.get_close_matches(str(chosen), list(types), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{full}.type is {chosen!r}; allowed: {', '.join(types)}{hint}")
    governed = {field for fields in types.values() for field in fields}
    for key in values:
        if key in governed and key not in types[chosen]:
            users = [kind for kind, fields in types.items() if key in fields]
            raise ConfigError(
                f"{full}.{key} is given but {full}.type is {chosen!r}, which does not use it; "
                f"remove it, or set {full}.type to {' or '.join(users)}"
            )


def _prune(section: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the chosen types do not use, so that a written configuration reads back."""
    types: dict[str, tuple[str, ...]] = getattr(type(section), "TYPES", {})
    used = set(types.get(plain.get("type", ""), ()))
    governed = {field for fields in types.values() for field in fields}
    kept = {}
    for key, value in plain.items():
        if key in governed and key not in used:
            continue
        nested = getattr(section, key)
        kept[key] = _prune(nested, value) if dataclasses.is_dataclass(nested) else value
    return kept


def _build(given: Mapping[str, Any]) -> RunConfig:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.create(dict(given)))
        assert isinstance(merged, DictConfig)
        built = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_describe(error)) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    assert isinstance(built, RunConfig)
    from winnowrl.configs.checks import check_combinations

    check_combinations(built)
    return built


def _describe(error: OmegaConfBaseException) -> str:
    first = str(error).splitlines()[0]
    key = getattr(error, "full_key", None) or ""
    wanted = _type_name(key)
    hint = f"; allowed: {wanted}" if wanted else ""
    return f"{key}: {first}{hint}" if key else first


def _type_name(key: str) -> str:
    schema: type = RunConfig
    *sections, last = key.split(".")
    for name in sections:
        nested = _section_of(schema, name) if name in _fields(schema) else None
        if nested is None:
            return ""
        schema = nested
    field = _fields(schema).get(last)
    return str(field.type) if field else ""
