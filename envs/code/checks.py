"""Turns the text of tests into checks that are counted one by one, each running whatever became of the ones before."""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from winnowrl.envs.code.image import LEFT_OUT

CHECK = "__check__"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAX_SOURCE = 1000
Entry = tuple[str, int, int, bool]


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Instrumented tests.

    Attributes:
        code: The tests, one code object for each statement at the top, and the names it assigns. Every asserting
            statement stands inside ``with __check__(number):``.
        sources: Source of each check, by number.
        program_names: Names the tests use and do not define. Those of standard modules are imported, others are the
            prelude's or else the program's.
        calls: Test functions and methods, ``check(candidate)`` among them, that are called at the end if nothing in the
            tests has called them: where to find it (``test_a``, ``TestIt.test_a``), then the key by which
            ``__check__.enter`` tells that it runs, its first check and the one after its last, and whether it needs
            arguments, so that only the tests can call it.
        test_cases: ``unittest.TestCase`` classes; then each of their test methods with the number of its check.
        seeds_random: The tests draw random numbers, which must be the same for every member of a group.
    """

    code: tuple[tuple[CodeType, tuple[str, ...]], ...]
    sources: tuple[str, ...]
    program_names: tuple[str, ...]
    calls: tuple[tuple[str, Entry], ...]
    test_cases: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    seeds_random: bool


@lru_cache(maxsize=4096)
def plan_checks(tests: str, entry_point: str) -> CheckPlan:
    """Read ``tests`` for a program that defines ``entry_point``.

    Raises:
        ValueError: the tests are no Python, assert nothing, import what the sandbox does not have, or hold a test that
            could never run.
    """
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests of {entry_point!r} are no Python: {error}") from None
    _check_imports(tree, f"a test of {entry_point!r}")
    names = _free_names(tree)
    bound = [_assigned(statement) for statement in tree.body]
    instrument = _Instrument(tree)
    tree.body = instrument.statements(tree.body, "")
    if not instrument.sources:
        raise ValueError(f"the tests of {entry_point!r} assert nothing; give them at least one assert statement")
    ast.fix_missing_locations(tree)
    return CheckPlan(
        code=tuple(zip(_compiled(tree), bound, strict=True)),
        sources=tuple(instrument.sources),
        program_names=tuple(sorted(names - {entry_point})),
        calls=tuple(instrument.calls),
        test_cases=tuple((name, tuple(methods.items())) for name, methods in instrument.test_cases.items()),
        seeds_random="random" in tests,
    )


def check_prelude(prelude: str) -> set[str]:
    """Names that a prelude defines.

    Raises:
        ValueError: it is no Python, or imports what the sandbox does not have.
    """
    try:
        tree = ast.parse(prelude)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no Python: {error}") from None
    _check_imports(tree, "it")
    return _names(tree)[1]


def _check_imports(tree: ast.Module, what: str) -> None:
    """Refuse imports of what the sandbox does not have, but for those whose failure is handled."""
    handled = {
        each for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in handled:
            is_relative = isinstance(node, ast.ImportFrom) and node.level > 0
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                root = name.partition(".")[0]
                if is_relative or root not in sys.stdlib_module_names or root in LEFT_OUT:
                    raise ValueError(f"{what} imports {name!r}, and the sandbox has the standard library only")


class _Instrument:
    """Wraps statements; keeps the source of each in the order of their numbers."""

    def __init__(self, tree: ast.Module) -> None:
        self.sources: list[str] = []
        self.calls: list[tuple[str, Entry]] = []
        self.test_cases: dict[str, dict[str, int]] = {}
        self.mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self.mentioned |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self.classes = {each.name: each for each in _global_statements(tree.body) if isinstance(each, ast.ClassDef)}
        cases = [name for name in self.classes if self._is_case(name)]
        # A class that a TestCase is made of runs as part of it, and its methods assert by calls as well.
        self.cases = {part for name in cases for part in self._lineage(name)}

    def statements(self, body: list[ast.stmt], place: str | None) -> list[ast.stmt]:
        """``body`` with its checks wrapped. ``place`` is what precedes its names where a runner looks for tests."""
        return [self._statement(statement, place) for statement in body]

    def _statement(self, statement: ast.stmt, place: str | None) -> ast.stmt:
        if isinstance(statement, _FUNCTIONS):
            self._function(statement, place)
        elif isinstance(statement, ast.ClassDef):
            self._class(statement, place)
        elif _asserts(statement):
            return self._wrap(statement)
        else:
            for block in _blocks(statement):
                block[:] = self.statements(block, place)
        return statement

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, place: str | None) -> None:
        first = len(self.sources)
        function.body = self.statements(function.body, None)
        if place is None or not (_is_test(function) or _is_check(function)):
            return
        key = f"{place}{function.name}"
        if any(known == key for _, (known, *_) in self.calls):
            raise ValueError(f"the tests define {key!r} twice, so the first never runs; rename one")
        needed = _needed(function, is_method=bool(place)) if not _is_check(function) else []
        if needed and function.name not in self.mentioned:
            raise ValueError(f"the test {key!r} needs {', '.join(needed)}, and nothing calls it; give it no arguments")
        enter = ast.parse(f"{CHECK}.enter({key!r})").body
        function.body[int(ast.get_docstring(function) is not None) : 0] = enter
        self.calls.append((key, (key, first, len(self.sources), bool(needed))))

    def _class(self, statement: ast.ClassDef, place: str | None) -> None:
        if place != "" or statement.name not in self.cases:
            inside = f"{statement.name}." if place == "" else None
            statement.body = self.statements(statement.body, inside)
            if inside:
                self._inherit(statement.name)
            return
        if statement.name in self.test_cases:
            raise ValueError(f"the tests define {statement.name!r} twice, so the first never runs; rename one")
        members = [member for member in _global_statements(statement.body) if isinstance(member, _FUNCTIONS)]
        tests = [member for member in members if _is_test(member)]
        methods: dict[str, int] = {}
        for member in tests or [member for member in members if member.name == "runTest"]:
            if member.name in methods:
                raise ValueError(f"{statement.name!r} defines {member.name!r} twice, so the first never runs")
            # Methods of unittest assert by calls, so the method is the smallest thing that can be counted.
            methods[member.name] = self._number(member)
        self.test_cases[statement.name] = methods

    def _inherit(self, name: str) -> None:
        """Test methods that a class has from another one of the tests run there as well."""
        parents = set(self._lineage(name)) - {name}
        own = {call.partition(".")[2] for call, _ in self.calls if call.startswith(f"{name}.")}
        for call, entry in list(self.calls):
            parent, _, method = call.partition(".")
            if method and parent in parents and method not in own:
                own.add(method)
                self.calls.append((f"{name}.{method}", entry))

    def _lineage(self, name: str) -> Iterator[str]:
        """The class and those it is derived from, as far as the tests define them."""
        yield name
        for base in self.classes[name].bases:
            if isinstance(base, ast.Name) and base.id in self.classes and base.id != name:
                yield from self._lineage(base.id)

    def _is_case(self, name: str) -> bool:
        return any(
            ast.unparse(base).endswith("TestCase") for each in self._lineage(name) for base in self.classes[each].bases
        )

    def _number(self, statement: ast.stmt) -> int:
        source = ast.unparse(statement)
        self.sources.append(source if len(source) <= MAX_SOURCE else source[:MAX_SOURCE] + "…")
        return len(self.sources) - 1

    def _wrap(self, statement: ast.stmt) -> ast.stmt:
        number = ast.Constant(self._number(statement))
        item = ast.withitem(context_expr=ast.Call(ast.Name(CHECK, ast.Load()), [number], []))
        return ast.copy_location(ast.With(items=[item], body=[statement]), statement)


def _blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements inside a compound statement that is no function and no class."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, ()):
            yield part.body


def _global_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the ``if``, ``try``, ``with`` and loops in it, which bind names in its scope."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            for block in _blocks(statement):
                yield from _global_statements(block)


def _is_test(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name.startswith("test")


def _is_check(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name == "check" and len(_needed(function, is_method=False)) == 1


def _needed(function: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> list[str]:
    """Arguments without which the function cannot be called; none where a decorator may give them."""
    if any(ast.unparse(each) not in ("staticmethod", "classmethod") for each in function.decorator_list):
        return []
    positional = [each.arg for each in function.args.posonlyargs + function.args.args]
    positional = positional[: len(positional) - len(function.args.defaults)]
    is_bound = is_method and not any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return positional[is_bound:] + [each.arg for each, default in keywords if default is None]


def _asserts(statement: ast.AST) -> bool:
    """Whether the statement itself, functions it defines left aside, contains an ``assert``."""
    if isinstance(statement, ast.Assert):
        return True
    nested = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
    return any(not isinstance(child, nested) and _asserts(child) for child in ast.iter_child_nodes(statement))


def _compiled(tree: ast.Module) -> Iterator[CodeType]:
    futures = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    flags = 0
    for name in (alias.name for each in futures for alias in each.names):
        flags |= getattr(getattr(__future__, name, None), "compiler_flag", 0)
    for statement in tree.body:
        yield compile(ast.Module([statement], []), "<tests>", "exec", flags, dont_inherit=True)


def _assigned(statement: ast.AST) -> tuple[str, ...]:
    """Names that a statement assigns, or whose object it changes by assigning to a part of it."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return ()
    found: set[str] = set()
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            root: ast.AST = node
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            found.update([root.id] if isinstance(root, ast.Name) else [])
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES)]
    return tuple(sorted(found))


def _free_names(tree: ast.Module) -> set[str]:
    used, bound = _names(tree)
    return used - bound - set(dir(builtins)) - {CHECK, "__name__"}


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that are read and names that are bound, in any scope."""
    used: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return used, bound
