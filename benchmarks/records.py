"""Messages of the 0.8+ protocol: ours beside aiokafka (Cython) and kafka-python, on the same bytes, CRCs checked.

*payloads*: a list of `bytes`, what batch handlers take. *records*: one object per record with offset, timestamp, key,
value and headers, as each library's consumer makes them from a fetch (theirs by the class that their fetchers use).
Where the native codec is built, ours is there with each codec, in the same rounds, and once more with values that
nobody asks for. *encode*: a batch of the same rows as each library's producer builds it. The peers are optional: the
`bench` dependency group.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.decode import INDEX, payloads, peers
from benchmarks.race import Measurement, compared, laps, rates, show
from benchmarks.surroundings import NATIVE, PURE
from consumerd.base import native
from consumerd.wire.v08.records import RecordCodec, decode_records, encode_message_set, encode_record_batch

NAME = "records"
#: What the project promises of consuming in pure Python (times as fast as the peer).
PROMISES = {"aiokafka": 1.0}
#: Records per batch.
PER_BATCH = 200
SIZES = (100, 1000)
TOPIC = "bench"


class Rows:
    """The rows of one case, in batches as a producer sends them."""

    def __init__(self, size: int, *, keyed: bool) -> None:
        rng = random.Random(size)
        self.values = payloads(size)
        self.keys = [rng.randbytes(16) for _ in self.values] if keyed else None
        now, self.times = 1_700_000_000_000, list[int]()
        for _ in self.values:
            now += rng.random() < 0.05
            self.times.append(now)

    def encoded(self, magic: int, codec: RecordCodec = RecordCodec.NONE) -> bytes:
        """All of them, as a broker would store them."""
        return b"".join(
            self.batch(magic, codec, first, self.values[first : first + PER_BATCH])
            for first in range(0, len(self.values), PER_BATCH)
        )

    def batch(self, magic: int, codec: RecordCodec, first: int, values: list[bytes]) -> bytes:
        """One batch or set of `values`, which begin with number `first`."""
        keys = None if self.keys is None else self.keys[first : first + len(values)]
        times = self.times[first : first + len(values)]
        if magic == 2:
            return encode_record_batch(values, codec=codec, keys=keys, timestamps=times, base_offset=first)
        return encode_message_set(values, magic=magic, codec=codec, keys=keys, timestamps=times, base_offset=first)


def our_payloads(codec: native.NativeCodec | None, data: bytes) -> Sequence[bytes | None]:
    """All values as a list."""
    with native.using(codec):
        return decode_records(data, 0).payloads


def our_index(codec: native.NativeCodec | None, data: bytes) -> int:
    """No object for any of the values."""
    with native.using(codec):
        return len(decode_records(data, 0))


def our_records(codec: native.NativeCodec | None, data: bytes) -> list[Any]:
    """All records as objects."""
    with native.using(codec):
        return list(decode_records(data, 0).messages())


def ways(kind: str) -> dict[str, Callable[[bytes], object]]:
    """What is measured of ours."""
    codec = native.codec()
    decode = our_payloads if kind == "payloads" else our_records
    found: dict[str, Callable[[bytes], object]] = {PURE: partial(decode, None)}
    if codec is not None:
        found[NATIVE] = partial(decode, codec)
        if kind == "payloads":
            found[INDEX] = partial(our_index, codec)
    return found


def aiokafka_records() -> Callable[[bytes], list[Any]]:
    """aiokafka's consumer, from the bytes of a partition on. Raises ImportError."""
    fetcher: Any = importlib.import_module("aiokafka.consumer.fetcher")
    memory: Any = importlib.import_module("aiokafka.record.memory_records")
    partition = importlib.import_module("aiokafka.structs").TopicPartition(TOPIC, 0)

    def decode(data: bytes) -> list[Any]:
        # Offsets begin at 0; no deserializers; CRCs checked; READ_UNCOMMITTED.
        return list(fetcher.PartitionRecords(partition, memory.MemoryRecords(data), [], 0, None, None, True, 0))

    return decode


def kafka_python_records() -> Callable[[bytes], list[Any]]:
    """kafka-python's consumer, from the bytes of a partition on. Raises ImportError."""
    fetcher: Any = importlib.import_module("kafka.consumer.fetcher")
    memory: Any = importlib.import_module("kafka.record.memory_records")
    partition = importlib.import_module("kafka.structs").TopicPartition(TOPIC, 0)

    def decode(data: bytes) -> list[Any]:
        found: list[Any] = fetcher.Fetcher.PartitionRecords(0, partition, memory.MemoryRecords(data)).take()
        return found

    return decode


