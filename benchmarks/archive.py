"""Exporting and verifying segments on one core, beside a plain decode of the same files in the same run.

Files lie in the page cache; everything runs in one process, in turns, best round counts. `decode` reads a file and
decodes it into payloads, without identities or rows: what no export can be faster than. Time is that of the CPU, so
that it is per core and without waiting for the disk. MB/s counts bytes of segments, M msg/s messages. Kafka 0.7.2 has
no export; its high-level consumer, the next best thing, was measured once on a machine of the same kind, uncompressed
and with one thread.

    python -m benchmarks archive [--megabytes 64] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.decode import payloads, v07_set
from benchmarks.race import Measurement, race
from consumerd.archive import (
    ArchiveExport,
    ExportCompression,
    ExportFormat,
    ExportOptions,
    NoProgress,
    SegmentSource,
    StopRequest,
    VerifyOptions,
    find_sources,
    verify,
)
from consumerd.wire.v07 import Codec, decode_batch

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "archive"
#: Million messages per second of Kafka 0.7.2's high-level consumer, by case.
KAFKA_072 = {"plain 100 B": (2.8, 4.7), "plain 1000 B": (0.62, 0.62)}
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


def export(sources: list[SegmentSource], out: Path, options: dict[str, Any]) -> int:
    shutil.rmtree(out, ignore_errors=True)
    run = ArchiveExport(
        sources,
        out,
        ExportOptions(broker=0, **options),
        workers=1,
        progress=NoProgress(),
        stop=StopRequest(),
        monotonic=time.monotonic,
    )
    return run.run().rows


def measure(megabytes: int, rounds: int, root: Path) -> list[Measurement]:
    results: list[Measurement] = []
    for case, size, codec in CASES:
        folder = root / f"{codec.name}{size}-0"
        count = write(folder, size, codec, megabytes)
        total = sum(path.stat().st_size for path in folder.iterdir())
        sources = find_sources([str(folder)])
        checked = verify(sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopRequest())
        assert checked.is_sound(allow_torn_tail=False)
        assert sum(partition.messages for partition in checked.partitions) == decode(folder) == count
        subjects: dict[str, Callable[[], object]] = {
            "decode": partial(decode, folder),
            "verify": partial(verify, sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopRequest()),
        }
        for name, options in EXPORTS.items():
            subjects[name] = partial(export, sources, root / "out", options)
        best = race(subjects, rounds, time.process_time)
        for name, seconds in best.items():
            ratio = None if name == "decode" else best["decode"] / seconds
            results.append(Measurement(NAME, case, name, total / seconds / 1e6, "MB/s", ratio))
            results.append(Measurement(NAME, case, name, count / seconds / 1e6, "M msg/s"))
        shutil.rmtree(folder)
    return results


def lines(results: list[Measurement]) -> list[str]:
    """A line per subject: MB/s, M msg/s, share of the plain decode's speed."""
    found = []
    case = None
    for rate, messages in zip(results[::2], results[1::2], strict=True):
        if rate.case != case:
            case = rate.case
            found.append(f"{NAME}: {case}")
            if case in KAFKA_072:
                low, high = KAFKA_072[case]
                found.append(f"  {'0.7.2 consumer':<16}{'':>8}      {low:>8.2f} to {high:.2f} M msg/s (measured once)")
        share = "" if rate.ratio is None else f"   {rate.ratio:.2f} of decode"
        found.append(f"  {rate.subject:<16}{rate.value:>8.1f} MB/s {messages.value:>8.2f} M msg/s{share}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print lines or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks archive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: 3)")
    parser.add_argument("--megabytes", type=int, default=64, help="size of the archive (default: 64)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        results = measure(options.megabytes, options.rounds, Path(root))
    if options.json:
        about = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({**about, "measurements": [result.as_json() for result in results]}))
    else:
        print("\n".join(lines(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
