"""`make mutants`: plant mutants in a room, run its fast tests on each, and print those that no test notices."""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants import equivalents, session
from tests.mutants.operators import Module, Mutant
from tests.mutants.rooms import ROOMS, ROOT, room_of

#: Other projects' packages that the tests of all rooms import: loaded once, for all sessions that import the rest.
_LOADED_ONCE = ("asyncio", "hypothesis", "pytest_asyncio", "structlog", "trustme")
#: So many tests show that a module can be imported as mutants are.
_CONTROLS = 5


@dataclass(slots=True)
class Run:
    """The mutants to judge, and their verdicts so far."""

    modules: dict[str, Module]
    mutants: list[Mutant]
    tests: tuple[str, ...]
    baseline: session.Baseline = field(default_factory=session.Baseline)
    verdicts: dict[Mutant, session.Verdict] = field(default_factory=dict)
    #: Those whose place is changed by importing the module again, with the tests to run.
    to_import: list[tuple[Mutant, list[str]]] = field(default_factory=list)

    def collected(self, collected: session.Collected) -> None:
        """Judge the mutants of functions; in the child that has collected the tests."""
        self.baseline = collected.baseline()
        if self.baseline.failed:
            return
        say(f"{len(self.mutants)} mutants, {len(self.baseline.lines)} tests")
        for mutant in self.mutants:
            of_module = self.baseline.tests_of(mutant.path)
            if collected.took_effect_on_import(mutant):
                self.to_import.append((mutant, of_module))
                continue
            tests = self.baseline.tests_of(mutant.path, mutant.span)
            verdict = collected.judge(self.modules[mutant.path], mutant, tests, self.baseline) if tests else "survived"
            if verdict == "reimport":
                self.to_import.append((mutant, tests))
            else:
                self.note(mutant, verdict)

    def reimport(self) -> bool:
        """Judge the others; in a process that has not imported the package. Returns whether tests pass there at all."""
        for name in _LOADED_ONCE:
            importlib.import_module(name)
        for path, tests in {mutant.path: tests for mutant, tests in self.to_import if tests}.items():
            if session.reimported(self.modules[path], None, tests[:_CONTROLS], self.baseline) != "survived":
                return False
        for mutant, tests in self.to_import:
            verdict = self._reimported(mutant, tests)
            if verdict == "survived" and mutant.function is None and mutant.place:
                # The methods that a dataclass makes of its fields have no lines: any test may run them.
                verdict = self._reimported(mutant, self.baseline.others(tests))
            self.note(mutant, verdict)
        return True

    def _reimported(self, mutant: Mutant, tests: list[str]) -> session.Verdict:
        return session.reimported(self.modules[mutant.path], mutant, tests, self.baseline) if tests else "survived"

    def note(self, mutant: Mutant, verdict: session.Verdict) -> None:
        self.verdicts[mutant] = verdict
        if verdict in {"survived", "timed out"}:
            say(f"{verdict}: {mutant}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--room", choices=sorted(ROOMS), default="group")
    parser.add_argument("--module", help="one module of a room, for example consumerd/group/rules.py")
    parser.add_argument("--limit", type=int, help="judge this many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="the choice of --limit")
    parser.add_argument("-k", dest="keywords", default="", help="of the tests only these, as pytest selects them")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="of the mutants only those that FILE, a former run's output, names"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    try:
        room = room_of(options.module) if options.module else ROOMS[options.room]
    except KeyError as error:
        parser.error(error.args[0])
    paths = [options.module] if options.module else room.modules()
    modules = {path: Module((ROOT / path).read_text("utf-8"), path) for path in paths}
    mutants = [mutant for module in modules.values() for mutant in module.mutants]
    if options.again is not None:
        named = read_named(options.again.read_text("utf-8"))
        mutants = [mutant for mutant in mutants if _name(mutant) in named]
    if options.limit is not None and options.limit < len(mutants):
        chosen = set(random.Random(options.seed).sample(range(len(mutants)), options.limit))
        mutants = [mutant for number, mutant in enumerate(mutants) if number in chosen]
    if options.list:
        for mutant in mutants:
            say(str(mutant))
        return 0
    return judge(Run(modules, mutants, (*room.tests, "-k", options.keywords)))


def read_named(output: str) -> set[tuple[str, str, str]]:
    """Return path, old and new text of each mutant in the output of a run, wherever its line has moved to."""
    lines = output.splitlines()
    return {
        (first.removeprefix("survived: ").removeprefix("timed out: ").partition(":")[0], old[4:], new[4:])
        for first, old, new in zip(lines, lines[1:], lines[2:], strict=False)
        if old.startswith("  - ") and new.startswith("  + ")
    }


def _name(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.path, mutant.old, mutant.new


def judge(run: Run) -> int:
    """Judge all mutants. Returns the exit code: 1 with new survivors, 2 if the tests fail without a mutant."""
    started = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="consumerd-mutants-") as folder:
        os.environ["TMPDIR"] = os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        tempfile.tempdir = None
        result = os.path.join(folder, "run")
        pid = os.fork()
        if not pid:
            status = 1
            try:
                collected = session.Collected(list(run.modules), run.collected)
                status = collected.run(run.tests)
                with open(result, "wb") as file:
                    pickle.dump((run.baseline, run.verdicts, run.to_import), file)
            finally:
                os._exit(int(status))
        waited: int | None = None
        try:
            _, waited = os.waitpid(pid, 0)
        finally:
            if waited is None:  # interrupted; its own child ends with it
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
        if waited:
            say("the tests of the room cannot be collected or run")
            return 2
        with open(result, "rb") as file:
            run.baseline, run.verdicts, run.to_import = pickle.load(file)
        if run.baseline.failed:
            say("tests fail without a mutant: " + " ".join(run.baseline.failed))
            return 2
        if not run.reimport():
            say("tests fail without a mutant in a new session")
            return 2
    return report(run, time.monotonic() - started)


def report(run: Run, seconds: float) -> int:
    """Print the figures. Returns 1 if a mutant survives that is not in the list of equivalents."""
    reasons = equivalents.load()
    survivors = [mutant for mutant, verdict in run.verdicts.items() if verdict == "survived"]
    unreasoned = [mutant for mutant in survivors if equivalents.key(mutant) not in reasons]
    listed = [mutant for mutant in run.verdicts if equivalents.key(mutant) in reasons]
    for mutant in listed:
        if mutant not in survivors:
            say(f"is listed as equivalent, but a test notices it: {mutant}")
    if unreasoned:
        say("\nsurvivors:")
        for mutant in unreasoned:
            say(str(mutant))
    counts = Counter(run.verdicts.values())
    equivalent = len(survivors) - len(unreasoned)
    percentage = 100 * len(unreasoned) / max(1, len(run.verdicts) - equivalent)
    say(
        f"\n{len(run.verdicts)} mutants planted in {seconds:.0f} s: {counts['killed']} killed, "
        f"{counts['timed out']} timed out, {equivalent} equivalent, {len(unreasoned)} survived ({percentage:.1f} %)"
    )
    return 1 if unreasoned else 0


if __name__ == "__main__":
    sys.exit(main())
