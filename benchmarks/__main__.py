"""`python -m benchmarks`: run all benchmarks one after the other, or `python -m benchmarks NAME [OPTION ...]`: one.

Without a name all of `benchmarks.suite` run, and give one table, or with `--json FILE` one record. `--check` compares
with the recorded run, `--record` makes this the recorded run. With a name, the options are that benchmark's own: every
module here with a `main(arguments)` is one. The exit code is 1 when a promise is broken, a benchmark failed, or (with
`--check`) a ratio is lower than recorded by more than its noise.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import sys
from pathlib import Path

import consumerd
from benchmarks import report, suite
from benchmarks.compare import compare, lines
from benchmarks.report import RECORDED, Report
from consumerd.base import native

#: Modules that benchmarks share.
SHARED = {
    "__init__",
    "__main__",
    "compare",
    "glance",
    "jvm",
    "kafka_clients",
    "kafka_job",
    "kafka_perf",
    "latency_clients",
    "plot",
    "race",
    "report",
    "suite",
    "surroundings",
    "taking",
    "waiting",
}


def known() -> list[str]:
    """The names of all benchmarks."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)


def compile_package(folder: Path) -> None:
    """Compile a package, as its installation does, and let processes keep what they compile: else each start would."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(folder, quiet=1)


def one(name: str, arguments: list[str]) -> int:
    """Run one benchmark in this process."""
    if name not in known():
        print(f"no benchmark is called {name}; there is {', '.join(known())}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{name}").main(arguments))


def main(arguments: list[str]) -> int:
    """Run one, or the suite."""
    # Else each process that is measured would compile our modules, which an installation has compiled: up to 0.4 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if native.codec() is None and "consumerd-native" in native.describe():
        print(f"refused to measure with the {native.describe()}; `make setup` builds it anew", file=sys.stderr)
        return 2
    if arguments and not arguments[0].startswith("-"):
        return one(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run all benchmarks. With the name of one first, its own options follow.",
        epilog=f"benchmarks: {', '.join(known())}",
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: about twenty minutes on two cores")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="only these of the suite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record of the run there")
    parser.add_argument("--check", action="store_true", help="compare with benchmarks/recorded.json")
    parser.add_argument(
        "--record", action="store_true", help="write benchmarks/recorded.json (with --only: these) and the tables"
    )
    options = parser.parse_args(arguments)
    entries = [entry for entry in suite.ENTRIES if options.only is None or entry.name in options.only]
    unknown = sorted(set(options.only or ()) - {entry.name for entry in entries})
    if unknown:
        parser.error(f"not in the suite: {', '.join(unknown)}; there is {', '.join(e.name for e in suite.ENTRIES)}")
    before = _recorded(parser) if options.check or (options.record and options.only) else None
    found = suite.run(entries, quick=options.quick)
    print(report.text(found))
    if options.json:
        options.json.write_text(found.as_json())
    failed = [turn.benchmark for turn in found.turns if turn.failed]
    if options.record and failed:
        print(f"not recorded, because these failed: {', '.join(failed)}", file=sys.stderr)
    elif options.record:
        try:
            recorded = found if before is None else before.merged(found)
        except ValueError as error:
            parser.error(str(error))
        RECORDED.write_text(recorded.as_json())
        report.main()
    if before is None or not options.check:
        return 0 if found.kept else 1
    return check(before, found)


def check(before: Report, now: Report) -> int:
    """Print what changed; 1 where something got slower or did not end. Promises are not looked at."""
    if before.codec != now.codec:
        print(f"the recorded run used the {before.codec}, this one the {now.codec}: they say nothing about each other")
        return 2
    if before.machine != now.machine:
        print("the recorded run is of another machine: ratios may differ for that reason alone")
    ran = {row.benchmark for row in now.rows}
    found = compare([row for row in before.rows if row.benchmark in ran], now.rows)
    print("\n".join(lines(found)))
    failed = [turn.benchmark for turn in now.turns if turn.failed]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(found.slower or failed))


def _recorded(parser: argparse.ArgumentParser) -> Report:
    try:
        return Report.from_json(RECORDED.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{RECORDED.name} cannot be read ({error}); --record writes it")


if __name__ == "__main__":
    compile_package(Path(consumerd.__file__).parent)
    sys.exit(main(sys.argv[1:]))
