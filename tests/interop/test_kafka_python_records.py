"""kafka-python reads the messages and batches that we write, and we read those that it writes, in each format."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from consumerd.wire.v08.records import BatchEnd, RecordCodec, decode_records, encode_message_set, encode_record_batch

FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in RecordCodec if magic == 2 or codec is not RecordCodec.ZSTD
]
COUNT = 300
VALUES = [None if n % 17 == 5 else b"value %d " % n * (n % 40) for n in range(COUNT)]
KEYS = [None if n % 3 else b"key" * (n % 30) for n in range(COUNT)]
TIMES = [1_700_000_000_000 + n * n % 12_345 for n in range(COUNT)]
HEADERS = {n: (("name", b"v%d" % n), ("empty", None)) for n in range(0, COUNT, 7)}


@pytest.fixture(scope="module")
def memory_records(missing: Callable[[str], NoReturn]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what it uses of the standard library
            return importlib.import_module("kafka.record.memory_records")
    except ImportError:
        missing("kafka-python is not installed: the `dev` dependency group has it")


@pytest.fixture(params=FORMATS, ids=lambda found: f"magic {found[0]} {found[1].name.lower()}")
def form(
    request: pytest.FixtureRequest, missing: Callable[[str], NoReturn], memory_records: Any
) -> tuple[int, RecordCodec]:
    magic, codec = request.param
    codecs = importlib.import_module("kafka.codec")
    if not {RecordCodec.LZ4: codecs.has_lz4, RecordCodec.ZSTD: codecs.has_zstd}.get(codec, lambda: True)():
        missing(f"kafka-python has no {codec.name.lower()} on this machine: the `dev` dependency group brings it")
    return magic, codec


def test_kafka_python_reads_our_records(memory_records: Any, form: tuple[int, RecordCodec]) -> None:
    magic, codec = form
    if magic == 2:
        data = encode_record_batch(VALUES, codec=codec, keys=KEYS, timestamps=TIMES, headers=HEADERS, base_offset=50)
    else:
        data = encode_message_set(VALUES, magic=magic, codec=codec, keys=KEYS, timestamps=TIMES, base_offset=50)
    records = memory_records.MemoryRecords(data)
    found = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        found += list(batch)
    assert [record.value for record in found] == VALUES
    assert [record.key for record in found] == KEYS
    assert [record.offset for record in found] == list(range(50, 50 + COUNT))
    if magic:
        assert [record.timestamp for record in found] == TIMES
    if magic == 2:
        assert {n: tuple(record.headers) for n, record in enumerate(found) if record.headers} == HEADERS


def test_reads_records_of_kafka_python(memory_records: Any, form: tuple[int, RecordCodec]) -> None:
    magic, codec = form
    builder = memory_records.MemoryRecordsBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 20)
    for n in range(COUNT):
        headers = list(HEADERS.get(n, ())) if magic == 2 else []
        assert builder.append(timestamp=TIMES[n], key=KEYS[n], value=VALUES[n], headers=headers)
    builder.close()
    found = decode_records(builder.buffer(), 0)
    assert (found.end, found.problem) == (BatchEnd.COMPLETE, None)
    assert (found.payloads, found.keys) == (VALUES, KEYS)
    assert found.timestamps == (TIMES if magic else [-1] * COUNT)
    assert found.headers == (HEADERS if magic == 2 else {})
    assert found.offsets == list(range(COUNT))
