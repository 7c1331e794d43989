"""Rows per second of the data source beside `spark.read.text` over the same payloads as lines, in one run.

Messages of 137 bytes in segments of at most 64 MB, each read as one split, on `local[2]`; every query counts the rows
and sums the lengths of their values, so that each byte has crossed into the JVM. `narrow` asks for offset and value,
`full` for all columns. All CRCs are checked. Then the narrow query over four times as much, which is to take no more
than four times as long. Ratios hold, figures depend on the machine: queries take turns and the median of the rounds
counts. What is read lies in the page cache.

    python -m benchmarks spark [--megabytes 256] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from benchmarks import surroundings
from benchmarks.race import Measurement, compared, laps, rates, show
from consumerd.spark.session import build_session
from consumerd.spark.source import register
from consumerd.wire.v07 import encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "spark"
#: The peer: Spark's own source of text.
TEXT = "read.text"
#: The narrow query over four times as much.
MUCH = "narrow, 4x"
PAYLOAD_BYTES = 137
SEGMENT_BYTES = 64 << 20
#: Of a segment's messages so many are different.
DIFFERENT = 100_000
#: The narrow query, times as fast as reading lines of text.
PROMISE = 0.55
#: The same query over four times as much, times as long. Above 4 only for what a shared machine adds.
LINEAR = 4.4
NARROW = "offset bigint, value binary"


def payloads() -> list[bytes]:
    """JSON lines that are 137 bytes on average, none shorter than 90 or longer than 184."""
    rng = random.Random(137)
    found = []
    for number in range(DIFFERENT):
        head = b'{"id":%d,"user":%d,"kind":"%s","text":"' % (
            number,
            rng.randrange(10**6),
            rng.choice([b"view", b"buy"]),
        )
        size = PAYLOAD_BYTES + rng.randint(-47, 47)
        found.append(head + rng.randbytes(size).hex().encode()[: size - len(head) - 2] + b'"}')
    return found


def write(folder: Path, megabytes: int) -> int:
    """Logs under `log-1` and `log-4` (four times as much), lines under `text`; returns the messages of `log-1`."""
    values = payloads()
    one, lines = encode_message_set(values), b"\n".join(values) + b"\n"
    repeats = max(1, min(SEGMENT_BYTES, (megabytes << 20) // 2) // len(one))
    segments = max(2, (megabytes << 20) // (repeats * len(one)))
    (folder / "text").mkdir(parents=True)
    first, text = folder / "segment", folder / "lines"
    first.write_bytes(one * repeats)
    text.write_bytes(lines * repeats)
    for times in (1, 4):
        for partition in range(segments * times):
            place = folder / f"log-{times}" / f"events-{partition}"
            place.mkdir(parents=True)
            os.link(first, place / f"{0:020d}.kafka")
    for number in range(segments):
        os.link(text, folder / "text" / f"{number}.txt")
    return segments * repeats * len(values)


def summed(frame: DataFrame, expected: int) -> int:
    """Run the query; returns the bytes of all values."""
    row = frame.agg(sql.count(sql.lit(1)).alias("rows"), sql.sum(sql.length("value")).alias("bytes")).collect()[0]
    if row.rows != expected:
        raise SystemExit(f"{row.rows} rows were read where {expected} were written")
    return int(row.bytes)


def measure(spark: SparkSession, folder: Path, megabytes: int, rounds: int) -> list[Measurement]:
    """All queries in turns."""
    count = write(folder, megabytes)

    def source(times: int) -> DataFrame:
        reader = spark.read.format("consumerd").options(broker=0, subscribe="events", maxSplitBytes="64m")
        reader = reader if times == 0 else reader.schema(NARROW)
        return reader.load(str(folder / f"log-{max(times, 1)}"))

    frames = {
        TEXT: (spark.read.text(str(folder / "text")), count),
        "narrow": (source(1), count),
        "full": (source(0), count),
        MUCH: (source(4), 4 * count),
    }
    for name, (frame, rows) in frames.items():  # also warms up
        assert summed(frame, rows) == summed(frames[TEXT][0], count) * (rows // count), name
    seconds = laps({name: partial(summed, frame, rows) for name, (frame, rows) in frames.items()}, rounds)
    figures = {name: rates(seconds, rows / 1e6)[name] for name, (_, rows) in frames.items()}
    results: list[Measurement] = []
    for name in frames:
        if name not in {TEXT, MUCH}:
            case = f"{PAYLOAD_BYTES} B, local[2], {name}, {surroundings.codec()}"
            results += compared(NAME, case, "M rows/s", figures, ours=name, others=[TEXT])
    case = f"four times as much, {surroundings.codec()}"
    return results + compared(NAME, case, "M rows/s", figures, ours=MUCH, others=["narrow"])


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise as a sentence, and whether it is kept."""
    ratios = {(result.case, result.subject): result.ratio for result in results if result.ratio is not None}
    ratio = ratios[f"{PAYLOAD_BYTES} B, local[2], narrow, {surroundings.codec()}", TEXT]
    longer = 4 / ratios[f"four times as much, {surroundings.codec()}", "narrow"]
    return {
        f"{NARROW}: at least {PROMISE}x as fast as spark.read.text: {ratio:.2f}x": ratio >= PROMISE,
        f"four times as much takes at most {LINEAR}x as long: {longer:.2f}x": longer <= LINEAR,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the log (default: 256)")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    options = parser.parse_args(arguments)
    quiet = {"spark.driver.memory": "1g", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = build_session("local[2]", app_name="benchmark", config=quiet)
    try:
        register(spark)
        with tempfile.TemporaryDirectory() as folder:
            results = measure(spark, Path(folder), options.megabytes, options.rounds)
    finally:
        spark.stop()
    return show(results, verdict(results), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
