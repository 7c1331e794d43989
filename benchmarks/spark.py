"""Rows per second of the data source beside `spark.read.text` over the same payloads as lines, in one run.

Messages of 137 bytes in segments of at most 64 MB, each read as one split, on `local[2]`; every query counts the rows
and sums the lengths of their values, so that each byte has crossed into the JVM. `value` asks for the value alone,
`narrow` for offset and value, `full` for all columns. All CRCs are checked. `to parquet` writes all columns, beside the
lines with their one column, and beside the limit: Spark copies what it wrote, from Parquet to Parquet, so that only its
writer and its fastest reader work on the same columns. `log export` writes four times as many rows as Parquet without
Spark, with two workers, from the start of its process on. Then the narrow query over four times as much, which is to
take no more than four times as long. Ratios hold, figures depend on the machine: queries take turns and the median of
the rounds counts. What is read lies in the page cache.

    python -m benchmarks spark [--megabytes 256] [--rounds 5] [--codec none] [--json]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks import surroundings
from benchmarks.race import Measurement, compared, laps, rates, show
from consumerd.spark.session import build_session
from consumerd.spark.source import register
from consumerd.wire.v07 import Codec, encode_message_set

NAME = "spark"
#: The peer: Spark's own source of text.
TEXT = "read.text"
#: The narrow query over four times as much.
MUCH = "narrow, 4x"
STORED_TEXT, STORED, EXPORTED = "text to parquet", "full to parquet", "log export"
#: The same columns, read from Parquet: what no source can pass.
COPIED = "parquet to parquet"
PAYLOAD_BYTES = 137
SEGMENT_BYTES = 64 << 20
#: Of a segment's messages so many are different.
DIFFERENT = 100_000
#: The narrow query, times as fast as reading lines of text.
PROMISE = 0.55
#: The same query over four times as much, times as long. Above 4 only for what a shared machine adds.
LINEAR = 4.4
NARROW = "offset bigint, value binary"
#: Of Spark's session.
SESSION = {"spark.driver.memory": "1g", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
#: Messages in a compressed one.
WRAPPED = 200


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


def write(folder: Path, megabytes: int, codec: Codec = Codec.NONE) -> int:
    """Logs under `log-1` and `log-4` (four times as much), lines under `text`; returns the messages of `log-1`.

    The log has `megabytes` before it is compressed.
    """
    values = payloads()
    one, lines = encode_message_set(values), b"\n".join(values) + b"\n"
    repeats = max(1, min(SEGMENT_BYTES, (megabytes << 20) // 2) // len(one))
    segments = max(2, (megabytes << 20) // (repeats * len(one)))
    if codec is not Codec.NONE:
        sets = [values[at : at + WRAPPED] for at in range(0, len(values), WRAPPED)]
        one = b"".join(encode_message_set(each, codec=codec) for each in sets)
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


def measure(
    spark: SparkSession, folder: Path, megabytes: int, rounds: int, codec: Codec = Codec.NONE
) -> list[Measurement]:
    """All queries in turns."""
    count = write(folder, megabytes, codec)
    kind = f"{PAYLOAD_BYTES} B" if codec is Codec.NONE else f"{PAYLOAD_BYTES} B {codec.name.lower()}"

    def source(schema: str | None, times: int = 1) -> DataFrame:
        reader = spark.read.format("consumerd").options(broker=0, subscribe="events", maxSplitBytes="64m")
        reader = reader if schema is None else reader.schema(schema)
        return reader.load(str(folder / f"log-{times}"))

    def stored(frame: DataFrame, place: str = "parquet") -> None:
        frame.write.mode("overwrite").parquet(str(folder / place))

    def exported() -> None:
        target = folder / "exported"
        shutil.rmtree(target, ignore_errors=True)
        command = ["log", "export", "--format", "parquet", "--compress", "snappy", "--workers", "2", "--broker-id", "0"]
        run = [sys.executable, "-m", "consumerd", *command, "-o", str(target), str(folder / "log-4")]
        subprocess.run(run, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    frames = {
        TEXT: (spark.read.text(str(folder / "text")), count),
        "value": (source("value binary"), count),
        "narrow": (source(NARROW), count),
        "full": (source(None), count),
        MUCH: (source(NARROW, 4), 4 * count),
    }
    stored(frames["full"][0], "original")
    original = spark.read.parquet(str(folder / "original"))
    written = {STORED_TEXT: frames[TEXT][0], STORED: frames["full"][0], COPIED: original}
    for name, (frame, rows) in frames.items():  # also warms up
        assert summed(frame, rows) == summed(frames[TEXT][0], count) * (rows // count), name
    queries: dict[str, Callable[[], object]] = {
        name: partial(summed, frame, rows) for name, (frame, rows) in frames.items()
    }
    queries |= {name: partial(stored, frame) for name, frame in written.items()}
    queries[EXPORTED] = exported
    seconds = laps(queries, rounds)
    figures = {name: rates(seconds, (4 if name in {MUCH, EXPORTED} else 1) * count / 1e6)[name] for name in queries}
    results: list[Measurement] = []
    for name in frames:
        if name not in {TEXT, MUCH}:
            case = f"{kind}, local[2], {name}, {surroundings.codec()}"
            results += compared(NAME, case, "M rows/s", figures, ours=name, others=[TEXT])
    for name, what, others in (
        (STORED, "local[2], full to parquet", [STORED_TEXT, COPIED]),
        (EXPORTED, "log export to parquet", [STORED_TEXT]),
    ):
        case = f"{kind}, {what}, {surroundings.codec()}"
        results += compared(NAME, case, "M rows/s", figures, ours=name, others=others)
    case = f"four times as much, {surroundings.codec()}"
    return results + compared(NAME, case, "M rows/s", figures, ours=MUCH, others=["narrow"])


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise as a sentence, and whether it is kept."""
    ratios = {(result.case, result.subject): result.ratio for result in results if result.ratio is not None}
    ending = f", local[2], narrow, {surroundings.codec()}"
    ratio = next(ratio for (case, peer), ratio in ratios.items() if case.endswith(ending) and peer == TEXT)
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
    codecs = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]
    parser.add_argument("--codec", choices=[codec.name.lower() for codec in codecs], default="none", help="of the log")
    options = parser.parse_args(arguments)
    spark = build_session("local[2]", app_name="benchmark", config=SESSION)
    try:
        register(spark)
        with tempfile.TemporaryDirectory() as folder:
            results = measure(spark, Path(folder), options.megabytes, options.rounds, Codec[options.codec.upper()])
    finally:
        spark.stop()
    return show(results, verdict(results), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