def builder(module: str, magic: int) -> Callable[[Rows], None]:
    """A peer's building of batches of plain rows. Raises ImportError."""
    theirs: Any = importlib.import_module(module)

    def encode(rows: Rows) -> None:
        for first in range(0, len(rows.values), PER_BATCH):
            if magic == 2:
                batch = theirs.DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
            else:
                batch = theirs.LegacyRecordBatchBuilder(magic, 0, 1 << 30)
            values = rows.values[first : first + PER_BATCH]
            for offset, (value, stamp) in enumerate(zip(values, rows.times[first:], strict=False)):
                if magic == 2:
                    batch.append(offset, stamp, None, value, [])
                else:
                    batch.append(offset, stamp, None, value)
            batch.build()

    return encode


def our_encode(codec: native.NativeCodec | None, rows: Rows, magic: int) -> None:
    """What is measured of ours."""
    with native.using(codec):
        for first in range(0, len(rows.values), PER_BATCH):
            rows.batch(magic, RecordCodec.NONE, 0, rows.values[first : first + PER_BATCH])


def available(makers: dict[str, Callable[[], Callable[..., Any]]]) -> dict[str, Callable[..., Any]]:
    """What the peers that are installed give."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def compare(
    case: str,
    count: int,
    ours: Mapping[str, Callable[[], object]],
    others: Mapping[str, Callable[[], object]],
    rounds: int,
) -> list[Measurement]:
    """Millions of records per second of processor time, and how many times as fast ours is, in each way."""
    figures = rates(laps({**ours, **others}, rounds, time.process_time), count / 1e6)
    results = []
    for way in ours:
        results += compared(NAME, f"{case}, {way}", "M rec/cpu-s", figures, ours=way, others=others)
    return results


def measure(rounds: int) -> list[Measurement]:
    """All cases."""
    results: list[Measurement] = []
    listed, objects = peers(), available({"aiokafka": aiokafka_records, "kafka-python": kafka_python_records})
    for size in SIZES:
        for keyed in (False, True):
            rows = Rows(size, keyed=keyed)
            what = f"{size} B{', keys' if keyed else ''}"
            for magic, codec in [
                (2, RecordCodec.NONE),
                (1, RecordCodec.NONE),
                *((2, codec) for codec in RecordCodec if codec),
            ]:
                if codec and (keyed or size != SIZES[0]):
                    continue
                data = rows.encoded(magic, codec)
                case = f"v{magic} {what}{f', {codec.name.lower()}' if codec else ''}"
                for kind, others in (("payloads", listed), ("records", objects)):
                    ours = {way: partial(decode, data) for way, decode in ways(kind).items()}
                    subjects: dict[str, Callable[[], object]] = {}
                    for name, decode in others.items():
                        try:
                            assert len(decode(data)) == len(rows.values), name
                        except Exception as error:
                            print(f"{name} is left out of {case}: {error}", file=sys.stderr)
                        else:
                            subjects[name] = partial(decode, data)
                    results += compare(f"{kind} {case}", len(rows.values), ours, subjects, rounds)
        results += measure_encoding(size, rounds)
    return results


def measure_encoding(size: int, rounds: int) -> list[Measurement]:
    """Building batches of plain rows."""
    results: list[Measurement] = []
    rows = Rows(size, keyed=False)
    for magic, module in ((2, "default_records"), (1, "legacy_records")):
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            "aiokafka": partial(builder, f"aiokafka.record.{module}", magic),
            "kafka-python": partial(builder, f"kafka.record.{module}", magic),
        }
        codec = native.codec()
        ours = {PURE: partial(our_encode, None, rows, magic)}
        if codec is not None:
            ours[NATIVE] = partial(our_encode, codec, rows, magic)
        subjects = {name: partial(encode, rows) for name, encode in available(makers).items()}
        results += compare(f"encode v{magic} {size} B", len(rows.values), ours, subjects, rounds)
    return results


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise that could be looked at, as a sentence, and whether it is kept."""
    found = {}
    for result in results:
        promised = PROMISES.get(result.subject)
        if promised is not None and result.ratio is not None and result.case.startswith("records v2"):
            sentence = f"{result.case}: at least {promised}x as fast as {result.subject}: {result.ratio:.2f}x"
            found[sentence] = result.ratio >= promised
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks records", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=15, help="the median of so many counts (default: 15)")
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the peers' own
        results = measure(options.rounds)
    return show(results, verdict(results), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
