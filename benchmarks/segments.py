"""Verifying and exporting `.log` segments of 0.8 to 4.x beside the tools of the JVM; processor time of whole processes.

A segment of messages of 100 B lies in the page cache; what is compared takes turns. `log verify` decodes each record,
as DumpLogSegments does with `--deep-iteration`; `log verify --shallow` checks headers and CRCs, as DumpLogSegments does
as it is. Both have one worker, and count from the start of the process to its end; the JVM has the options of Kafka's
own scripts. `read` reads the file alone. Then `log export` to Parquet with one worker, of all columns, beside Spark,
warm and with one task at a time, which writes the same messages from lines of text: their one column.

    python -m benchmarks segments [--megabytes 256] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from benchmarks import surroundings
from benchmarks.archive import BATCHES, write_log
from benchmarks.decode import payloads
from benchmarks.race import Measurement, compared, laps, rates, show_if_possible
from consumerd.base.java import find_java
from consumerd.spark.session import build_session
from consumerd.wire.v08.records import RecordCodec
from tests.support.maven import fetch_jars

NAME = "segments"
KAFKA = "3.9.1"
#: What kafka-run-class.sh gives the JVM.
OPTIONS = ("-Xmx256M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
           "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15")  # fmt: skip
VERIFY, SHALLOW, DUMP, DEEP, READ = "log verify", "log verify --shallow", "DumpLogSegments", "--deep-iteration", "read"
EXPORT, TEXT = "log export", "text to parquet"
SESSION = {"spark.driver.memory": "1g", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
#: Reads a file to the end.
READER = "import sys; file = open(sys.argv[1], 'rb', 0)\nwhile file.read(1 << 20): pass"


def called(*command: str) -> None:
    """Run a command to its end; what it prints goes nowhere."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def ours(*arguments: str) -> None:
    called(sys.executable, "-m", "consumerd", *arguments)


def dumped(file: Path, *more: str) -> None:
    """What DumpLogSegments of Kafka prints of the segment."""
    jars = fetch_jars([f"org.apache.kafka:kafka_2.13:{KAFKA}", f"org.apache.kafka:kafka-tools:{KAFKA}"])
    path = ":".join(map(str, jars))
    called(
        str(find_java().executable), *OPTIONS, "-cp", path, "kafka.tools.DumpLogSegments", "--files", str(file), *more
    )


def children_seconds() -> float:
    """Processor time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def verified(case: str, folder: Path, count: int, rounds: int) -> list[Measurement]:
    """The check of one segment, beside the JVM's tool and a plain read."""
    (file,) = folder.iterdir()
    subjects: dict[str, Callable[[], object]] = {
        VERIFY: partial(ours, "log", "verify", "--workers", "1", str(file)),
        DEEP: partial(dumped, file, "--deep-iteration"),
        SHALLOW: partial(ours, "log", "verify", "--workers", "1", "--shallow", str(file)),
        DUMP: partial(dumped, file),
        READ: partial(called, sys.executable, "-I", "-S", "-c", READER, str(file)),
    }
    figures = rates(laps(subjects, rounds, children_seconds), count / 1e6)
    results: list[Measurement] = []
    for name, peers in ((VERIFY, [DEEP, READ]), (SHALLOW, [DUMP, READ])):
        named = f"{case}, {name}, {surroundings.codec()}"
        results += compared(NAME, named, "M msg/cpu-s", figures, ours=name, others=peers)
    return results


@contextmanager
def spark() -> Iterator[tuple[SparkSession, Callable[[], float]]]:
    """A session, and the processor time of its JVM with that of the processes that have ended."""
    session = build_session("local[1]", app_name="benchmark", config=SESSION)
    try:
        (java,) = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]

        def clock() -> float:
            times = java.cpu_times()
            return times.user + times.system + children_seconds()

        yield session, clock
    finally:
        session.stop()


def exported(cases: Mapping[str, tuple[Path, int]], megabytes: int, root: Path, rounds: int) -> list[Measurement]:
    """The export of each segment, beside Spark's of the same messages as lines."""
    lines = b"\n".join(payloads(100)) + b"\n"
    text = root / "text"
    text.mkdir()
    repeats = max(1, (megabytes << 20) // len(lines))
    (text / "lines").write_bytes(lines * repeats)
    results: list[Measurement] = []
    with spark() as (session, clock):

        def stored() -> None:
            session.read.text(str(text)).write.mode("overwrite").parquet(str(root / "parquet"))

        stored()  # warms it up
        count = repeats * len(payloads(100))
        for case, (folder, messages) in cases.items():

            def export(folder: Path = folder) -> None:
                target = root / "exported"
                shutil.rmtree(target, ignore_errors=True)
                options = ["--format", "parquet", "--compress", "snappy", "--workers", "1", "--broker-id", "0"]
                ours("log", "export", *options, "-o", str(target), str(folder))

            seconds = laps({EXPORT: export, TEXT: stored}, rounds, clock)
            work = {EXPORT: messages / 1e6, TEXT: count / 1e6}
            figures = {name: rates(seconds, work[name])[name] for name in seconds}
            named = f"{case}, {EXPORT} to parquet, {surroundings.codec()}"
            results += compared(NAME, named, "M msg/cpu-s", figures, ours=EXPORT, others=[TEXT])
    return results


def measure(megabytes: int, rounds: int, root: Path) -> list[Measurement]:
    results: list[Measurement] = []
    cases: dict[str, tuple[Path, int]] = {}
    for kind, together in BATCHES.items():
        for codec in (RecordCodec.NONE, RecordCodec.ZSTD):
            folder = root / f"{codec.name}{together}-0"
            count = write_log(folder, 100, codec, megabytes, together)
            case = f"{'plain' if codec is RecordCodec.NONE else 'zstd'} 100 B, {kind}"
            cases[case] = folder, count
            results += verified(case, folder, count, rounds)
    return results + exported(cases, megabytes, root, rounds)


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks segments", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    parser.add_argument("--megabytes", type=int, default=256, help="size of each segment (default: 256)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        return show_if_possible(lambda: measure(options.megabytes, options.rounds, Path(root)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
