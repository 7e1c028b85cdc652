"""Turns the text of tests into checks that are counted one by one, each running whatever became of the ones before."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

CHECK = "__check__"


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Instrumented tests.

    Attributes:
        code: The tests, every asserting statement inside ``with __check__(number):``.
        sources: Source of each check, by number.
        program_names: Names the tests use and nobody but the program can define.
        calls: Functions to call at the end: ``check(candidate)`` and ``test_…()`` that the tests define but never call.
        test_cases: ``unittest.TestCase`` classes; each of their test methods is a check.
        seeds_random: The tests draw random numbers, which must be the same for every member of a group.
    """

    code: CodeType
    sources: tuple[str, ...]
    program_names: tuple[str, ...]
    calls: tuple[tuple[str, tuple[str, ...]], ...]
    test_cases: tuple[str, ...]
    seeds_random: bool


@lru_cache(maxsize=4096)
def plan_checks(tests: str, entry_point: str) -> CheckPlan:
    """Read ``tests`` for a program that defines ``entry_point``.

    Raises:
        ValueError: the tests are no Python, or assert nothing.
    """
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests of {entry_point!r} are no Python: {error}") from None
    names = _free_names(tree)
    calls = _uncalled(tree, entry_point)
    instrument = _Instrument()
    tree.body = instrument.statements(tree.body)
    if not instrument.sources:
        raise ValueError(f"the tests of {entry_point!r} assert nothing; give them at least one assert statement")
    code = compile(ast.fix_missing_locations(tree), "<tests>", "exec", dont_inherit=True)
    return CheckPlan(
        code=code,
        sources=tuple(instrument.sources),
        program_names=tuple(sorted(names - {entry_point})),
        calls=calls,
        test_cases=tuple(instrument.test_cases),
        seeds_random="random" in tests,
    )


class _Instrument:
    """Wraps statements; keeps the source of each in the order of their numbers."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.test_cases: list[str] = []

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self._statement(statement) for statement in body]

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statement.body = self.statements(statement.body)
        elif isinstance(statement, ast.ClassDef):
            self._class(statement)
        elif _asserts(statement):
            return self._wrap([statement], ast.unparse(statement))
        return statement

    def _class(self, statement: ast.ClassDef) -> None:
        is_case = any(ast.unparse(base).endswith("TestCase") for base in statement.bases)
        if is_case:
            self.test_cases.append(statement.name)
        for member in statement.body:
            if isinstance(member, ast.FunctionDef) and is_case and member.name.startswith("test"):
                # Methods of unittest assert by calls, so the method is the smallest thing that can be counted.
                member.body = [self._wrap(member.body, ast.unparse(member))]
            elif isinstance(member, ast.FunctionDef):
                member.body = self.statements(member.body)

    def _wrap(self, body: list[ast.stmt], source: str) -> ast.stmt:
        number = ast.Constant(len(self.sources))
        self.sources.append(source if len(source) <= 1000 else source[:1000] + "…")
        item = ast.withitem(context_expr=ast.Call(ast.Name(CHECK, ast.Load()), [number], []))
        return ast.copy_location(ast.With(items=[item], body=body), body[0])


def _asserts(statement: ast.AST) -> bool:
    """Whether the statement itself, functions it defines left aside, contains an ``assert``."""
    if isinstance(statement, ast.Assert):
        return True
    nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return any(not isinstance(child, nested) and _asserts(child) for child in ast.iter_child_nodes(statement))


def _free_names(tree: ast.Module) -> set[str]:
    bound: set[str] = set(dir(builtins)) | {CHECK, "__name__"}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return used - bound


def _uncalled(tree: ast.Module, entry_point: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Test functions that the tests leave to a runner to call."""
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    found: list[tuple[str, tuple[str, ...]]] = []
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef) or statement.name in called:
            continue
        count = len(statement.args.args) - len(statement.args.defaults)
        if statement.name == "check" and count == 1:
            found.append(("check", (entry_point,)))
        elif statement.name.startswith("test_") and count == 0:
            found.append((statement.name, ()))
    return tuple(found)
