"""The peak memory of a worker for any split: measured in a process of its own, with output written as by Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from consumerd.wire import Codec, compress
from consumerd.wire.v07 import DEFAULT_LIMITS, encode_message, encode_message_set

MB = 1 << 20
#: Reads each file as one split and writes its batches, as workers of Spark's do to their socket.
READER = """
import json, os, re, sys
import pyarrow as pa
import pyspark.worker
from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.v07.reading import read_split
from consumerd.spark.source.split import FileRange, V07Split

request = ReadRequest(tuple(column.name for column in COLUMNS))
found = {}
for path in sys.argv[1:]:
    split = V07Split("topic", 0, 1, 0, os.path.getsize(path), FileRange(path, 0))
    rows = 0
    with open(os.devnull, "wb", 65536) as sink:
        writer = None
        for batch in read_split(split, request):
            writer = writer or pa.RecordBatchStreamWriter(sink, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
    status = open("/proc/self/status").read()
    found[os.path.basename(path)] = rows, int(re.search(r"VmHWM:\\s+([0-9]+) kB", status)[1]) >> 10
print(json.dumps(found))
"""


def test_peak_memory_does_not_depend_on_split_or_message_size(tmp_path: Path) -> None:
    small = encode_message_set([os.urandom(137) for _ in range(7000)])
    with (tmp_path / "plain.kafka").open("wb") as file:
        for _ in range(600):
            file.write(small)
    leaves = DEFAULT_LIMITS.max_decompressed_bytes // 12
    bomb = encode_message(compress(Codec.GZIP, encode_message(b"xy") * leaves), codec=Codec.GZIP)
    (tmp_path / "bomb.kafka").write_bytes(bomb)
    (tmp_path / "large.kafka").write_bytes(encode_message(bytes(DEFAULT_LIMITS.max_message_bytes)))
    paths = [str(tmp_path / f"{name}.kafka") for name in ("plain", "bomb", "large")]
    done = subprocess.run([sys.executable, "-c", READER, *paths], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [rows for rows, _ in found.values()] == [7000 * 600, leaves, 1]
    peaks = {name: peak for name, (_, peak) in found.items()}
    assert peaks["plain.kafka"] < 250, peaks
    assert max(peaks.values()) < 512, peaks
