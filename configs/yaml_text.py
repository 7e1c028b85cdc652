"""From YAML text to plain values."""

from __future__ import annotations

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"^[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)$")


def read_yaml(text: str) -> Any:
    """The content of one YAML document.

    Raises:
        yaml.YAMLError: no YAML, a key that stands twice or is no scalar, or a scalar that its tag cannot hold.
    """
    return yaml.load(text, Loader=_Loader)


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


_Loader.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+0123456789."))
