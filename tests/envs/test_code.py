"""Running programs against tests: what crosses the sandbox, how checks are counted, and the environment on top."""

from __future__ import annotations

import collections
import datetime
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import winnowrl.envs  # noqa: F401 - registers the ids
from winnowrl.envs.code import ExecutionResult, Limits, run_tests, runner
from winnowrl.envs.code.checks import plan_checks
from winnowrl.envs.code.environment import CodeEnv, make_limits
from winnowrl.envs.code.image import SandboxUnavailableError
from winnowrl.envs.code.judge_server import get_judge_server
from winnowrl.envs.code.problems import STARTER_SET, ProblemSource, load_splits, visible_tests
from winnowrl.envs.code.programs import canonical_program, complete_program, extract_program
from winnowrl.envs.code.sandbox import SandboxFailureError, require_sandbox
from winnowrl.envs.code.seccomp import MACHINES, REFUSED, build_filter
from winnowrl.envs.code.values import ChannelClosedError, UnsendableError
from winnowrl.envs.code.wire import MAX_BYTES, MAX_DEPTH, decode, encode

SHARED = Path(os.environ.get("WINNOWRL_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))


@pytest.fixture(scope="module", autouse=True)
def _sandbox() -> None:
    try:
        require_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def refuse(value: Any) -> tuple[bytes, int, str]:
    raise UnsendableError(f"an object of type {type(value).__name__}")


def no_objects(tag: bytes, number: int, name: str) -> Any:
    raise ChannelClosedError("no objects here")


# -- values on the wire


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(10**5000),
        1.5,
        float("inf"),
        "ü\ud800\0",
        b"\x00\xff",
        [1, [2, (3, {4})]],
        {(1, "a"): {"b": None}},
        frozenset({1}),
        2 + 3j,
        range(1, 9, 2),
        range(10**30, 10**30 - 3, -1),
        range(MAX_BYTES // 8),
        Decimal("-1.50e-9998"),
        Decimal("Infinity"),
        Fraction(-(10**9999), 7),
        bytearray(b"x"),
        slice(1, None, 2),
        int,
        KeyError,
        collections.deque([1, 2], 5),
        collections.OrderedDict(b=1, a=2),
        collections.Counter("aab"),
        collections.defaultdict(list, {1: [2]}),
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC),
        datetime.time(1, 2),
        datetime.timedelta(days=-1, microseconds=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plain_value_crosses_unchanged(value: Any) -> None:
    back = decode(encode(value, refuse), no_objects)
    assert back == value
    assert type(back) is type(value)


def test_an_instance_of_a_subclass_is_compared_by_its_builtin_part() -> None:
    program = "class Liar(BASE):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    program += "    __hash__ = None\n    __len__ = __int__ = __float__ = __index__ = lambda self: 6\n"
    program += "    WORD = 1\ndef f(): return Liar(PART)"
    for base, part, other in (
        ("int", "5", "6"),
        ("str", "'a'", "'b'"),
        ("tuple", "(1,)", "(2,)"),
        ("float", "1.5", "6.0"),
    ):
        text = program.replace("BASE", base).replace("PART", part)
        assert check(text, f"assert f() == {other}") == (0, 1, "failed")
        assert check(text, f"assert f() == {part} and isinstance(f(), {base}) and f().WORD == 1") == (1, 1, "passed")


def test_a_value_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(UnsendableError, match="deeper than"):
        encode(value, refuse)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"q",
        b"l\xff\xff\xff\xff",
        b"u\x00\x00\x00\x09abc",
        b"i\x00\x00\x00\x02zz",
        b"l\x00\x00\x00\x01" * 500,
        b"d\x00\x00\x00\x01" + encode([], refuse) + b"N",
        b"x\x00\x00\x00\x04eval" + encode(("1",), refuse),
        b"x\x00\x00\x00\x07Decimal" + encode(("zz",), refuse),
        b"x\x00\x00\x00\x08Fraction" + encode(("1e999999999",), refuse),
        b"x\x00\x00\x00\x09bytearray" + encode((1 << 40,), refuse),
        b"x\x00\x00\x00\x05deque" + encode(([1], "x"), refuse),
        b"x\x00\x00\x00\x04date" + encode((2020, 13, 1), refuse),
        b"x\x00\x00\x00\x08datetime" + encode((2020, 1, 1, [], 0, 0, 0, None), refuse),
        b"x\x00\x00\x00\x09timedelta" + encode((10**30, 0, 0), refuse),
        b"x\x00\x00\x00\x05Child" + encode("no tuple", refuse),
        b"k\x00\x00\x00\x010",
        b"r\x00\x00\x00\x010",
        b"r\x00\x00\x00\x02-1",
        b"o\x00\x00\x00\x031 x",
        b"NN",
    ],
)
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    with pytest.raises(ChannelClosedError):
        decode(data, no_objects)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (range(1001), (0, 1001, 1)),
        (range(10**30), (0, 10**30, 1)),
        (range(0, -2002, -2), (0, -2002, -2)),
        (range(10**10001, 10**10001 + 1), (10**10001, 10**10001 + 1, 1)),
        (Decimal("1e10001"), ("1e10001",)),
        (Decimal("-1e-10001"), ("-1e-10001",)),
        (Decimal("0e999999999"), ("0e999999999",)),
        (Decimal("1" * 10001), ("1" * 10001,)),
        (Fraction(10**10001), (10**10001, 1)),
        (Fraction(1, 10**10001), (1, 10**10001)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_too_long_to_work_with_is_refused_by_both_sides(value: Any, parts: tuple[Any, ...]) -> None:
    # A message of 8000 bytes holds no list of more than 1000 items.
    for within in (value, [value], {"a": (value,)}):
        with pytest.raises(UnsendableError, match="more than"):
            encode(within, refuse, 8000)
    name = type(value).__name__.encode()
    data = b"x" + len(name).to_bytes(4, "big") + name + encode(parts, refuse)
    with pytest.raises(ChannelClosedError, match="more than"):
        decode(data, no_objects, 8000)


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_bytes_there_is_no_room_for_are_refused(error: type[Exception]) -> None:
    def full(tag: bytes, number: int, name: str) -> Any:
        raise error

    with pytest.raises(ChannelClosedError, match=error.__name__):
        decode(b"l\x00\x00\x00\x01" + b"o\x00\x00\x00\x031 x", full)


def test_a_range_crosses_if_a_list_of_it_could() -> None:
    # 8 kB and 4 kB of room for the message around them: 1536 items.
    limits = Limits(answer_kb=8)
    assert check("def f(x): return range(x)", "assert f(1536) == range(1536)", limits=limits) == (1, 1, "passed")
    assert check("def f(x): return range(x)", "assert f(1537) == range(1537)", limits=limits) == (0, 1, "failed")
    assert check("def f(x): return len(x)", "assert f(range(1537)) == 1537", limits=limits)[2] == "unsupported"


# -- counting checks


def check(program: str, tests: str, entry_point: str = "f", **kwargs: Any) -> tuple[int, int, str]:
    result = run_tests(program, tests, entry_point, **kwargs)
    return result.passed, result.total, result.status


def test_each_assert_is_a_check_and_a_loop_is_one() -> None:
    tests = "assert f(1) == 2\nassert f(2) == 0\nfor n in range(3):\n    assert f(n) == n + 1"
    assert check("def f(x): return x + 1", tests) == (2, 3, "failed")


def test_a_failing_check_tells_what_the_program_did() -> None:
    result = run_tests("def f(x):\n    return x / (x - 2)", "assert f(4) == 3\nassert f(2) == 0", "f")
    assert [(failure.source, failure.message) for failure in result.failures] == [
        ("assert f(4) == 3", "returned 2.0"),
        ("assert f(2) == 0", "raised ZeroDivisionError: division by zero (line 2)"),
    ]


@pytest.mark.parametrize(
    "tests",
    [
        "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(3) == 4\n",
        "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(3) == 4\n\ncheck(f)",
        "def test_one():\n    assert f(1) == 2\n\ndef test_two():\n    assert f(3) == 4\n",
        "import unittest\nclass TestF(unittest.TestCase):\n    def setUp(self): self.one = 1\n"
        "    def test_a(self): self.assertEqual(f(self.one), 2)\n    def test_b(self): self.assertEqual(f(3), 4)\n",
    ],
    ids=["check not called", "check called", "pytest functions", "unittest"],
)
def test_tests_of_any_usual_style_are_counted(tests: str) -> None:
    assert check("def f(x): return x + 1", tests) == (2, 2, "passed")
    assert check("def f(x): return 2", tests) == (1, 2, "failed")


def test_a_program_that_cannot_be_loaded_passes_nothing() -> None:
    tests = "assert f(1) == 2\nassert f(2) == 3"
    for program in ("def f(x) return", "import no_such_module\ndef f(x): return x + 1", "g = 1"):
        result = run_tests(program, tests, "f")
        assert (result.passed, result.total, result.status) == (0, 2, "invalid")
        assert "Error" in result.message


def test_tests_that_are_no_python_or_assert_nothing_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="no Python"):
        run_tests("def f(x): return x", "assert f(1) ==", "f")
    with pytest.raises(ValueError, match="assert nothing"):
        run_tests("def f(x): return x", "f(1)", "f")


def test_a_statement_outside_any_check_that_fails_is_a_failure() -> None:
    assert check("def f(x): return x.y", "assert 1 == 1\nf(1)") == (1, 2, "failed")


CASE = "import unittest\nclass T(unittest.TestCase):\n"


@pytest.mark.parametrize(
    ("tests", "total"),
    [
        (CASE + "    def test_a(self):\n        with self.subTest():\n            self.assertEqual(f(1), 2)", 1),
        (
            CASE + "    def test_a(self):\n        for x in (0, 1):\n            with self.subTest(x=x):\n"
            "                self.assertEqual(f(x), x + 1)\n    def test_b(self): self.assertEqual(f(0), 1)",
            2,
        ),
        (CASE + "    def setUp(self): self.assertEqual(f(1), 2)\n    def test_a(self): pass", 1),
        (CASE + "    def tearDown(self): self.assertEqual(f(1), 2)\n    def test_a(self): pass", 1),
        (CASE + "    @classmethod\n    def setUpClass(cls): assert f(1) == 2\n    def test_a(self): pass", 1),
        (CASE + "    def test_a(self):\n        if f(1) != 2: self.skipTest('no')", 1),
        (CASE + "    def runTest(self): self.assertEqual(f(1), 2)", 1),
        ("def setUpModule(): assert f(1) == 2\n" + CASE + "    def test_a(self): pass", 2),
        (CASE + "    pass\nclass U(T):\n    def test_a(self): self.assertEqual(f(1), 2)", 1),
        (CASE + "    def test_a(self): self.assertEqual(f(self.x), self.x + 1)\n    x = 0\nclass U(T):\n    x = 1", 1),
        (
            "class Mixin:\n    def test_a(self): self.assertEqual(f(1), 2)\n"
            + CASE.replace("(", "(Mixin, ")
            + "    pass",
            1,
        ),
        (CASE.replace("TestCase", "IsolatedAsyncioTestCase") + "    async def test_a(self): assert f(1) == 2", 1),
        (CASE.replace("class", "if True:\n  class") + "    def test_a(self): self.assertEqual(f(1), 2)", 1),
        ("class TestIt:\n    def test_a(self): assert f(1) == 2", 1),
        ("class TestIt:\n    def setup_method(self): self.x = 1\n    def test_a(self): assert f(self.x) == 2", 1),
        ("class A:\n    x = 0\n    def test_a(self): assert f(self.x) == self.x + 1\nclass B(A):\n    x = 1", 1),
        ("if True:\n    def test_a(): assert f(1) == 2", 1),
        ("async def test_a():\n    assert f(1) == 2", 1),
        ("def test_a():\n    assert f(1) == 2\ndef main():\n    test_a()", 1),
        ("def test(x):\n    assert f(x) == 2\nfor x in [1] if f(0) else []:\n    test(x)", 1),
    ],
)
def test_every_test_of_every_style_is_run_and_counted(tests: str, total: int) -> None:
    tests = f"assert f(0) == 1\n{tests}"
    assert check("def f(x): return x + 1", tests)[1:] == (1 + total, "passed")
    # Right for 0 and wrong for 1, by what it returns and by what it raises.
    for wrong in ("def f(x): return 1", "def f(x): return 1 // (1 - x)"):
        passed, counted, status = check(wrong, tests)
        assert (counted, status) == (1 + total, "failed")
        assert passed < counted


def test_a_failure_that_is_expected_is_one_that_must_happen() -> None:
    tests = CASE + "    @unittest.expectedFailure\n    def test_a(self): self.assertEqual(f(1), 2)"
    assert check("def f(x): return x", tests) == (1, 1, "passed")
    assert check("def f(x): return x + 1", tests) == (0, 1, "failed")


def test_unittest_main_at_the_end_changes_nothing() -> None:
    case = CASE + "    def test_a(self): self.assertEqual(f(1), 2)\n"
    for end in ("unittest.main()", "import sys\n    sys.exit(unittest.main(argv=['x'], exit=False))"):
        tests = f"{case}if __name__ == '__main__':\n    {end}"
        assert check("def f(x): return x + 1", tests) == (1, 1, "passed")
        assert check("def f(x): return x", tests) == (0, 1, "failed")


def test_a_failure_ends_the_statement_or_function_it_happens_in() -> None:
    program = "def f(x):\n    if x == 1: raise ValueError\n    return x"
    functions = "def test_a():\n    r = f(1)\n    assert r == 1\n"
    functions += "def test_b():\n    assert f(2) == 2\ndef test_c():\n    assert f(3) == 3"
    assert check(program, functions) == (2, 3, "failed")
    assert check(program, "r = f(1)\nassert r == 1\nassert f(2) == 2\nassert f(3) == 3") == (2, 3, "failed")


def test_a_value_from_before_does_not_stand_in_for_one_that_failed() -> None:
    program = "def f(x):\n    if x == 1: raise ValueError\n    return 5"
    assert check(program, "r = f(0)\nassert r == 5\nr = f(1)\nassert r == 5") == (1, 2, "failed")
    assert check(program, "r = {}\nr[0] = f(1)\nassert r == {}\nassert f(0) == 5") == (1, 2, "failed")


def test_a_test_that_returns_early_holds() -> None:
    tests = "def test_a():\n    try: f(1)\n    except ValueError: return\n    assert False"
    assert check("def f(x): raise ValueError", tests) == (1, 1, "passed")
    assert check("def f(x): return x", tests) == (0, 1, "failed")


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("def test_a(value):\n    assert f(1) == value", "needs value"),
        ("def test_a():\n    assert f(1) == 2\ndef test_a():\n    assert f(2) == 3", "twice"),
        (CASE + "    def test_a(self): pass\n    def test_a(self): pass", "twice"),
    ],
)
def test_tests_that_could_never_run_are_the_callers_mistake(tests: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run_tests("def f(x): return x", tests, "f")


def test_a_test_that_no_runner_can_run_decides_nothing() -> None:
    for tests in (
        "def test_b():\n    yield\n    assert f(1) == 2",
        "class TestIt:\n    def __init__(self, x): pass\n    def test_b(self): assert f(1)",
    ):
        assert check("def f(x): return x", f"assert f(0) == 0\n{tests}")[2] == "unsupported"


def test_a_check_that_runs_often_holds_only_if_it_always_does() -> None:
    tests = "def same(x):\n    assert f(x) == x\nfor x in range(500):\n    same(x)"
    assert check("def f(x): return x", tests) == (1, 1, "passed")
    assert check("def f(x): return min(x, 400)", tests) == (0, 1, "failed")


def test_a_program_that_breaks_the_channel_is_judged_and_no_failure_of_ours() -> None:
    # helper is looked up in the program, which is gone by then.
    program = "import os\ndef f(x): return x\ndef __getattr__(name): os._exit(0)"
    assert check(program, "assert helper(f(1)) == 1\nassert f(1) == 1") == (0, 2, "crashed")


def test_exceptions_arrive_as_the_nearest_builtin_one() -> None:
    program = "class Odd(ValueError): pass\ndef f(x):\n    raise Odd('no') if x else KeyError(x)"
    tests = """
for x, kind in ((1, ValueError), (0, KeyError)):
    try:
        f(x)
        assert False
    except kind:
        pass
"""
    assert check(program, tests) == (1, 1, "passed")


def test_stop_iteration_does_not_end_a_loop_of_the_tests() -> None:
    # map() would take it for the end of the values, and zip() of nothing compares nothing.
    tests = "assert all(got == 1 for got, _ in zip(map(f, [1, 2]), [1, 2]))"
    assert check("def f(x): raise StopIteration", tests) == (0, 1, "failed")


def test_a_function_may_work_in_place_if_it_returns_nothing() -> None:
    tests = "values = [3, 1, 2]\nf(values)\nassert values == [1, 2, 3]"
    assert check("def f(x): x.sort()", tests) == (1, 1, "passed")


def test_emptying_the_arguments_does_not_change_what_is_expected() -> None:
    # In one process f(values) == sorted(values) would compare [] with [].
    tests = "values = [3, 1, 2]\nassert f(values) == sorted(values)"
    assert check("def f(x):\n    x.clear()\n    return []", tests) == (0, 1, "failed")
    assert check("def f(x):\n    x.clear()", tests) == (0, 1, "failed")


def test_classes_iterators_and_callbacks_work_across_the_boundary() -> None:
    program = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
def squares(n):
    for i in range(n): yield i * i
def apply(function, values): return sorted(map(function, values))
only = Stack()
def the_stack(): return only
"""
    tests = """
s = Stack()
s.push(1); s.push("b")
assert len(s) == 2 and s.pop() == "b"
assert s.items == [1]
assert list(squares(3)) == [0, 1, 4]
assert next(squares(1)) == 0
assert apply(lambda x: -x, [1, 2]) == [-2, -1]
assert apply(len, ["a", ""]) == [0, 1]
assert the_stack() is the_stack() and Stack() is not Stack()
"""
    assert check(program, tests, "Stack") == (7, 7, "passed")


def test_helpers_of_the_prelude_are_not_the_programs_to_replace() -> None:
    tests = "for x in (1, 2):\n    assert f(helper(x)) == x"
    cheat = "def helper(x): return x\ndef f(x): return x"
    assert check(cheat, tests) == (1, 1, "passed")  # without a prelude, helper is the program's
    assert check(cheat, tests, prelude="def helper(x): return x * 7") == (0, 1, "failed")
    assert check("def f(x): return x // 7", tests, prelude="def helper(x): return x * 7") == (1, 1, "passed")


def test_a_standard_module_that_the_tests_do_not_import_is_the_real_one() -> None:
    cheat = "class math: isclose = staticmethod(lambda *a, **k: True)\nclass sys: getsizeof = int\ndef f(x): return 0"
    assert check(cheat, "assert math.isclose(f(2), 3.14, rel_tol=0.01)") == (0, 1, "failed")
    assert check(cheat, "assert sys.getsizeof(f(2)) == 0") == (0, 1, "failed")
    assert check("def f(x): return 3.14", "assert math.isclose(f(2), 3.14, rel_tol=0.01)") == (1, 1, "passed")
    # What the prelude defines is meant, whatever it is called.
    assert check("def f(x): return x", "assert f(bisect(1)) == 8", prelude="def bisect(x): return x + 7")[0] == 1


def test_a_prelude_that_fails_says_nothing_about_the_program() -> None:
    for prelude in ("import numpy", "1 / 0"):
        result = run_tests("def f(x): return 1", "assert f(1) == 1", "f", prelude=prelude)
        assert result.status == "unsupported"
        assert "prelude" in result.message


def test_names_that_only_the_program_defines_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "problems.jsonl"
    good = {"id": "a", "prompt": "p", "entry_point": "f", "tests": "assert f(math.pi) == 1", "split": "train"}
    borrowing = {**good, "id": "b", "prompt": "q", "tests": "assert f(Node(1)) == helper", "split": "eval"}
    head = {**borrowing, "id": "c", "style": "completion"}
    head["prompt"] = "class Node: pass\nhelper = 1\ndef f(x):\n    '''Do.'''\n"
    path.write_text("\n".join(json.dumps(row) for row in (good, borrowing, head)))
    with caplog.at_level(logging.WARNING):
        load_splits(ProblemSource(str(path)))
    assert "the tests of 1 problems" in caplog.text
    assert "b (Node, helper)" in caplog.text


def test_tests_that_hand_over_what_cannot_cross_decide_nothing() -> None:
    result = run_tests("def f(x): return 1", "class Node: pass\nassert f(Node()) == 1", "f")
    assert result.status == "unsupported"
    assert not result.is_decided


# -- what crosses, what decides nothing

BAD = "class Bad(ValueError):\n    def __init__(self, code): super().__init__(f'code {code}'); self.code = code\n"
WORKS = {
    "in place by keyword": ("def f(nums, k=1): nums.reverse()", "a = [1, 2, 3]\nf(nums=a)\nassert a == [3, 2, 1]"),
    "in place inside": ("def f(g): g[0].append(1)", "a = [[0]]\nr = a[0]\nf(a)\nassert r == [0, 1] and a[0] is r"),
    "in place inside a tuple": ("def f(t): t[0].append(1)", "a = ([0],)\nf(a)\nassert a == ([0, 1],)"),
    "in place moved": ("def f(g): g.reverse()", "a = [[0], [1]]\nr = a[0]\nf(a)\nassert a == [[1], [0]] and a[1] is r"),
    "in place deque": (
        "def f(q, d): q.rotate(1); d['z'] = 1",
        "from collections import Counter, deque\nq, d = deque([1, 2]), Counter()\nf(q, d)\n"
        "assert list(q) == [2, 1] and d['z'] == 1",
    ),
    "one list twice": ("def f(a, b): a.append(1); return b", "x = []\nassert f(x, x) == [1]"),
    "ordered dictionary": (
        "from collections import OrderedDict\nclass f(OrderedDict):\n"
        "    def put(self, k, v): self[k] = v; self.move_to_end(k)\n"
        "    def get(self, k): return self[k] if k in self else -1",
        "c = f()\nc.put(1, 5)\nc.put(2, 6)\nassert c.get(1) == 5 and c.get(3) == -1 and len(c) == 2 and 2 in c\n"
        "c.put(1, 7)\nassert c == {1: 7, 2: 6} and list(c) == [2, 1]",
    ),
    "list with methods": (
        "class f(list):\n    def push(self, x): self.append(x)",
        "s = f()\ns.push(3)\nassert s == [3] and s[0] == 3 and s[:1] == [3] and s + [4] == [3, 4] and sorted(s) == [3]\n"
        "assert s.pop() == 3 and not s and s == [] and isinstance(s, list)",
    ),
    "named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(a, b): return P(a, b)",
        "p = f(1, 2)\nassert p.x == 1 and p == (1, 2) and p._replace(x=3) == (3, 2) and repr(p) == 'P(x=1, y=2)'\n"
        "x, y = p\nassert y == 2",
    ),
    "vector that is a tuple": (
        "from typing import NamedTuple\nclass f(NamedTuple):\n    x: int\n    y: int\n"
        "    def __add__(s, o): return f(s.x + o.x, s.y + o.y)\n    def __neg__(s): return f(-s.x, -s.y)",
        "assert f(1, 2) + f(3, 4) == (4, 6) and (-f(1, 2)).y == -2 and f(1, 2) < f(1, 3)",
    ),
    "enumeration": (
        "from enum import Enum, IntEnum\nclass f(IntEnum):\n    A = 1\nclass C(Enum):\n    R = 'r'",
        "assert f.A.name == 'A' and f.A == 1 and f(1) is f.A and C.R.value == 'r' and C('r') == C.R and len(C) == 1",
    ),
    "counter": (
        "from collections import Counter, defaultdict\ndef f(s): return Counter(s), defaultdict(lambda: 7)",
        "c, d = f('aab')\nassert c['z'] == 0 and c.most_common(1) == [('a', 2)] and d['q'] == 7",
    ),
    "dates": (
        "from datetime import date, timedelta\nfrom collections import deque\n"
        "def f(d): return d + timedelta(days=1), deque([d])",
        "from datetime import date\nfrom collections import deque\nd = date(2020, 1, 1)\n"
        "assert f(d) == (date(2020, 1, 2), deque([d]))",
    ),
    "own exception": (
        BAD + "def f(x): raise Bad(x)",
        "import unittest\ntry:\n    f(3)\n    assert False\nexcept Bad as error:\n"
        "    assert error.code == 3 and str(error) == 'code 3'\n"
        "    assert error.args == ('code 3',) and isinstance(error, ValueError)\n"
        "class T(unittest.TestCase):\n    def test_a(self):\n        with self.assertRaisesRegex(Bad, 'code'): f(4)\n"
        "        self.assertRaises(ValueError, f, 1)",
    ),
    "own exceptions derived from each other": (
        "class A(Exception): pass\nclass B(A, KeyError): pass\ndef f(x): raise B(x)",
        "for kind in (B, A, KeyError, LookupError):\n    try: f(1)\n    except kind: continue\n    assert False\n"
        "assert issubclass(B, A)",
    ),
    "standard exception": (
        "import json\ndef f(x): return json.loads(x)",
        "import json\ntry:\n    f('{')\n    assert False\nexcept json.JSONDecodeError as error:\n    assert error.pos == 1",
    ),
    "what an exception holds": (
        "def f(x):\n    if x: raise ValueError('bad', x)\n    return {}['a']",
        "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert e.args == ('bad', 1)\n"
        "try:\n    f(0)\n    assert False\nexcept KeyError as e:\n    assert str(e) == \"'a'\" and e.args == ('a',)\n"
        "try:\n    f(1)\n    assert False\nexcept Exception as e:\n    assert type(e) is ValueError",
    ),
    "exceptions of callbacks": (
        BAD + "def f(fn, d):\n    try: return fn()\n"
        "    except ZeroDivisionError: return d\n    except Bad as error: return error.code",
        "assert f(lambda: 1 / 0, 7) == 7\ndef fail(): raise Bad(5)\nassert f(fail, 7) == 5",
    ),
    "exception classes": (
        BAD + "def f(fn, kinds):\n    try: return fn()\n    except kinds: return 'caught'",
        "assert f(lambda: {}[1], (KeyError, ValueError)) == 'caught'\ndef fail(): raise Bad(1)\n"
        "assert f(fail, Bad) == 'caught'",
    ),
    "coroutine": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2\nasync def test_a():\n    assert await f(2) == 3\n"
        "    assert await asyncio.gather(f(3), f(4)) == [4, 5]",
    ),
    "operators between objects": (
        "class f:\n    def __init__(s, x): s.x = x\n    def __add__(s, o): return f(s.x + o.x)\n"
        "    def __neg__(s): return f(-s.x)\n"
        "    def __float__(s): return float(s.x)",
        "assert (f(1) + f(2)).x == 3 and (-f(1)).x == -1 and float(f(2)) == 2.0",
    ),
    "attributes and items": (
        "class f:\n    v = 0\n    def __init__(s): s.d = {}\n    def __setitem__(s, k, v): s.d[k] = v\n"
        "    def __getitem__(s, k): return s.d[k]\n"
        "    def __delitem__(s, k): del s.d[k]\n    def __len__(s): return len(s.d)",
        "o = f()\no.v = 3\nassert o.v == 3\no[1] = 2\nassert o[1] == 2 and len(o) == 1\ndel o[1]\n"
        "assert len(o) == 0 and not o",
    ),
    "with": (
        "log = []\nclass f:\n    def __enter__(s): return 3\n    def __exit__(s, *a): log.append(a); return False\n"
        "def left(): return len(log)",
        "with f() as x:\n    assert x == 3\nassert left() == 1",
    ),
    "members of a container": (
        "class f:\n    def __init__(s, *a): s.a = list(a)\n    def __len__(s): return len(s.a)\n"
        "    def __iter__(s): return iter(s.a)\n"
        "    def __contains__(s, x): return x in s.a\n    def add(s, x): s.a.append(x)",
        "o = f(1, 2)\nassert 2 in o and 3 not in o\no.add(3)\n"
        "assert 3 in o and len(o) == 3 and list(o) == [1, 2, 3] and list(o) == [1, 2, 3]",
    ),
    "what an object is": (
        "import functools\nclass A: pass\nclass B(A): pass\ndef g(n): yield n\ndef f(h=None):\n    'Do.'\n"
        "    return functools.wraps(h)(lambda: 1) if h else B()",
        "import types\nfrom collections.abc import Iterator\ndef foo(): pass\n"
        "assert isinstance(f(), A) and issubclass(B, A) and not isinstance(3, A) and type(f()).__name__ == 'B'\n"
        "assert f(foo).__name__ == 'foo' and f.__doc__ == 'Do.'\n"
        "assert isinstance(g(1), types.GeneratorType) and isinstance(g(1), Iterator)\n"
        "assert callable(f) and not callable(f()) and not isinstance(f(), Iterator)",
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_a_program_makes_can_be_tested(name: str) -> None:
    program, tests = WORKS[name]
    result = run_tests(program, tests, "f")
    assert (result.status, result.failures) == ("passed", ())


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("from dataclasses import dataclass\n@dataclass\nclass f:\n    x: int", "assert f(1) == f(1)"),
        ("class f:\n    def __lt__(s, o): return True", "assert sorted([f(), f()])"),
        ("class f:\n    def __contains__(s, x): return True", "assert 3 in f()"),
        ("class f:\n    def __add__(s, o): return 3", "assert f() + 1 == 3"),
        ("class f:\n    def __rsub__(s, o): return 0", "assert abs(3.14 - f()) < 1e-6"),
        ("class f(list): pass", "x = f()\nx += [1]\nassert x == [1]"),
        ("class f: pass", "import copy\nassert copy.deepcopy(f()) is not None"),
        ("class f: pass", "class Sub(f): pass\nassert Sub()"),
        ("import uuid\ndef f(): return uuid.UUID(int=5)", "import uuid\nassert f() == uuid.UUID(int=5)"),
        (
            "class f:\n    async def __aenter__(s): return 3\n    async def __aexit__(s, *a): pass",
            "async def test_a():\n    async with f() as x:\n        assert x == 3",
        ),
        (
            "def f(fn):\n    return fn()",
            "class Odd(Exception): pass\ndef fail(): raise Odd\ntry: f(fail)\nexcept Odd: pass\nassert True",
        ),
        ("def f(x): return len(x)", "assert f(list(range(400000))) == 400000"),
        ("def f(x): return 1", "a = []\nfor _ in range(70): a = [a]\nassert f(a) == 1"),
        ("def f(x): return 1", "a = []\na.append(a)\nassert f(a) == 1"),
        ("def f(x): return x()", "assert f(lambda: list(range(400000)))"),
    ],
)
def test_what_cannot_cross_decides_nothing(program: str, tests: str) -> None:
    assert check(program, tests)[2] == "unsupported"


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        # Without the ability it fails as it would in one process.
        ("class f: pass", "assert 3 in f()"),
        ("class f: pass", "assert f() + 1 == 3"),
        ("class f: pass", "assert sorted([f(), f()])"),
        ("class f: pass", "assert f() == f()"),
        ("class f: pass", "with f() as x:\n    assert x"),
        ("def f(): yield 1", "assert f()[0] == 1"),
    ],
)
def test_what_an_object_cannot_do_is_a_failure(program: str, tests: str) -> None:
    assert check(program, tests)[2] == "failed"


def test_a_limit_is_kept_to_the_tenth_of_a_second() -> None:
    started = time.monotonic()
    result = run_tests("import time\ndef f(x): time.sleep(60)", "assert f(1) == 2", "f", Limits(wall_s=0.5))
    assert result.status == "timeout"
    assert "0.5 s" in result.message
    assert time.monotonic() - started < 10  # the start of a sandbox on a machine under load included


def test_a_fork_bomb_earns_no_time_by_keeping_itself_waiting() -> None:
    program = "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass"
    result = run_tests(program, "assert f(1) == 2", "f", Limits(wall_s=0.5))
    assert (result.status, result.waited_s) == ("timeout", 0.0)


def test_runs_in_many_threads_do_not_disturb_each_other() -> None:
    def one(n: int) -> ExecutionResult:
        return run_tests(f"def f(x): return x + {n}", f"assert f(1) == {n + 1}", "f")

    with ThreadPoolExecutor(4) as pool:
        assert all(result.status == "passed" for result in pool.map(one, range(12)))


def test_random_tests_draw_the_same_numbers_every_time() -> None:
    tests = "import random\nassert f(random.random()) < 0"
    messages = {run_tests("def f(x): return x", tests, "f").failures[0].message for _ in range(2)}
    assert len(messages) == 1


def test_tests_that_loop_end_with_the_run() -> None:
    tests = "while f(1) == 1:\n    for _ in range(10 ** 9): pass\nassert f(1) == 2"
    assert check("def f(x): return x", tests, limits=Limits(wall_s=0.8)) == (0, 1, "timeout")
    deadline = time.monotonic() + 2
    while judges() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not judges()


def judges() -> list[int]:
    """Processes forked from the sandbox in which tests run."""
    server = get_judge_server("bubblewrap")
    first = children(server._sandbox.pid)[0]
    return children(first)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_tests_print_never_fails_a_program(stream: str) -> None:
    # Each run prints 0.3 MB, and the tests' sandbox may hold no file above 1 MiB.
    tests = f"import sys\ndef check(f):\n    print('x' * 300_000, file=sys.{stream})\n    assert f(1) == 2\ncheck(f)\n"
    results = [run_tests("def f(x):\n    return x + 1\n", tests, "f") for _ in range(6)]
    assert [(result.status, result.failures) for result in results] == [("passed", ())] * 6
    assert len(get_judge_server("bubblewrap").complaints()) <= 4096


@pytest.fixture
def all_slots_taken() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(runner.NUM_SLOTS):
            stack.enter_context(runner._slot())
        yield


def test_a_forked_process_does_not_wait_for_its_parents_sandboxes(all_slots_taken: None) -> None:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check("def f(): return 1", "assert f() == 1") == (1, 1, "passed") else 1)
        finally:
            os._exit(2)
    deadline, ended = time.monotonic() + 60, (0, 0)
    while ended[0] == 0 and time.monotonic() < deadline:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_waiting_for_a_free_sandbox_ends_and_says_so(all_slots_taken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLOT_WAIT_S", 0.05)
    with pytest.raises(SandboxFailureError, match=rf"waited 0.05 s for one of {runner.NUM_SLOTS} sandboxes"):
        run_tests("def f(): return 1", "assert f() == 1", "f")


def test_no_descriptor_stays_open() -> None:
    run_tests("def f(x): return x", "assert f(1) == 1", "f")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_tests("import os; os._exit(3)", "assert f(1) == 1", "f")
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_sandbox_the_log_says_unsafe(caplog: pytest.LogCaptureFixture) -> None:
    from winnowrl.envs.code.sandbox import warn_unsafe

    warn_unsafe.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert check("def f(x): return x + 1", "assert f(1) == 2", sandbox="none") == (1, 1, "passed")
    assert "UNSAFE" in caplog.text


def test_without_bubblewrap_the_environment_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from winnowrl.envs.code import image, sandbox

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(image, "import_module", missing)
    monkeypatch.setattr(image.shutil, "which", lambda name: None)
    image.get_image.cache_clear()
    sandbox.require_sandbox.cache_clear()
    try:
        with pytest.raises(SandboxUnavailableError, match=r"pip install 'winnowrl\[sandbox\]'"):
            CodeEnv()
    finally:
        image.get_image.cache_clear()
        sandbox.require_sandbox.cache_clear()


# -- the system-call filter


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_whole_instructions_and_within_the_kernels_limit(machine: str) -> None:
    rules = build_filter(machine)
    assert rules is not None
    assert len(rules) % 8 == 0
    assert len(rules) // 8 < 4096
    assert len(rules) // 8 > len(REFUSED)


def test_an_unknown_machine_has_no_filter() -> None:
    assert build_filter("riscv64") is None


def test_plans_are_shared_between_members_of_a_group() -> None:
    assert plan_checks("assert f(1) == 1", "f") is plan_checks("assert f(1) == 1", "f")


# -- from reply to program


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\ndef f(x): return x\n```", "def f(x): return x"),
        ("First\n```python\ndef f(x): return 1\n```\nthen\n```py\ndef f(x): return 2\n```", "def f(x): return 2"),
        ("```python\ndef f(x): return 1\n```\nUsage:\n```python\nprint(f(1))\n```", "def f(x): return 1"),
        ("```bash\nls\n```\n```\ndef f(x): return 1\n```", "def f(x): return 1"),
        ("<think>```python\ndef f(x): return 0\n```</think>```python\ndef f(x): return 1\n```", "def f(x): return 1"),
        ("```python\ndef f(x):\n    return", "def f(x):\n    return"),
        ("```python\ndef f(x): return 1```", "def f(x): return 1"),
        ("def f(x): return 1", "def f(x): return 1"),
        ("1. Do:\n   ```python\n   def f(x):\n\n       return x\n   ```", "def f(x):\n\n    return x"),
        ("- ```python\n  def f(x):\n      return x\n  ```", "def f(x):\n    return x"),
        ("1. ```\n    def f(x):\n        return x\n    ```", "def f(x):\n    return x"),
        ("\t```\n\tdef f(x):\n\t\treturn x\n\t```", "def f(x):\n\treturn x"),
        ("  ```\ndef f(x):\n  return x\n  ```", "def f(x):\n  return x"),
        # The body of a function whose head the problem gives: only what its fence is indented by comes off.
        ("```python\n    return x\n```", "    return x"),
        ("* ```python\n      return x\n  ```", "    return x"),
        ("Here: ```python\n    return x\n```", "    return x"),
        ("Call ```f(1)``` after this:\n```python\ndef f(x): return x\n```", "def f(x): return x"),
        ("````python\ndef f(x): return x\n````", "def f(x): return x"),
    ],
)
def test_the_program_is_found_in_a_reply(reply: str, program: str) -> None:
    assert extract_program(reply, "f") == program


@pytest.mark.parametrize(
    "unit",
    ["`", "```", "``` ", "```\n", "\n```", "\n ```a", "```" + " " * 500, "\n" + " " * 500, "- ", "def ", "</think>"],
)
@pytest.mark.parametrize("head", ["", "```", "```\n", " "])
def test_a_reply_is_read_in_linear_time(unit: str, head: str) -> None:
    reply = head + unit * (262_144 // len(unit))
    started = time.process_time()
    extract_program(reply, "f")
    assert time.process_time() - started < 2.0


def test_a_completion_is_a_whole_function_or_its_body() -> None:
    prompt = 'from math import pi\n\ndef f(r):\n    """Area."""\n'
    tests = "assert round(f(1), 2) == 3.14"
    for reply in ("    return pi * r * r\n", "def f(r):\n    return pi * r * r\n"):
        assert check(complete_program(prompt, reply, "f"), tests, prelude=prompt) == (1, 1, "passed")


def test_programs_that_differ_in_layout_are_one_action() -> None:
    one = 'def f(x):\n    """Doc."""\n    # why\n    return (x+1)\n'
    assert canonical_program(one) == canonical_program("def f(x): return x + 1")
    assert canonical_program("no python (") == "no python ("
    assert canonical_program("-" * 19_000 + "1") == "-" * 19_000 + "1"


# -- the environment


def program_of(task: Any) -> str:
    return f"```python\n{task.metadata['canonical_solution'].rstrip()}\n```"


def make(**kwargs: Any) -> CodeEnv:
    return gymnasium.make("winnowrl/Code-v0", **kwargs).unwrapped  # type: ignore[return-value]


def test_every_starter_problem_is_solved_by_its_solution_and_not_by_nothing() -> None:
    env = make()
    tasks = [*env.task_set("train"), *env.task_set("eval")]
    assert len(tasks) == len(STARTER_SET.read_text().splitlines()) == 28

    def one(task: Any) -> tuple[float, float]:
        mine = make(reward="fraction")
        mine.reset(seed=0, options={"task": task})
        _, right, _, _, info = mine.step(program_of(task))
        mine.reset(seed=0, options={"task": task})
        assert info["verdict"].is_correct
        _, wrong, _, _, _ = mine.step(f"```python\ndef {task.metadata['entry_point']}(*args): return None\n```")
        return right, wrong

    with ThreadPoolExecutor(3) as pool:
        for right, wrong in pool.map(one, tasks):
            assert right == 1.0
            assert wrong < 1.0


def test_train_and_eval_share_no_problem() -> None:
    splits = load_splits(ProblemSource())
    assert (len(splits["train"]), len(splits["eval"])) == (20, 8)
    assert not {task.prompt for task in splits["train"]} & {task.prompt for task in splits["eval"]}


def test_hidden_tests_stand_in_no_observation() -> None:
    env = make(max_turns=2)
    for task in env.task_set("train"):
        observation, _ = env.reset(seed=0, options={"task": task})
        assert not any(line in observation for line in task.metadata["tests"].splitlines())


def test_with_more_turns_the_failing_visible_test_comes_back() -> None:
    env = make(max_turns=3)
    task = next(task for task in env.task_set("train") if task.id == "starter-digit_gap")
    env.reset(seed=0, options={"task": task})
    observation, reward, terminated, truncated, info = env.step("```python\ndef digit_gap(n): return 7\n```")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert "assert digit_gap(5) == 0" in observation
    assert "returned 7" in observation
    _, reward, terminated, _, info = env.step(program_of(task))
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_the_last_turn_is_judged_whatever_the_visible_tests_say() -> None:
    env = make(max_turns=2, reward="fraction")
    task = next(task for task in env.task_set("train") if task.id == "starter-digit_gap")
    env.reset(seed=0, options={"task": task})
    env.step("nothing")
    _, reward, terminated, _, info = env.step("```python\ndef digit_gap(n): return 0\n```")
    # 0 is right for 5, 0 and 111: three of the two visible and four hidden checks.
    assert (reward, terminated) == (0.5, True)
    assert info["verdict"].reason == "failed: 3 of 6 checks"


def test_tests_that_stand_in_the_prompt_are_visible() -> None:
    row = {
        "id": "a",
        "prompt": "Do it:\nassert f(1) ==  2",
        "entry_point": "f",
        "tests": "assert f(1) == 2\nassert f(2) == 3",
    }
    task = load_rows([row], Path("unused"))[0]
    assert visible_tests(task) == "assert f(1) == 2"


def load_rows(rows: list[dict[str, Any]], path: Path) -> list[Any]:
    from types import MappingProxyType

    from winnowrl.envs.tasks import Task

    return [
        Task(row["id"], row["prompt"], None, MappingProxyType({k: row[k] for k in ("entry_point", "tests")}))
        for row in rows
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"entry_point": "f g"}, "entry_point is 'f g'"),
        ({"tests": "assert ("}, "no Python"),
        ({"tests": "f(1)"}, "assert nothing"),
        (
            {"tests": "import numpy as np\nassert f(1) == 1"},
            "imports 'numpy', and the sandbox has the standard library",
        ),
        ({"tests": "def test_a():\n    from .a import b\n    assert f(1) == 1"}, "standard library only"),
        ({"prompt": "import numpy\ndef f(x):", "style": "completion"}, "imports 'numpy'"),
        ({"prompt": "Write f.", "style": "completion"}, "the head of the program"),
        ({"style": "essay"}, "allowed: instruction, completion"),
    ],
)
def test_a_row_that_is_no_problem_is_named(row: dict[str, str], told: str, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    good = {"id": "1", "prompt": "p", "entry_point": "f", "tests": "assert f(1) == 1"}
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "id": "2", **row}) + "\n")
    with pytest.raises(ValueError, match="row 2") as error:
        make(source=str(path)).task_set("train")
    assert told in str(error.value)


def test_options_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match=r"limits\.wall is no option; allowed: wall_s"):
        make_limits({"wall": 3})
    with pytest.raises(ValueError, match="allowed: bubblewrap, none"):
        CodeEnv(sandbox="docker")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_turns is 0"):
        CodeEnv(max_turns=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 1.5}, "max_turns is 1.5; allowed: a whole number"),
        ({"max_turns": True}, "max_turns is True; allowed: a whole number"),
        ({"heldout_fraction": "a"}, "heldout_fraction is 'a'; allowed: a number"),
        ({"limit": "all"}, "limit is 'all'; allowed: a whole number or null"),
        ({"limits": 3}, "limits is 3; allowed: a mapping"),
        ({"limits": {"wall_s": "a"}}, r"limits\.wall_s is 'a'; allowed: a number"),
        ({"limits": {"wall_s": float("nan")}}, r"limits\.wall_s is nan; allowed: a number"),
        ({"limits": {"processes": True}}, r"limits\.processes is True; allowed: a whole number"),
        ({"prompt_template": 3}, "prompt_template is 3; allowed: text"),
    ],
)
def test_options_of_another_type_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CodeEnv(**options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "mbpp_half"])
def test_every_published_solution_passes(name: str) -> None:
    path = SHARED / "data/code" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    env = make(source=str(path), heldout_fraction=0.5)
    tasks = [*env.task_set("train"), *env.task_set("eval")]

    def one(task: Any) -> tuple[str, str]:
        mine = make(source=str(path), heldout_fraction=0.5)
        mine.reset(seed=0, options={"task": task})
        info = mine.step(program_of(task))[4]
        return task.id, info["verdict"].reason if not info["success"] else ""

    with ThreadPoolExecutor(3) as pool:
        assert [failed for failed in pool.map(one, tasks) if failed[1]] == []
