"""Exporting and verifying segments on one core, beside a plain decode of the same files in the same run.

Files lie in the page cache; everything runs in one process, in turns. `decode` reads a file and
decodes it into payloads, without identities or rows: what no export can be faster than. Time is that of the CPU, so
that it is per core and without waiting for the disk. MB/s counts bytes of segments, M msg/s messages. Kafka 0.7.2 has
no export; its high-level consumer, the next best thing, was measured once on a machine of the same kind, uncompressed
and with one thread: 2.8 to 4.7 M msg/s of 100 B, 0.62 of 1000 B.

    python -m benchmarks archive [--megabytes 64] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import surroundings
from benchmarks.decode import payloads, v07_set
from benchmarks.race import OURS, Measurement, compared, laps, rates, show
from consumerd.storage.archives.export import ArchiveExport
from consumerd.storage.archives.options import ExportCompression, ExportFormat, ExportOptions
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import SegmentSource, find_sources
from consumerd.storage.archives.verify import VerifyOptions, verify
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.wire.v07 import Codec, decode_batch
from consumerd.wire.v08.records import RecordCodec, encode_record_batch

NAME = "archive"
#: What all else stands beside: reading and decoding alone.
LIMIT = "decode"
#: Messages of a batch: as a busy producer makes them, and as one that waits for each message.
BATCHES = {"150 in a batch": 150, "1 in a batch": 1}
CASES = [
    ("plain 100 B", 100, Codec.NONE),
    ("plain 1000 B", 1000, Codec.NONE),
    ("gzip 100 B", 100, Codec.GZIP),
    ("snappy 100 B", 100, Codec.SNAPPY),
]
EXPORTS: dict[str, dict[str, Any]] = {
    "ndjson": {},
    "ndjson base64": {"base64": True},
    "ndjson zstd": {"compression": ExportCompression.ZSTD},
    "parquet": {"format": ExportFormat.PARQUET, "compression": ExportCompression.ZSTD},
    "parquet snappy": {"format": ExportFormat.PARQUET, "compression": ExportCompression.SNAPPY},
    "parquet none": {"format": ExportFormat.PARQUET, "compression": ExportCompression.NONE},
}


def write(folder: Path, size: int, codec: Codec, megabytes: int) -> int:
    """Two segments of together about so many megabytes; returns the number of messages."""
    values = payloads(size)
    one = v07_set(values, codec)
    sets = max(1, (megabytes << 20) // len(one) // 2)
    folder.mkdir()
    for number in range(2):
        with (folder / f"{number * sets * len(one):020d}.kafka").open("wb") as file:
            for _ in range(sets):
                file.write(one)
    return 2 * sets * len(values)


def decode(folder: Path) -> int:
    """Everything as payloads, a window of a megabyte at a time, as a consumer gets it."""
    count = 0
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            offset, rest = int(path.stem), b""
            while fresh := file.read(1 << 20):
                batch = decode_batch(rest + fresh, offset)
                rest = (rest + fresh)[batch.next_offset - offset :]
                offset = batch.next_offset
                count += len(batch)
    return count


def write_log(folder: Path, size: int, codec: RecordCodec, megabytes: int, together: int) -> int:
    """A segment of about so many megabytes, with batches of `together` messages; returns the number of messages."""
    values = payloads(size)[:together]
    folder.mkdir()
    count = written = 0
    with (folder / f"{0:020d}.log").open("wb") as file:
        while written < megabytes << 20:
            one = encode_record_batch(
                values, codec=codec, base_offset=count, timestamps=1_700_000_000_000, leader_epoch=1
            )
            count += together
            written += file.write(one)
    return count


def decode_log(folder: Path) -> int:
    """Every record of the segment, as batches of one kind are decoded together."""
    (path,) = folder.iterdir()
    with path.open("rb", buffering=0) as file:
        items = list(read_batches(file, 0, together=True))
    assert all(isinstance(item, StoredBatch) for item in items)
    return sum(len(item.records) for item in items if isinstance(item, StoredBatch))


def export(sources: list[SegmentSource], out: Path, options: dict[str, Any]) -> int:
    shutil.rmtree(out, ignore_errors=True)
    run = ArchiveExport(
        sources,
        out,
        ExportOptions(broker=0, **options),
        workers=1,
        progress=NoProgress(),
        stop=StopFlag(),
        monotonic=time.monotonic,
    )
    return run.run().rows


def measure(megabytes: int, rounds: int, root: Path) -> list[Measurement]:
    results: list[Measurement] = []
    for case, size, codec in CASES:
        folder = root / f"{codec.name}{size}-0"
        count = write(folder, size, codec, megabytes)
        results += _measure_one(case, folder, count, decode, rounds, EXPORTS)
    for kind, together in BATCHES.items():
        for codec_08 in (RecordCodec.NONE, RecordCodec.ZSTD):
            folder = root / f"{codec_08.name}{together}-0"
            count = write_log(folder, 100, codec_08, megabytes, together)
            case = f".log {'plain' if codec_08 is RecordCodec.NONE else 'zstd'} 100 B, {kind}"
            exports = {"parquet": EXPORTS["parquet"]}
            results += _measure_one(case, folder, count, decode_log, rounds, exports, shallow=True)
    return results


def _measure_one(
    case: str,
    folder: Path,
    count: int,
    decoded: Callable[[Path], int],
    rounds: int,
    exports: dict[str, dict[str, Any]],
    *,
    shallow: bool = False,
) -> list[Measurement]:
    """One case; its folder is removed. `shallow`: also a verification that decodes no records."""
    results: list[Measurement] = []
    total = sum(path.stat().st_size for path in folder.iterdir())
    sources = find_sources([str(folder)])
    check = partial(verify, sources, workers=1, progress=NoProgress(), stop=StopFlag())
    checked = check(VerifyOptions())
    assert checked.is_sound(allow_torn_tail=False)
    assert sum(partition.messages for partition in checked.partitions) == decoded(folder) == count
    subjects: dict[str, Callable[[], object]] = {
        LIMIT: partial(decoded, folder),
        "verify": partial(check, VerifyOptions()),
    }
    if shallow:
        subjects["verify --shallow"] = partial(check, VerifyOptions(shallow=True))
    for name, options in exports.items():
        subjects[name] = partial(export, sources, folder.parent / "out", options)
    seconds = laps(subjects, rounds, time.process_time)
    figures, messages = rates(seconds, total / 1e6), rates(seconds, count / 1e6)
    for name in subjects:
        named = f"{case}, {name}, {surroundings.codec()}"
        if name != LIMIT:
            results += compared(NAME, named, "MB/cpu-s", figures, ours=name, others=[LIMIT])
        results.append(Measurement(NAME, named, OURS, statistics.median(messages[name]), "M msg/cpu-s", rounds=rounds))
    shutil.rmtree(folder)
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks archive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts (default: 3)")
    parser.add_argument("--megabytes", type=int, default=64, help="size of the archive (default: 64)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        results = measure(options.megabytes, options.rounds, Path(root))
    return show(results, {}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
