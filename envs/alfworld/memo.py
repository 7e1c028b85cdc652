"""Makes TextWorld's PDDL games cheap inside a worker: what is parsed or translated once is not parsed again.

TextWorld parses its grammar's fragments anew at every step, copies entities that it only reads, and translates the
PDDL problem four times to load and reset one game. All of these are pure functions of text, so they are remembered;
the text that a game produces does not change by a character (tests/envs/test_alfworld_exactness.py). Only worker processes
import this module.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_downward
from textworld.envs.pddl import textgen
from textworld.logic import Rule

from winnowrl.envs.alfworld.saving import write_whole

_translate = fast_downward.pddl2sas


def install() -> None:
    """Put the remembering versions in place (process-wide; calling it twice changes nothing)."""
    if getattr(textgen, "_winnowrl_memo", False):
        return
    textgen._winnowrl_memo = True
    textgen._parse_and_convert = _remember_symbols(textgen._parse_and_convert)
    textgen.copy_context = _copy_context
    textgen.EvalSymbol.derive = _derive_value
    Rule.parse_conjunctive_query = functools.lru_cache(maxsize=4096)(Rule.parse_conjunctive_query)


def _remember_symbols(parse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.lru_cache(maxsize=8192)
    def parsed(text: str, rule_name: str) -> bytes:
        return pickle.dumps(parse(text, rule_name=rule_name))

    def remembered(text: str, rule_name: str, **_: Any) -> Any:
        # A derivation writes its context into the symbols, so each one gets its own (our own bytes, never a file's).
        return pickle.loads(parsed(text, rule_name))

    return remembered


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    # The grammar replaces entries of these mappings and never writes to the entities in them.
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _derive_value(self: Any, context: dict[str, Any] | None = None) -> list[Any]:
    # The original relies on writing to locals(), which Python 3.13 no longer allows.
    context = context or self.context
    return [textgen.TerminalSymbol(eval(self.expression, {}, dict(context["variables"])))]


class Translations:
    """PDDL to SAS, remembered in memory and on disk.

    Args:
        folder: where translations are kept, about 10–80 kB a game.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[tuple[str, str], tuple[Any, str]] | None = None

    def install(self) -> None:
        fast_downward.pddl2sas = self.translate

    def translate(self, domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        """As ``fast_downward.pddl2sas``, but without the second translation, which only its planner reads."""
        if optimize:
            return None, ""
        key = (domain, problem)
        if self._last is None or self._last[0] != key:
            self._last = key, self._load(domain, problem)
        return self._last[1]

    def translate_for_planner(self, domain: str, problem: str) -> str:
        return str(_translate(domain, problem, optimize=True)[1])

    def _load(self, domain: str, problem: str) -> tuple[Any, str]:
        digest = hashlib.blake2b(f"{len(domain)}\n{domain}{problem}".encode(), digest_size=16).hexdigest()
        path = self.folder / f"{digest}.sas.z"
        try:
            return _parse(domain, problem), zlib.decompress(path.read_bytes()).decode()
        except (OSError, zlib.error, UnicodeDecodeError):
            task, sas = _translate(domain, problem)
        write_whole(path, zlib.compress(sas.encode(), 1))
        return task, sas


def _parse(domain: str, problem: str) -> Any:
    """The normalised task, without the grounding that makes translation slow."""
    from fast_downward.translate import normalize
    from fast_downward.translate.pddl_parser import lisp_parser, parsing_functions

    parsed = [lisp_parser.parse_nested_list(text.split("\n")) for text in (domain, problem)]
    task = parsing_functions.parse_task(*parsed)
    normalize.normalize(task)
    return task
