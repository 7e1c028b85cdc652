"""From a model's reply to the program that is run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

_FENCE = re.compile(r"`{3,}")
_CLOSING = re.compile(r"\n[ \t]*`{3,}")
_LANGUAGE = re.compile(r"[ \t]*([\w+-]*)")
_LIST_MARK = re.compile(r"[-*+]|\d{1,9}[.)]|")
_LANGUAGES = ("", "python", "py", "python3")
MAX_CANONICAL = 20_000


def extract_program(reply: str, entry_point: str) -> str:
    """The last fenced block of Python that defines ``entry_point``, else the last one, else the whole reply.

    What a model thinks aloud (``<think>…</think>``) is left out. Linear in the reply's length: this runs in the trainer.
    """
    text = reply.rpartition("</think>")[2]
    blocks = [body.removesuffix("```") for language, body in _fenced(text) if language.lower() in _LANGUAGES]
    for block in reversed(blocks):
        # A whole function indented beyond its fence. A function's body keeps its indentation.
        for program in (block, _outdent(block, len(block))):
            if defines(program, entry_point):
                return program
    return blocks[-1] if blocks else text


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """Language and body of each fenced block. The last may be left open: the reply was cut by its token budget."""
    at = 0
    while (end := text.find("\n", at)) >= 0:
        before, *after = _FENCE.split(text[at:end])
        start, at = at, end + 1
        if len(after) % 2 == 0:
            continue  # no fence, or only pairs of them inside the line
        language = _LANGUAGE.match(after[-1])
        assert language is not None
        closing = _CLOSING.search(text, at)
        body, at = text[at : closing.start() if closing else len(text)], closing.end() if closing else len(text)
        starts_line = len(after) == 1 and text[start - 1 : start] in ("", "\n")
        is_indented = starts_line and _LIST_MARK.fullmatch(before.strip(" \t"))
        yield language.group(1), _outdent(body, len(before)) if is_indented else body


def _outdent(body: str, width: int) -> str:
    """Take the indentation that all lines share off them, at most ``width`` characters."""
    lines = body.split("\n")
    shared = min((len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()), default=0)
    return "\n".join(line[min(shared, width) :] for line in lines)


def defines(source: str, name: str) -> bool:
    """Whether ``source`` binds ``name`` at its top level."""
    pattern = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*="
    return re.search(pattern, source, re.MULTILINE) is not None


def complete_program(prompt: str, program: str, entry_point: str) -> str:
    """The program of a completion problem, whose prompt is the head of a function.

    A reply that defines the function stands after the prompt, whose imports and helpers it may use; any other is taken
    as the body that goes on where the prompt stops.
    """
    if defines(program, entry_point):
        return f"{head_as_module(prompt)}\n\n\n{program}"
    return prompt + program


def head_as_module(prompt: str) -> str:
    """The prompt of a completion problem as Python that can be run: its function, bodiless or not, does nothing."""
    try:
        ast.parse(prompt)
    except (SyntaxError, ValueError):
        return f"{prompt.rstrip()}\n    pass"
    return prompt.rstrip()


def canonical_program(program: str) -> str:
    """The program without comments, docstrings and layout, so that equal programs compare equal; itself if no Python."""
    if len(program) > MAX_CANONICAL:
        return program.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and len(body) > 1 and _is_text(body[0]):
                del body[0]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program.strip()


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
