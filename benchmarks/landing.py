"""All columns of segments of 0.7 to a table, beside Spark, which writes the same messages from lines of text.

`lake land` and `log export` count from the start of their process to its end; `spark land` and Spark's text to Parquet
run in one session that is warm, with one task at a time. Processor time of everything: the JVM, Python workers, drivers
and worker processes. Text has one column, and Spark's codec, snappy, or zstd as the tables have; a table has eighteen.
What is read lies in the page cache; all take turns. The limit of every landing is what deltalake alone needs to write
the same rows, which it has in memory, with zstd.

    python -m benchmarks landing [--megabytes 256] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyspark.sql import SparkSession

from benchmarks import surroundings
from benchmarks.race import Measurement, compared, laps, rates, show_if_possible
from benchmarks.segments import children_seconds, ours
from benchmarks.spark import PAYLOAD_BYTES, SESSION, write
from consumerd.spark.land import land
from consumerd.spark.session import build_session
from consumerd.spark.spec import load_spark

NAME = "landing"
TEXT, TEXT_ZSTD = "text to parquet", "text to parquet, zstd"
LIMIT = "deltalake, rows in memory"
LAKE, SPARK, EXPORT = "lake land", "spark land", "log export"
#: Seconds between two looks at the processes below the JVM: the time of one that ends after the last is not counted.
_LOOK = 0.05
_TICK = os.sysconf("SC_CLK_TCK")


class ProcessClock:
    """Processor time of this process, those that it has waited for, and of all that are below one of them.

    Spark's Python workers end when they like, and their parent does not count them, so they are looked at all the time.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._seconds: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._own = 0.0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ProcessClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self) -> float:
        """Seconds since some time."""
        return children_seconds() + time.process_time() - self._own + self._below()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK):
            self._below()
            self._own = time.thread_time()

    def _below(self) -> float:
        found: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    text = (entry / "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
                found[int(entry.name)] = text[text.rindex(")") + 2 :].split()
        with self._lock:
            for number, fields in found.items():
                above: int | None = number
                while above is not None and above != self._root:
                    above = int(found[above][1]) if above in found else None
                if above is not None:
                    self._seconds[number, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICK
            return sum(self._seconds.values())


@contextmanager
def session() -> Iterator[tuple[SparkSession, ProcessClock]]:
    """A session, and the clock of it and of everything that is started here."""
    spark = build_session("local[1]", app_name="benchmark", config=SESSION)
    try:
        (java,) = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]
        with ProcessClock(java.pid) as clock:
            yield spark, clock
    finally:
        spark.stop()


def configuration(root: Path, log: Path) -> Path:
    """A pipeline whose tables are under an empty folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    file = root / "lake.toml"
    file.write_text(
        f'[spark]\nroot = "{root}"\n[spark.pipelines.p.source]\npath = "{log}"\nbroker = "0"\nsubscribe = "events"\n'
        'maxBytesPerTrigger = "100g"\nmaxSplitBytes = "64m"\n'
    )
    return file


def measure(megabytes: int, rounds: int, root: Path) -> list[Measurement]:
    """All subjects in turns."""
    count = write(root, megabytes)
    log = root / "log-1"
    with session() as (spark, clock):

        def text(codec: str) -> None:
            frame = spark.read.text(str(root / "text"))
            frame.write.mode("overwrite").option("compression", codec).parquet(str(root / "parquet"))

        def landed() -> None:
            rows = land(spark, load_spark(configuration(root / "spark", log)).pipeline(None)).rows
            assert rows == count, rows

        def export() -> None:
            shutil.rmtree(root / "exported", ignore_errors=True)
            options = ["--format", "parquet", "--compress", "zstd", "--workers", "1", "--broker-id", "0"]
            ours("log", "export", *options, "-o", str(root / "exported"), str(log))

        def lake() -> None:
            command = ["lake", "land", "-c", str(configuration(root / "lake", log)), "--workers", "1"]
            run = [sys.executable, "-m", "consumerd", *command]
            subprocess.run(run, check=True, stdin=subprocess.DEVNULL, capture_output=True)

        def limit() -> None:
            shutil.rmtree(root / "limit", ignore_errors=True)
            write_deltalake(root / "limit", rows, writer_properties=WriterProperties(compression="ZSTD"))

        subjects: dict[str, Callable[[], object]] = {
            TEXT: partial(text, "snappy"),
            TEXT_ZSTD: partial(text, "zstd"),
            SPARK: landed,
            LAKE: lake,
            EXPORT: export,
            LIMIT: limit,
        }
        for name in (TEXT, TEXT_ZSTD, SPARK) * 2:  # warms it up
            subjects[name]()
        rows = DeltaTable(root / "spark/p/bronze").to_pyarrow_table()
        figures = rates(laps(subjects, rounds, clock), count / 1e6)
    results: list[Measurement] = []
    for name in (LAKE, SPARK, EXPORT):
        case = f"{PAYLOAD_BYTES} B, {megabytes} MB, {name}, {surroundings.codec()}"
        results += compared(NAME, case, "M msg/cpu-s", figures, ours=name, others=[TEXT, TEXT_ZSTD, LIMIT])
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks landing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the log (default: 256)")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return show_if_possible(lambda: measure(options.megabytes, options.rounds, Path(folder)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
