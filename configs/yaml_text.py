"""Between YAML text and plain values, so that what is written reads back to the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from winnowrl.configs.fields import kind_of

_TAG = "tag:yaml.org,2002:"
# What YAML makes of an unquoted word that may be meant as text. null stays: it is how a field is left open.
_NO_TEXT = frozenset(f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp", "merge", "value"))
_EXPONENT = re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)$")
_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")
_BEFORE_INTERPOLATION = re.compile(r"(\\*)\$\{")


def read_yaml(text: str, where: str = "") -> Any:
    """The content of YAML text; a text field takes an unquoted word as it is written (``no``, ``012``, ``10:30``).

    Args:
        text: One YAML document.
        where: Dotted key of the section or field that the text is the value of; ``""`` for a whole configuration.

    Raises:
        yaml.YAMLError: no YAML, a key that stands twice or is no scalar, or a scalar that its tag cannot hold.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(_keep_text(loader, node, kind_of(where)))
    finally:
        loader.dispose()


def write_yaml(content: Mapping[str, Any]) -> str:
    """YAML that :func:`read_yaml` and then OmegaConf read back to ``content``: texts get their ``${`` escaped."""
    text: str = yaml.dump(_escape(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def position(error: Exception) -> str:
    """What a YAML error complains of and where, in parentheses; empty where it does not say."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", "") or ""
    return f"({problem}, line {mark.line + 1}, column {mark.column + 1})" if mark else ""


class _Loader(yaml.SafeLoader):
    """Reads ``1e-5`` as a number (YAML 1.1 wants a dot) and refuses a key that stands twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here and not where mappings are built: merge keys (<<) have not been filled in yet.
        node = super().compose_mapping_node(anchor)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping; allowed: text", key_node.start_mark
                )
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Fill in merge keys: what stands in the mapping itself wins, then the earlier of several merged ones."""
        merged = [value for key, value in node.value if key.tag == f"{_TAG}merge"]
        # At once, so that a mapping merged into itself comes to an end.
        node.value = [pair for pair in node.value if pair[0].tag != f"{_TAG}merge"]
        names = {(key.tag, key.value) for key, _ in node.value}
        for given in merged:
            for mapping in given.value if isinstance(given, yaml.SequenceNode) else [given]:
                if not isinstance(mapping, yaml.MappingNode):
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        "what << merges is no mapping; allowed: a mapping or a list of them",
                        mapping.start_mark,
                    )
                self.flatten_mapping(mapping)
                fresh = [pair for pair in mapping.value if (pair[0].tag, pair[0].value) not in names]
                node.value.extend(fresh)
                names.update((key.tag, key.value) for key, _ in fresh)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)  # type: ignore[no-untyped-call]
        except (AttributeError, KeyError, TypeError, ValueError):
            kind = node.tag.removeprefix(_TAG)
            raise yaml.constructor.ConstructorError(
                None, None, f"{str(node.value)[:40]!r} cannot be read as {kind}", node.start_mark
            ) from None


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that :class:`_Loader` would take for numbers."""


def _as_written(loader: _Loader, node: yaml.Node) -> Any:
    return loader.construct_yaml_str(node)  # type: ignore[no-untyped-call]


def _quote_breaks(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Line breaks other than a newline are escaped: outside double quotes they are read as a newline or a blank."""
    style = '"' if _OTHER_BREAKS.search(text) else None
    return dumper.represent_scalar(f"{_TAG}str", text, style)


_Dumper.add_representer(str, _quote_breaks)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+0123456789."))
# A configuration holds no dates, and a lone = is what stands there.
for _name in ("timestamp", "value"):
    _Loader.add_constructor(f"{_TAG}{_name}", _as_written)


def _keep_text(loader: _Loader, node: yaml.Node, kind: type | str) -> yaml.Node:
    """The node with the scalars of text fields marked as text. Copies, since an anchor may name a node elsewhere too."""
    marks = node.start_mark, node.end_mark
    if isinstance(node, yaml.ScalarNode) and kind in ("str", "str | None") and node.tag in _NO_TEXT:
        return yaml.ScalarNode(f"{_TAG}str", node.value, *marks)
    if isinstance(node, yaml.SequenceNode) and kind == "list[str]":
        return yaml.SequenceNode(node.tag, [_keep_text(loader, item, "str") for item in node.value], *marks)
    if isinstance(node, yaml.MappingNode) and isinstance(kind, type):
        loader.flatten_mapping(node)
        pairs = [(key, _keep_text(loader, value, kind_of(key.value, kind))) for key, value in node.value]
        return yaml.MappingNode(node.tag, pairs, *marks)
    return node


def _escape(value: Any) -> Any:
    r"""``${`` would be read as an interpolation: ``\${`` is the text. Backslashes before it are doubled."""
    if isinstance(value, str):
        return _BEFORE_INTERPOLATION.sub(lambda found: f"{found[1] * 2}\\${{", value)
    if isinstance(value, Mapping):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    return value
