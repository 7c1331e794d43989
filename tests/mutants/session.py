"""Runs tests on mutants in child processes: what a mutant does to a process ends with it.

Strategy: `Collected` is one pytest session that has collected the tests of a room once, with the original modules. For
a mutant of a function's body it forks, replaces the code of that function's objects, and runs the tests that execute
the line, the quickest first, until one fails. Constants, defaults and class bodies take effect while a module is
imported: for these, `reimported` forks from a process that has not imported the package, and gives the import system
the mutated module.

A child reports through a pipe: one byte before each test, and one for the verdict. Its parent kills it, and all that
it has started, if a test takes several times as long as without a mutant; earlier if it only waits, for what no longer
happens.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, Literal, NoReturn, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.operators import Function, Module, Mutant
from tests.mutants.rooms import ROOT

Verdict: TypeAlias = Literal["killed", "timed out", "survived", "reimport"]

_TEST, _KILLED, _SURVIVED, _REIMPORT = b".", b"K", b"S", b"R"
_VERDICTS: Final[dict[bytes, Verdict]] = {_KILLED: "killed", _SURVIVED: "survived", _REIMPORT: "reimport"}
#: A test on a mutant may take this many times as long as without, and this many seconds more.
_TIMES, _SECONDS = 5, 5.0
#: A test that uses no processor time hangs after so many seconds less.
_BUSY_SECONDS = 4.0
_LOOK_SECONDS = 0.25
#: For imports and collection in a new session.
_START_SECONDS = 120.0
#: A mutated size may ask for any amount of memory.
_MEMORY = 4 << 30
_ARGUMENTS: Final = (
    "-s", "-p", "no:cacheprovider", "-p", "no:terminal", "--assert=plain", "--hypothesis-seed=0",
    "-o", "addopts=--strict-markers --strict-config --import-mode=importlib -m 'not long'",
)  # fmt: skip


@dataclass(slots=True)
class Baseline:
    """What the tests do without a mutant."""

    #: Test -> path -> the lines that it executes.
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    #: Test -> seconds, while its lines are recorded.
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def tests_of(self, path: str, span: tuple[int, int] | None = None) -> list[str]:
        """Return the tests that execute one of the lines, or any line of the module; the quickest first.

        Constants and the bodies of enumerations and dataclasses have no lines that run in a test: without a span the
        tests in the file named after the module come along, and of a module that has nothing else, these are all tests.
        """
        wanted = None if span is None else set(range(span[0], span[1] + 1))
        tests = [
            test
            for test, files in self.lines.items()
            if path in files and (wanted is None or not wanted.isdisjoint(files[path]))
        ]
        if span is None:
            ending = f"/test_{Path(path).stem}.py"
            chosen = set(tests)
            tests = [
                test for test in self.lines if not chosen or test in chosen or test.partition("::")[0].endswith(ending)
            ]
        return sorted(tests, key=lambda test: self.seconds[test])

    def others(self, tests: Sequence[str]) -> list[str]:
        """Return all tests but these; the quickest first."""
        return sorted(self.lines.keys() - set(tests), key=lambda test: self.seconds[test])

    def limit(self, test: str) -> float:
        """Return the seconds after which a test on a mutant hangs."""
        return _SECONDS + _TIMES * self.seconds[test]


class _Recorder:
    """Notes the executed lines of some files."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = {str(ROOT / path): path for path in paths}
        self.lines: dict[str, set[int]] = {}

    def start(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> dict[str, set[int]]:
        sys.settrace(None)
        threading.settrace(None)
        lines, self.lines = self.lines, {}
        return lines

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        path = self._paths.get(frame.f_code.co_filename)
        if path is None or frame.f_code.co_name == "<module>":
            return None
        add = self.lines.setdefault(path, set()).add
        add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            add(frame.f_lineno)
            return line

        return line


class Collected:
    """A pytest plugin: instead of running the tests it has collected, it serves `work`."""

    def __init__(self, paths: Sequence[str], work: Callable[[Collected], None]) -> None:
        self._recorder = _Recorder(paths)
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, Function], list[FunctionType]] = {}
        #: The lines that run while modules are imported, by path: their results may be kept anywhere.
        self.imported: dict[str, set[int]] = {}
        self._paths = list(paths)

    def run(self, tests: Sequence[str]) -> int:
        self._recorder.start()
        return pytest.main([*_ARGUMENTS, *tests], plugins=[self])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        hasten_hypothesis()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.imported = self._recorder.stop()
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        paths = {str(ROOT / path): path for path in self._paths}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and (path := paths.get(thing.__code__.co_filename)):
                self._functions.setdefault((path, _name(thing.__code__)), []).append(thing)
        gc.freeze()
        self._work(self)
        return True

    def took_effect_on_import(self, mutant: Mutant) -> bool:
        """Whether the mutated place, or a function around it, ran while modules were imported.

        A function that ran may have made others, which keep their code when its own is exchanged.
        """
        if mutant.function is None:
            return True
        imported = self.imported.get(mutant.path, set())
        # The line of a method's `def` runs in the body of its class.
        called = "." not in mutant.function.qualname and mutant.function.first_line in imported
        return called or not imported.isdisjoint(range(mutant.span[0], mutant.span[1] + 1))

    def baseline(self) -> Baseline:
        """Run all tests in a child, recording the lines; and again in the order in which they run on a mutant.

        A test that fails in that order only would notice any mutant.
        """
        found: Baseline = _result_of(self._record)
        if not found.failed:
            quickest_first = sorted(found.lines, key=lambda test: found.seconds[test])
            found.failed = _result_of(lambda: list(self._failed(quickest_first)))
        return found

    def _failed(self, tests: Sequence[str], before: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Run tests in this order, `before` in front of each; yield those that fail."""
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            before()
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                yield item.nodeid

    def _record(self) -> Baseline:
        found = Baseline()
        items = list(self._items.values())
        for item, following in zip(items, [*items[1:], None], strict=True):
            started = time.monotonic()
            self._recorder.start()
            reports = runtestprotocol(item, log=False, nextitem=following)
            lines = self._recorder.stop()
            if any(report.failed for report in reports):
                found.failed.append(item.nodeid)
            elif not any(report.skipped for report in reports):
                found.seconds[item.nodeid] = time.monotonic() - started
                found.lines[item.nodeid] = lines
        return found

    def judge(self, module: Module, mutant: Mutant, tests: Sequence[str], baseline: Baseline) -> Verdict:
        """Run tests on a mutant of a function's body, in a child."""

        def child(say: Callable[[bytes], None]) -> bytes:
            if not self._exchange(module, mutant):
                return _REIMPORT
            failed = next(self._failed(tests, lambda: say(_TEST)), None)
            return _SURVIVED if failed is None else _KILLED

        return in_child(child, _SECONDS, [baseline.limit(test) for test in tests])

    def _exchange(self, module: Module, mutant: Mutant) -> bool:
        """Whether all objects of the function have the mutant's code now."""
        assert mutant.function is not None
        functions = self._functions.get((mutant.path, mutant.function), [])
        code = _find(compile_mutant(module, mutant), mutant.function)
        if code is None or any(code.co_freevars != function.__code__.co_freevars for function in functions):
            return False
        for function in functions:
            function.__code__ = code
        return bool(functions)


def _result_of(work: Callable[[], Any]) -> Any:
    """Do `work` in a child, and return what it returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with Contained(), os.fdopen(writing, "wb") as pipe:
            pickle.dump(work(), pipe)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
    finally:
        _end(pid)
    if not data:
        raise pytest.UsageError("the tests ended their process")
    return pickle.loads(data)


def reimported(module: Module, mutant: Mutant | None, tests: Sequence[str], baseline: Baseline) -> Verdict:
    """Run tests in a new session, in a child, in which the mutated module is imported; None: the module as it is.

    The calling process must not have imported the package.
    """

    def child(say: Callable[[bytes], None]) -> bytes:
        path = Path(module.path)
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sys.meta_path.insert(0, _Finder(name, compile_mutant(module, mutant)))
        plugin = _Chosen(tests, say)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        status = pytest.main([*_ARGUMENTS, "-x", *files], plugins=[plugin])
        return _SURVIVED if status == pytest.ExitCode.OK else _KILLED

    return in_child(child, _START_SECONDS, [baseline.limit(test) for test in tests])


class _Chosen:
    """A pytest plugin that runs some tests in an order."""

    def __init__(self, tests: Sequence[str], say: Callable[[bytes], None]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._say = say

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        hasten_hypothesis()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._say(_TEST)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from code in memory, with the attributes that it has when it is imported from its file."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        packages = [self._code.co_filename.removesuffix("/__init__.py")]
        is_package = self._code.co_filename.endswith("/__init__.py")
        spec = importlib.util.spec_from_file_location(
            fullname, self._code.co_filename, loader=self, submodule_search_locations=packages if is_package else None
        )
        assert spec is not None
        spec.cached = None
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def in_child(child: Callable[[Callable[[bytes], None]], bytes], start: float, limits: Sequence[float]) -> Verdict:
    """Run `child` in a fork and return the verdict whose byte it returns.

    `start` is its limit in seconds before the first test, `limits` that of each test, which `child` announces with a
    byte.
    A child that ends without a verdict has killed its mutant.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with Contained():
            os.close(reading)
            verdict = _KILLED
            try:
                verdict = child(lambda byte: _write(writing, byte))
            finally:
                _write(writing, verdict)
    os.close(writing)
    try:
        return _verdict(pid, reading, start, limits)
    finally:
        os.close(reading)
        _end(pid)


def _end(pid: int) -> None:
    """End a child and its process group, so that what a test has started ends, too."""
    # Until waitpid the number stays the child's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # before it has a group
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _verdict(pid: int, reading: int, start: float, limits: Sequence[float]) -> Verdict:
    begun, limit = 0, start
    since = used_at = time.monotonic()
    used = None
    while True:
        ready, _, _ = select.select([reading], [], [], min(_LOOK_SECONDS, max(0.0, since + limit - time.monotonic())))
        now = time.monotonic()
        if not ready:
            if (using := _processor_use(pid)) is None or using != used:
                used, used_at = using, now
            if now >= since + limit or (begun and now >= used_at + limit - _BUSY_SECONDS):
                return "timed out"
            continue
        for byte in os.read(reading, 4096) or _KILLED:
            verdict = _VERDICTS.get(bytes([byte]))
            if verdict is not None:
                return verdict
            since = used_at = now
            limit = limits[begun]
            begun += 1


def _processor_use(pid: int) -> tuple[str, str] | None:
    """Return user and system time of a process that waits; None for one that runs, and where this is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "R" else (fields[11], fields[12])


def _write(descriptor: int, byte: bytes) -> None:
    os.write(descriptor, byte)


class Contained:
    """In a forked child: no output, limited memory, an own process group; the end of the block ends the process."""

    def __enter__(self) -> None:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > _MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, hard))

    def __exit__(self, *exception: object) -> NoReturn:
        os._exit(0)


def hasten_hypothesis() -> None:
    """Let tests with Hypothesis fail with the first example that fails, and keep none."""
    import hypothesis

    hypothesis.settings.register_profile(
        "mutants",
        hypothesis.settings(),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        database=None,
    )
    hypothesis.settings.load_profile("mutants")


def compile_mutant(module: Module, mutant: Mutant | None) -> CodeType:
    """Return the code of the module with the mutant. The module keeps the mutant."""
    tree = module.tree if mutant is None else module.plant(mutant.number)
    code: CodeType = compile(tree, str(ROOT / module.path), "exec", dont_inherit=True)
    return code


def _name(code: CodeType) -> Function:
    return Function(code.co_qualname, code.co_firstlineno)


def _find(code: CodeType, function: Function) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if _name(constant) == function:
                return constant
            if "<locals>" not in constant.co_qualname and (inner := _find(constant, function)):
                return inner
    return None
