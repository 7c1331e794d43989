from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.demo.ports import RANGE_VARIABLE, free_ports, usable_ports
from tests.support.sharing import ports_of, share_of, turn_of

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


def test_processes_and_their_children_have_ports_of_their_own() -> None:
    usable = range(10_000, 32_768)
    shares = [share for worker in range(3) for share in ports_of(worker, 3, usable)]
    ports = [port for share in shares for port in share]
    assert len(ports) == len(set(ports)) > len(usable) - 6
    assert set(ports) <= set(usable)


def test_this_process_keeps_to_other_ports_than_its_children() -> None:
    childrens = usable_ports()
    assert os.environ[RANGE_VARIABLE] == f"{childrens[0]}-{childrens[-1]}"
    said = subprocess.run(
        [sys.executable, "-c", "from consumerd.demo.ports import free_ports; print(*free_ports(5))"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert set(map(int, said.stdout.split())) <= set(childrens)
    assert not set(free_ports(5)) & set(childrens)
