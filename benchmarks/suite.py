"""What `make bench` runs: each benchmark with its arguments, in full and quickly, with both codecs where that matters.

Strategy: benchmarks run one after the other, each in its own process that prints one JSON object. No benchmark inherits
another's event loop, log settings or JVM, and the rows of the others remain when one fails or does not end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import surroundings
from benchmarks.race import Measurement
from benchmarks.report import Report, Turn
from consumerd.base import native

#: Seconds for one benchmark, in full and quickly; the machine may be busy.
PATIENCE, QUICK_PATIENCE = 3600.0, 600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One benchmark. `quick` is None for one that a quick run leaves out; `both`: once with each codec, where the
    native one is built.
    """

    name: str
    quick: Sequence[str] | None = ()
    full: Sequence[str] = ()
    both: bool = False


ENTRIES = (
    Entry("decode", ["--rounds", "15"], ["--rounds", "50"]),
    Entry("records", ["--rounds", "3"], ["--rounds", "30"]),
    Entry("arrow", ["--rounds", "5"], ["--rounds", "30"]),
    Entry("zookeeper", ["--rounds", "5", "--nodes", "300"], ["--rounds", "15"]),
    Entry("metrics", ["--rounds", "3", "--messages", "50000"]),
    Entry("archive", ["--rounds", "3", "--megabytes", "2"], ["--rounds", "5"]),
    Entry("segments", ["--rounds", "1", "--megabytes", "64"], ["--rounds", "5"]),
    Entry("fetch", ["--rounds", "5", "--messages", "1000000"], ["--rounds", "5"], both=True),
    Entry("streams", ["--rounds", "5", "--messages", "200000"], ["--rounds", "5"], both=True),
    Entry("daemon", ["--rounds", "3", "--messages", "1500000", "--codecs", "plain"], ["--rounds", "5"], both=True),
    Entry("producer", ["--rounds", "3", "--messages", "100000", "--codec", "none"], ["--rounds", "5"]),
    Entry("kafka", ["--rounds", "2", "--quick", "--sizes", "100", "--codecs", "none"], ["--rounds", "5"]),
    Entry("latency", ["--seconds", "2", "--rows", "5/8,200/8,20000/8,200/1000,send,0.7:200/8,0.7:5/4"]),
    Entry("idle", ["--seconds", "5"]),
    Entry("spark", ["--rounds", "3", "--megabytes", "220"]),
    Entry("landing", ["--rounds", "3"], ["--rounds", "5", "--megabytes", "1024"]),
    Entry("spark_kafka", ["--rounds", "2", "--messages", "500000"]),
    Entry("broker", ["--quick"], ["--rounds", "5"]),
)


def run(entries: Sequence[Entry], *, quick: bool) -> Report:
    """Run `entries`; says on standard error what runs, and how it ended."""
    rows: list[Measurement] = []
    turns: list[Turn] = []
    both = native.codec() is not None
    for entry in entries:
        if quick and entry.quick is None:
            continue
        for pure in (False, True) if entry.both and both else (False,):
            turn, found = _run(entry, quick=quick, pure=pure)
            turns.append(turn)
            rows += found
    return Report(
        codec=surroundings.codec(),
        machine=surroundings.machine(),
        versions=surroundings.versions(),
        turns=turns,
        rows=rows,
    )


def _run(entry: Entry, *, quick: bool, pure: bool) -> tuple[Turn, list[Measurement]]:
    arguments = list(entry.quick or () if quick else entry.full)
    environ = dict(os.environ) | ({native.PURE: "1"} if pure else {})
    name = entry.name + (f", {surroundings.PURE}" if pure else "")
    print(f"== {name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    load, began = surroundings.load(), time.monotonic()
    command = [sys.executable, "-m", "benchmarks", entry.name, "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            output, _ = process.communicate(timeout=QUICK_PATIENCE if quick else PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its children
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
            output = ""
    seconds = round(time.monotonic() - began, 1)
    try:
        found = json.loads(output)
        rows = [Measurement(**row) for row in found["rows"]]
        promises = found["promises"]
    except (ValueError, KeyError, TypeError):
        rows, promises = [], {}
        print(f"{name} gave no result (exit code {process.returncode})", file=sys.stderr, flush=True)
    failed = process.returncode not in {0, 1} or not rows
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Turn(name, ended, quick, arguments, seconds, load, surroundings.load(), promises, failed=failed), rows
