"""What grows with partitions and with the members of a group: a record (`scale.json`) and two plots of it.

    python -m benchmarks.scale                      measure everything, and write the record and the plots
    python -m benchmarks.scale --partitions 1 10    `footprint` with other numbers of partitions
    python -m benchmarks.scale --add --members 500  keep the record's other sizes, on the same machine and versions
    python -m benchmarks.scale --plots              write the plots of the record again

Strategy: `footprint` and the model of `group` run once at each size, one after the other, each in its own process. A
record is written even if the largest sizes do not come to an end; what failed is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks import surroundings
from benchmarks.plot import footprint, group
from benchmarks.race import Measurement
from benchmarks.report import FOLDER, Report, Turn

RECORD = FOLDER / "scale.json"
PLOTS = {FOLDER / "partitions.svg": footprint, FOLDER / "group.svg": group}
PARTITIONS = (1, 10, 100, 1000, 10_000)
MEMBERS = (2, 5, 10, 20, 50, 100, 200)
#: Of the groups: each of 200 members owns one.
GROUP_PARTITIONS = 200
#: From so many partitions on, as docs/scale.md measures them: a message in 10 s to each, and a longer session.
MANY = 10_000
#: Seconds for one size.
PATIENCE = 1200.0


def commands(partitions: Sequence[int], members: Sequence[int], seconds: float) -> list[list[str]]:
    """Each benchmark with its arguments."""
    found: list[list[str]] = []
    for count in partitions:
        many = ["--rate", "0.1", "--session-timeout", "30"] if count >= MANY else []
        found += [["footprint", "--partitions", str(count), "--brokers", "1", "--seconds", f"{seconds:g}", *many]]
    sizes = [["--members", str(count), "--partitions", str(GROUP_PARTITIONS)] for count in members]
    found += [["group", "--scenario", "model", *size] for size in sizes]
    return found


def run(name: str, *arguments: str) -> tuple[Turn, list[Measurement]]:
    """One benchmark at one size. One that fails or takes too long gives no rows."""
    print(f"== {name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    load, began = surroundings.load(), time.monotonic()
    command = [sys.executable, "-m", "benchmarks", name, "--json", *arguments]
    rows = []
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        failed = done.returncode != 0
        rows = [] if failed else [Measurement(**json.loads(line)) for line in done.stdout.splitlines()]
    except subprocess.TimeoutExpired:
        failed = True
    seconds = round(time.monotonic() - began, 1)
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Turn(name, ended, False, list(arguments), seconds, load, surroundings.load(), {}, failed=failed), rows


def measure(options: argparse.Namespace) -> Report:
    """All sizes."""
    turns: list[Turn] = []
    rows: list[Measurement] = []
    for command in commands(options.partitions, options.members, options.seconds):
        turn, found = run(*command)
        turns.append(turn)
        rows += found
    return Report(surroundings.codec(), surroundings.machine(), surroundings.versions(), turns, rows)


def added(old: Report, new: Report) -> Report:
    """The record `old` with the sizes of `new`, some of which may take the place of its own. Raises ValueError."""
    for name in ("machine", "versions", "codec"):
        if getattr(old, name) != getattr(new, name):
            raise ValueError(f"the record is of another {name}: measure everything")
    again = [(turn.benchmark, turn.arguments) for turn in new.turns]
    cases = {(row.benchmark, row.case) for row in new.rows}
    turns = [turn for turn in old.turns if (turn.benchmark, turn.arguments) not in again] + new.turns
    rows = [row for row in old.rows if (row.benchmark, row.case) not in cases] + new.rows
    return Report(new.codec, new.machine, new.versions, turns, rows)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Record what grows, and plot it.")
    parser.add_argument("--partitions", type=int, nargs="*", default=PARTITIONS, help="of one daemon")
    parser.add_argument("--members", type=int, nargs="*", default=MEMBERS, help="of one group")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each period of `footprint`")
    parser.add_argument("--add", action="store_true", help="keep the other sizes of the record")
    parser.add_argument("--plots", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    if options.plots:
        report = Report.from_json(RECORD.read_text("utf-8"))
    else:
        report = measure(options)
        if options.add:
            report = added(Report.from_json(RECORD.read_text("utf-8")), report)
        RECORD.write_text(report.as_json(), "utf-8")
    for path, draw in PLOTS.items():
        path.write_text(draw(report.rows), "utf-8")
    failed = [" ".join([turn.benchmark, *turn.arguments]) for turn in report.turns if turn.failed]
    for command in failed:
        print(f"FAILED: {command}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
