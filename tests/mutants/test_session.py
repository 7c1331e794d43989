"""What happens to the child process of a mutant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants import session
from tests.mutants.operators import Module
from tests.mutants.rooms import ROOT


@pytest.mark.parametrize(("byte", "verdict"), [(b"K", "killed"), (b"S", "survived"), (b"R", "reimport")])
def test_returns_the_verdict_of_the_child(byte: bytes, verdict: str) -> None:
    def child(say: Callable[[bytes], None]) -> bytes:
        say(b".")
        return byte

    assert session.in_child(child, 60, [60]) == verdict


def test_error_or_end_of_the_child_is_a_killed_mutant() -> None:
    def fail(say: Callable[[bytes], None]) -> bytes:
        raise RuntimeError

    def end(say: Callable[[bytes], None]) -> bytes:
        os._exit(0)

    assert session.in_child(fail, 60, []) == "killed"
    assert session.in_child(end, 60, []) == "killed"


def test_kills_a_test_that_hangs_with_the_processes_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def child(say: Callable[[bytes], None]) -> bytes:
        started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        note.write_text(str(started.pid))
        say(b".")
        signal.pause()
        return b"S"

    assert session.in_child(child, 60, [0.0]) == "timed out"
    pid = int(note.read_text())
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # init of the machine reaps it at some time


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_test_that_only_waits_hangs_sooner_than_one_that_works() -> None:
    def wait(say: Callable[[bytes], None]) -> bytes:
        say(b".")
        signal.pause()
        return b"S"

    def work(say: Callable[[bytes], None]) -> bytes:
        say(b".")
        until = time.process_time() + 1.0
        while time.process_time() < until:
            pass
        return b"S"

    started = time.monotonic()
    assert session.in_child(wait, 60, [session._BUSY_SECONDS + 0.5]) == "timed out"
    assert time.monotonic() < started + 4.0
    assert session.in_child(work, 60, [60.0]) == "survived"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return status.stdout.strip()[:1] not in {"", "Z"}


def test_chooses_tests_by_executed_lines_and_runs_the_quickest_first() -> None:
    baseline = session.Baseline(
        {"slow": {"m.py": {1, 2, 3}}, "quick": {"m.py": {3}}, "other": {"n.py": {3}}},
        {"slow": 2.0, "quick": 1.0, "other": 0.5},
    )
    assert baseline.tests_of("m.py") == ["quick", "slow"]
    assert baseline.tests_of("m.py", (2, 2)) == ["slow"]
    assert baseline.tests_of("m.py", (4, 9)) == []
    assert baseline.tests_of("constants.py") == ["other", "quick", "slow"]
    assert baseline.others(["quick"]) == ["other", "slow"]


def test_test_that_fails_in_the_order_of_mutants_alone_fails_without_a_mutant(tmp_path: Path) -> None:
    """It would count every mutant as noticed."""
    file = tmp_path / "test_order.py"
    file.write_text(
        "import time\nran = []\n"
        "def test_slow():\n    time.sleep(0.1)\n    ran.append(1)\n"
        "def test_quick():\n    assert ran\n"
    )
    code = (
        "import sys; from tests.mutants import session; "
        "session.Collected([], lambda collected: print(collected.baseline().failed)).run(sys.argv[1:])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "-c", "pyproject.toml", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "['::test_quick']\n", run.stderr


def test_place_in_a_function_that_an_import_called_takes_effect_on_import() -> None:
    """The function that it returned then keeps its code."""
    module = Module("def outer():\n    def inner():\n        return 1\n    return inner\n", "m.py")
    mutant = next(mutant for mutant in module.mutants if mutant.old == "return 1")
    collected = session.Collected([], lambda _: None)
    assert not collected.took_effect_on_import(mutant)
    collected.imported = {"m.py": {1, 2, 4}}
    assert collected.took_effect_on_import(mutant)


def test_finds_the_code_of_methods_in_the_mutated_module() -> None:
    module = Module("class A:\n    def f(self):\n        return 1\n", "m.py")
    (mutant,) = module.mutants
    code = session.compile_mutant(module, mutant)
    assert mutant.function is not None
    found = session._find(code, mutant.function)
    assert found is not None
    assert found.co_consts == (None, 2)
    assert found.co_filename == str(ROOT / "m.py")


@pytest.mark.long
def test_judges_a_module_and_leaves_the_checkout_as_it_was() -> None:
    def state() -> str:
        return subprocess.run(["git", "status", "--short"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    before = state()
    command = [sys.executable, "-m", "tests.mutants", "--module", "consumerd/member/offsets/tracker.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 survived (0.0 %)" in run.stdout
    assert state() == before


def test_constants_are_tested_by_the_tests_in_the_file_named_after_the_module_too() -> None:
    runs, builds, other = "tests/unit/a/test_use.py::t", "tests/unit/a/test_items.py::t", "tests/unit/a/test_b.py::t"
    path = "consumerd/a/items.py"
    seconds = {runs: 2.0, builds: 1.0, other: 0.5}
    baseline = session.Baseline(lines={runs: {path: {7}}, builds: {}, other: {}}, seconds=seconds)
    assert baseline.tests_of(path) == [builds, runs]
    assert baseline.tests_of(path, (7, 7)) == [runs]
    assert baseline.tests_of("consumerd/a/constants.py") == [other, builds, runs]
