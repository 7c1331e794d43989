"""The mutants that are planted, and what is left out."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.mutants.operators import Function, Module
from tests.mutants.rooms import ROOMS, ROOT


def planted(source: str) -> set[tuple[str, str]]:
    return {(mutant.old, mutant.new) for mutant in Module(textwrap.dedent(source), "m.py").mutants}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a >= b", {"x = a > b", "x = a < b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a in b", {"x = a not in b"}),
        ("x = a < b < c", {"x = a <= b < c", "x = a >= b < c", "x = a < b <= c", "x = a < b >= c"}),
        ("x = a and b", {"x = a or b"}),
        ("x = a and b or c", {"x = (a and b) and c", "x = (a or b) or c"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = a + b", {"x = a - b"}),
        ("x = (a + b) * c", {"x = ((a - b)) * c", "x = (a + b) // c"}),
        ("x = 4", {"x = 5"}),
        ("x = True", {"x = False"}),
        ("x = b'a'", {"x = b'a?'"}),
        ("x = d['k']", {"x = d['k?']"}),
        ("x = {'k': 'text'}", {"x = {'k?': 'text'}"}),
        ("x += 2", {"pass", "x -= 2", "x += 3"}),
        ("del x[k]", {"pass"}),
        ("f(a)", {"pass"}),
        ("raise E(a)", {"pass"}),
        ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if True]", "x = [a for a in b if False]"}),
    ],
)
def test_changes_one_thing_at_a_time(line: str, changed: set[str]) -> None:
    assert planted(line) == {(line, new) for new in changed}


@pytest.mark.parametrize(
    "source",
    [
        '"""Text 1."""',
        "x: Literal[1] | None",
        "@dataclass(frozen=True)\nclass A: ...",
        "assert a < 1",
        'x = f"{a + 1}"',
        'x = "text"',
        'log.info("text", n=1)',
        "x = zip(a, b, strict=True)",
        'self._log.warning("text", n=a + 1)',
        "if TYPE_CHECKING:\n    x = 1",
        "import a",
        '__all__ = ["a"]',
        "x = int | None",
    ],
)
def test_leaves_out_what_has_no_effect(source: str) -> None:
    assert planted(source) == set()


def test_forces_conditions() -> None:
    source = """
        if a < b:
            pass
        while a:
            pass
        match a:
            case b if c:
                pass
    """
    assert planted(source) == {
        ("if a < b:", "if True:"),
        ("if a < b:", "if False:"),
        ("if a < b:", "if a <= b:"),
        ("while a:", "while False:"),
        ("case b if c:", "case b if True:"),
        ("case b if c:", "case b if False:"),
    }


def test_returns_none_where_a_result_is_annotated() -> None:
    source = """
        def typed() -> A | None:
            return a
        def untyped():
            return b
        def nothing() -> None:
            return c
        def generator() -> Iterator[A]:
            yield d
            return e
        def none() -> A | None:
            return None
        def refused() -> bool:
            return False
    """
    assert planted(source) == {("return a", "return None"), ("return False", "return True")}


def test_removes_assignments_after_which_the_name_has_another_value() -> None:
    source = """
        def f(self, a):
            b = c
            a = d
            self.e = g
    """
    assert planted(source) == {("a = d", "pass"), ("self.e = g", "pass")}


def test_names_the_function_whose_code_changes() -> None:
    source = """\
        class A:
            x = 1

            @property
            def f(self, y=2):
                def inner():
                    return a < b
    """
    found = {mutant.old: mutant for mutant in Module(textwrap.dedent(source), "m.py").mutants}
    assert (found["x = 1"].function, found["x = 1"].place) == (None, "A")
    assert found["def f(self, y=2):"].function is None  # a default
    inner = found["return a < b"]
    assert (inner.function, inner.place, inner.line) == (Function("A.f", 4), "A.f.inner", 7)


def test_joins_the_lines_of_a_statement() -> None:
    assert ("f( é, b, )", "pass") in planted("f(\n    é,\n    b,\n)")


def test_shows_a_negative_number_with_its_sign() -> None:
    assert planted("x = -1") == {("x = -1", "x = 1"), ("x = -1", "x = -2")}


def test_spans_the_lines_that_run_the_place() -> None:
    spans = {mutant.new: mutant.span for mutant in Module("if (\n a\n):\n x = f(\n  1,\n )", "m.py").mutants}
    assert spans == {"True": (2, 2), "False": (2, 2), "2,": (4, 6)}


def test_every_mutant_of_a_module_compiles_and_differs() -> None:
    path = "consumerd/member/offsets/tracker.py"
    source = (ROOT / path).read_text("utf-8")
    original = ast.dump(ast.parse(source))
    mutants = Module(source, path).mutants
    assert mutants
    for mutant in mutants:
        tree = Module(source, path).plant(mutant.number)
        assert ast.dump(tree) != original
        compile(tree, path, "exec")


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_have_modules_and_tests(name: str) -> None:
    room = ROOMS[name]
    assert room.modules()
    assert all((ROOT / path.partition("::")[0]).exists() for path in room.tests)
