from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sharing import share_of, turn_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
SPARK = ("tests/spark/test_a.py", "tests/spark/test_b.py", "tests/spark/test_c.py")

_MODULE = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number, worker_id):
    with (pathlib.Path({log!r}) / worker_id).open("a") as log:
        log.write({name!r} + "\\n")
"""


def test_spark_is_one_share_and_any_other_module_is_one() -> None:
    assert {share_of(f"{name}::test_a[1]") for name in SPARK} == {"spark"}
    assert share_of("tests/kill/test_kills.py::test_a[b::c]") == "tests/kill/test_kills.py"


def test_every_folder_has_a_turn_between_spark_and_unit_tests() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    turns = {turn_of(f"tests/{folder}/test_a.py::test_b"): folder for folder in folders}
    assert len(turns) == len(folders)
    assert (turns[min(turns)], turns[max(turns)]) == ("spark", "unit")


def test_processes_take_turns_module_by_module(pytester: pytest.Pytester) -> None:
    """Spark is in one process, in which nothing is before it; the unit tests come last, however many they are."""
    log = pytester.mkdir("log")
    counts = {
        "tests/unit/test_a.py": 20,
        **dict.fromkeys(SPARK, 4),
        "tests/kill/test_a.py": 1,
        "tests/faults/test_a.py": 9,
    }
    for name, count in counts.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_MODULE.format(count=count, log=str(log), name=name))
    (pytester.path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    pytester.syspathinsert(ROOT)
    options = ("-p", "xdist", "-p", "tests.support.sharing", "-n", "2", "--dist", "loadfile")
    pytester.runpytest_subprocess(*options, "tests").assert_outcomes(passed=sum(counts.values()))
    first, second = (dict.fromkeys(path.read_text().splitlines()) for path in sorted(log.iterdir()))
    assert not set(first) & set(second)
    with_spark = next(names for names in (first, second) if SPARK[0] in names)
    assert list(with_spark)[: len(SPARK)] == [*SPARK]
    assert "tests/unit/test_a.py" in (list(first)[-1], list(second)[-1])
