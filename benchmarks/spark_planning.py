"""What the driver does for each partition before a task of Spark's runs: listing, planning, cutting, offsets.

`plan` is the whole of a batch's planning, with one segment file per split; `look` is what a stream repeats at each
trigger; `cut` finds one boundary inside a segment, for `maxSplitBytes` and `maxBytesPerTrigger`. Files are small or
sparse in what is read of them, and lie in the page cache; a network file system adds its own time per file and cut.

    python -m benchmarks spark_planning [--partitions 1000] [--segments 4] [--megabytes 256] [--json]
"""

from __future__ import annotations

import argparse
import json
import pickle
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.decode import payloads, v07_set
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.offsets import format_offsets
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.wire.v07 import Codec

NAME = "spark_planning"


def measure(partitions: int, segments: int, megabytes: int, root: Path) -> dict[str, float]:
    """Seconds, bytes and counts by name."""
    values = v07_set(payloads(137), Codec.NONE)
    small = values[: 157 * 100]
    many = root / "many"
    for partition in range(partitions):
        folder = many / f"topic{partition % 10}-{partition // 10}"
        folder.mkdir(parents=True)
        for number in range(segments):
            (folder / f"{number * len(small):020d}.kafka").write_bytes(small)
    large = root / "large" / "topic-0" / f"{0:020d}.kafka"
    large.parent.mkdir(parents=True)
    with large.open("wb") as file:
        for _ in range(max(1, (megabytes << 20) // len(values))):
            file.write(values)
    options = {"subscribePattern": "topic.*"}
    found: dict[str, float] = {}

    read = read_options({"path": str(many), **options})
    began = time.perf_counter()
    splits = plan_batch(read, Pruning())
    found["plan seconds"] = time.perf_counter() - began
    found["splits"] = len(splits)
    found["bytes per pickled split"] = sum(len(pickle.dumps(split)) for split in splits) / len(splits)

    follower = StreamPlanner(read)
    ends = follower.latest({}, None)
    found["bytes of offsets"] = len(format_offsets(ends).encode())
    began = time.perf_counter()
    follower.latest(ends, None)
    found["look seconds"] = time.perf_counter() - began

    one = read_options({"path": str(large.parent.parent), **options})
    (log,) = open_origin(one).snapshot().values()
    began = time.perf_counter()
    cuts = len(log.splits(log.start, log.end, 16 << 20)) - 1
    found["cut seconds"] = (time.perf_counter() - began) / cuts
    found["cuts"] = cuts
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="machine-readable result")
    args = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="consumerd-spark-planning-"))
    try:
        found = measure(args.partitions, args.segments, args.megabytes, root)
    finally:
        shutil.rmtree(root)
    if args.json:
        print(json.dumps({"benchmark": NAME, "machine": platform.machine(), **found}))
        return 0
    per = args.partitions * args.segments
    print(f"{args.partitions} partitions with {args.segments} segments each: {found['splits']:.0f} splits")
    print(f"plan   {found['plan seconds']:8.3f} s   {found['plan seconds'] / per * 1e6:6.0f} us per segment")
    print(f"look   {found['look seconds']:8.3f} s   {found['look seconds'] / per * 1e6:6.0f} us per segment")
    print(f"cut    {found['cut seconds']:8.3f} s   each")
    print(f"split  {found['bytes per pickled split']:8.0f} bytes pickled")
    print(f"offset {found['bytes of offsets'] / args.partitions:8.1f} bytes of JSON per partition")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
