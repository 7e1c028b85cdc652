"""From a model's reply to the program that is run."""

from __future__ import annotations

import ast
import re
import warnings

# A fence may be left open: the reply was cut by its token budget.
_FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_LANGUAGES = ("", "python", "py", "python3")
MAX_CANONICAL = 20_000


def extract_program(reply: str, entry_point: str) -> str:
    """The last fenced block of Python that defines ``entry_point``, else the last one, else the whole reply.

    What a model thinks aloud (``<think>…</think>``) is left out.
    """
    text = reply.rpartition("</think>")[2]
    found: list[tuple[str, str]] = _FENCE.findall(text)
    blocks = [body.removesuffix("```") for language, body in found if language.lower() in _LANGUAGES]
    for block in reversed(blocks):
        if defines(block, entry_point):
            return block
    return blocks[-1] if blocks else text


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
