"""Claims about the code as a whole: its invariants have tests, its files no circles, its names one meaning."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def section(title: str) -> str:
    _, found, rest = TEXT.partition(f"\n## {title}\n")
    assert found, f"no section {title}"
    return rest.partition("\n## ")[0]


INVARIANTS = [each for each in section("Invariants").split("\n\n") if each.lstrip().startswith("**")]
TERMS = [
    term.strip()
    for row in re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    if row != "term"
    for term in row.split(",")
]


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@cache
def code() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "consumerd").rglob("*.py")))


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda text: text.strip().split("**")[1][:40])
def test_invariants_end_with_tests_that_exist(invariant: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", invariant)
    assert tests, "it names no test"
    missing = [f"{path}::{name}" for path, name in tests if name not in names_in(path)]
    assert not missing


def test_finds_invariants_and_terms() -> None:
    assert len(INVARIANTS) > 20
    assert len(TERMS) > 30


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_the_glossary_are_used_in_the_code(term: str) -> None:
    words = r"[ _-]?".join(re.escape(word) for word in term.split())
    assert re.search(words, code(), flags=re.IGNORECASE)


def test_files_import_each_other_in_one_direction() -> None:
    """A file of a circle cannot be read, tested or moved without the others, also where only type hints close it: so
    imports for type checkers and those within functions count.
    """
    graph = grimp.build_graph("consumerd", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 500
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"{circle}: move what two of them share to a file that neither imports", pytrace=False)


def test_types_of_messages_are_for_type_checkers_alone() -> None:
    """Half a MiB in each daemon, for what no code looks at."""
    graph = grimp.build_graph("consumerd", cache_dir=None, exclude_type_checking_imports=True)
    assert not graph.find_modules_that_directly_import("consumerd.wire.v08.message_types")
    assert graph.find_modules_that_directly_import("consumerd.wire.v08.schema")


def test_package_has_as_many_entries_as_a_reader_can_hold() -> None:
    """New code goes into an existing room: a stranger who looks into the package sees all rooms at once."""
    package = ROOT / "consumerd"
    entries = [path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert len(entries) <= 16, sorted(entries)


#: Lines of code that a function may have, and those with more of one kind: a case for each finding, a column for each
#: line, a loop that is too hot for calls.
MOST_LINES = 50
LONG_FUNCTIONS = {"diagnosis_owners._owner_finding", "message_set.walk"}


def test_functions_fit_on_a_screen() -> None:
    """What has to be scrolled is not read as one thought: give a part of it a name. Docstrings are not counted."""
    long, count = set(), 0
    for path in (ROOT / "consumerd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[ast.get_docstring(node, clean=False) is not None :]
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                count += 1
                long |= {f"{path.stem}.{node.name}"} if lines > MOST_LINES else set()
    assert long <= LONG_FUNCTIONS
    assert count > 5000


#: Why two classes have a name on purpose, and the names.
SAME_NAMES = {
    "one for each dialect, in the folders v07 and v08": {"ErrorCode", "Route", "Sender"},
    "the membership machines have the same events, actions and phases, read as `events.Drain`": {
        "Abandon", "Abandoned", "Drain", "Drained", "OwnershipLost", "Phase", "StartConsuming",
    },
}  # fmt: skip


def test_class_names_are_defined_once() -> None:
    """A search for a name finds the one class. Private names, which one file uses, are not counted."""
    defined = Counter(re.findall(r"^ *class ([A-Za-z]\w*)", code(), flags=re.MULTILINE))
    assert len(defined) > 1000
    assert {name for name, count in defined.items() if count > 1} == set().union(*SAME_NAMES.values())


def test_table_of_rooms_names_every_room() -> None:
    named = {
        room
        for cell in re.findall(r"^\| [012, ]+ \| ([^|]+) \|", section("Rooms"), flags=re.MULTILINE)
        for room in re.findall(r"`(\w+)`", cell)
    }
    package = ROOT / "consumerd"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {path.stem for path in package.glob("*.py")}
    assert named == rooms - {"__init__", "__main__"}


@pytest.mark.parametrize(
    "package",
    [
        path.parent.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "consumerd").rglob("__init__.py"))
        if "Files in reading order: " in path.read_text()
    ],
)
def test_rooms_name_all_of_their_files_in_reading_order(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    named = " ".join(docstring.split()).partition("Files in reading order: ")[2].partition(".")[0].split(", ")
    assert sorted(named) == sorted({path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"})


def test_each_room_names_its_files() -> None:
    """A stranger begins with a room's `__init__`. One with a file for each command needs no order."""
    package = ROOT / "consumerd"
    folders = [*package.glob("*/__init__.py"), *package.glob("*/*/__init__.py")]
    rooms = [path for path in sorted(folders) if len([*path.parent.glob("*.py")]) > 3]
    assert len(rooms) > 20
    silent = {path.parent.name for path in rooms if "Files in reading order: " not in path.read_text()}
    assert silent == {"cli"}


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/reading.md", "CONTRIBUTING.md", "tests/README.md"])
def test_paths_in_guides_to_the_code_exist(document: str) -> None:
    paths = re.findall(r"`((?:consumerd|tests|docs)/[\w/.-]*\w/?)(?:::\w+)?`", (ROOT / document).read_text())
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_one_module_makes_files_durable() -> None:
    """Another one would not be simulated on a disk that fails: add what is missing to `consumerd.base.files`."""
    calls = re.compile(r"\b(?:os\.(?:f(?:data)?sync|rename|renames|replace|link|O_DIRECTORY)|F_FULLFSYNC)\b")
    users = [path for path in (ROOT / "consumerd").rglob("*.py") if calls.search(path.read_text())]
    assert users == [ROOT / "consumerd" / "base" / "files.py"]


#: What Semantic Versioning covers (README.md), and the parts of `consumerd.wire` that docs/protocol-guide.md shows.
RE_EXPORTING = {
    "consumerd",
    "consumerd.handlers",
    "consumerd.producer",
    "consumerd.storage",
    "consumerd.testing",
    "consumerd.wire",
    "consumerd.wire.registry.regex",
    "consumerd.wire.v07",
    "consumerd.wire.v08",
    "consumerd.wire.v08.apis",
    "consumerd.wire.v08.records",
}
PACKAGES = {
    ".".join(path.parent.relative_to(ROOT).parts): path for path in sorted((ROOT / "consumerd").rglob("__init__.py"))
}


def test_only_public_packages_re_export() -> None:
    """A name is imported from the module that defines it: with a second place readers look in both."""
    passing_on = []
    for package in sorted(PACKAGES.keys() - RE_EXPORTING):
        tree = ast.parse(PACKAGES[package].read_text())
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        passing_on += [
            f"{package}.{each.asname or each.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for each in node.names
            if (each.asname or each.name) not in used
        ]
    assert passing_on == []
    assert PACKAGES.keys() >= RE_EXPORTING
