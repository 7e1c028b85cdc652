"""Reading a configuration: YAML, then command-line overrides; every mistake is one clear sentence before a model loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException

from winnowrl.configs.fields import kind_of
from winnowrl.configs.merging import merge
from winnowrl.configs.refusals import refuse_open, refuse_unknown, refuse_unused
from winnowrl.configs.schema import RunConfig
from winnowrl.configs.yaml_text import position, read_yaml, write_yaml

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
    try:
        given = merge(_read(source), _parse_overrides(overrides), RunConfig)
        refuse_unknown(given, RunConfig, "")
        refuse_unused(given)
        return _build(given)
    except RecursionError:
        name = "the mapping" if isinstance(source, Mapping) else _short(source)
        raise ConfigError(
            f"configuration {name}, or an override, holds itself or is nested too deeply; take out the anchor (&) that stands "
            "inside what it names"
        ) from None


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries and lists, defaults included."""
    return dataclasses.asdict(config)


def config_to_yaml(config: RunConfig) -> str:
    """The configuration as YAML that :func:`load_config` reads back to an equal one.

    Raises:
        ConfigError: it holds the text ``???``, which no configuration can.
    """
    content = _prune(config, config_to_dict(config))
    refuse_open("", content)
    return write_yaml(content)


def built_in_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(path.stem for path in BUILT_IN_FOLDER.glob("*.yaml"))


def _read(source: str | Path | Mapping[str, Any], extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a file gives, over what it extends. ``extending``: the files that led here, resolved."""
    if isinstance(source, Mapping):
        return dict(source)
    path = _locate(source)
    chain = (*extending, path.resolve())
    if chain[-1] in extending:
        names = " -> ".join(each.name for each in chain[chain.index(chain[-1]) :])
        raise ConfigError(f"{path} extends itself ({names}); take extends out of one of them")
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {str(error).splitlines()[0]} {position(error)}") from None
    except OSError as error:
        raise ConfigError(f"configuration {_short(path)} cannot be read ({error.strerror})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}; a configuration is a mapping of sections")
    base = content.pop("extends", None)
    return content if base is None else merge(_read(_resolve_base(base, path), chain), content, RunConfig)


def _locate(source: str | Path) -> Path:
    try:
        path = Path(source).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"configuration {_short(source)} cannot be found ({error}); write the path out") from None
    if not _exists(path):
        built_in = BUILT_IN_FOLDER / f"{path.stem}.yaml"
        if len(path.parts) > 2 or not _exists(built_in):
            raise ConfigError(
                f"configuration {_short(source)} does not exist; give the path of a YAML file, or one that comes with the "
                f"package: {', '.join(built_in_configs()) or 'none'}"
            )
        path = built_in
    if path.is_dir():
        raise ConfigError(f"configuration {_short(source)} is a folder; give the path of a YAML file")
    return path


def _resolve_base(base: Any, path: Path) -> str | Path:
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends is {base!r}; give the path or the name of one configuration")
    beside = path.parent / base
    return beside if _exists(beside) else base


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(
            f"configuration {_short(path)} cannot be opened ({error.strerror}); give the path of a YAML file"
        ) from None


def _short(source: str | Path) -> str:
    text = str(source)
    return repr(text if len(text) <= 200 else f"{text[:60]}...")


def _parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"override {override!r} has no '='; write section.field=value")
        try:
            nested: Any = read_yaml(value, key) if value.strip() else ""
        except yaml.YAMLError as error:
            raise ConfigError(f"override {override!r}: the value is not YAML {position(error)}") from None
        for part in reversed(key.split(".")):
            nested = {part: nested}
        result = merge(result, nested)
    return result


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
    wanted = kind_of(key)
    hint = f"; allowed: {wanted}" if isinstance(wanted, str) and wanted else ""
    if isinstance(error, GrammarParseError | InterpolationResolutionError):
        hint += r"; for the text ${ write \${"
    return f"{key}: {first}{hint}" if key else first
