"""Decoding message sets: ours (0.7 format) beside aiokafka's and kafka-python's decoders of the next format, v1.

Every decoder gets the same payloads in its own format and returns them as a list of `bytes`, all CRCs checked. v1 has
24 bytes more per message than 0.7; ratios count messages, not bytes. Inside wrappers the peers do not check CRCs, we
do. The peers are optional: the `bench` dependency group. Where the native codec is built, each case is there three
times, of the same rounds: as a list of payloads, with payloads that nobody asks for, and by the pure codec.
"""

from __future__ import annotations

import importlib
import random
import struct
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.race import Measurement, compared, laps, rates, run_rounds
from benchmarks.surroundings import NATIVE, PURE
from consumerd.base import native
from consumerd.wire import compress
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

NAME = "decode"
#: How ours decodes, beside the pure and the native codec.
INDEX = f"{NATIVE}, payloads not asked for"
#: What the project promises (times as fast as the peer), by case. Those of the native codec hold where it is built.
PROMISES = {
    ("plain 100 B", PURE): {"aiokafka": 1.4, "kafka-python": 5.0},
    ("plain 100 B", NATIVE): {"aiokafka": 5.0},
    ("plain 100 B", INDEX): {"aiokafka": 15.0},
    ("gzip 100 B", PURE): {"aiokafka": 1.2},
    ("gzip 100 B", NATIVE): {"aiokafka": 2.5},
    ("snappy 100 B", NATIVE): {"aiokafka": 1.3},
}
PEERS = {"aiokafka": "aiokafka.record.memory_records", "kafka-python": "kafka.record.memory_records"}
#: Bytes of payload per set: what one fetch brings.
SET_BYTES = 1 << 20
PER_WRAPPER = 200
_V1_CODECS = {Codec.NONE: 0, Codec.GZIP: 1, Codec.SNAPPY: 2}


def payloads(size: int) -> list[bytes]:
    """Text-like payloads of about `size` bytes (within 10 %), 1 MiB in all."""
    rng = random.Random(size)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(500)]
    found = []
    for number in range(max(20, min(20_000, SET_BYTES // size))):
        length = max(1, round(size * rng.uniform(0.9, 1.1)))
        text = b"%d " % (1_300_000_000 + number)
        while len(text) < length:
            text += rng.choice(words) + b" "
        found.append(text[:length])
    return found


def v1_message(offset: int, value: bytes, codec: Codec = Codec.NONE) -> bytes:
    """One message of format v1 (the guide of 0.10.1, "Message sets"): offset, size, CRC, magic, attributes, time, key,
    value.
    """
    body = struct.pack(">bbqii", 1, _V1_CODECS[codec], 1_300_000_000_000, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def v1_set(values: list[bytes], codec: Codec) -> bytes:
    """The same payloads as a set of format v1, with wrappers of as many messages as ours have."""
    if codec is Codec.NONE:
        return b"".join(v1_message(offset, value) for offset, value in enumerate(values))
    wrappers = []
    for start in range(0, len(values), PER_WRAPPER):
        chunk = values[start : start + PER_WRAPPER]
        inner = b"".join(v1_message(offset, value) for offset, value in enumerate(chunk))
        wrappers.append(v1_message(start + len(chunk) - 1, compress(codec, inner), codec))
    return b"".join(wrappers)


def v07_set(values: list[bytes], codec: Codec) -> bytes:
    """The payloads in our format."""
    if codec is Codec.NONE:
        return encode_message_set(values)
    starts = range(0, len(values), PER_WRAPPER)
    return b"".join(encode_message_set(values[start : start + PER_WRAPPER], codec=codec) for start in starts)


def peer(module: str) -> Callable[[bytes], list[bytes]]:
    """A peer's decoder. Raises ImportError where it is not installed."""
    records: Any = importlib.import_module(module).MemoryRecords

    def decode(data: bytes) -> list[bytes]:
        found: list[bytes] = []
        add = found.append
        batches = records(data)
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise ValueError("a peer found a wrong CRC")
            for record in batch:
                add(record.value)
        return found

    return decode


def peers() -> dict[str, Callable[[bytes], list[bytes]]]:
    """The peers that are installed; says on standard error which are not, or not compiled."""
    found = {}
    for name, module in PEERS.items():
        try:
            found[name] = peer(module)
        except ImportError as error:
            print(f"{name} is not installed, so it is left out: pip install --group bench ({error})", file=sys.stderr)
            continue
        if name == "aiokafka" and not importlib.import_module(module).MemoryRecords.__module__.startswith(
            "aiokafka.record._crecords"
        ):
            print("aiokafka runs without its Cython extension: its figures are not the ones to beat", file=sys.stderr)
    return found


def measure(rounds: int) -> list[Measurement]:
    """All cases, by processor time: a decoder waits for nothing."""
    others = peers()
    results: list[Measurement] = []
    cases = [(f"plain {size} B", size, Codec.NONE) for size in (10, 100, 1000)]
    cases += [("gzip 100 B", 100, Codec.GZIP), ("snappy 100 B", 100, Codec.SNAPPY)]
    for case, size, codec in cases:
        values = payloads(size)
        ours, theirs = v07_set(values, codec), v1_set(values, codec)
        assert decode_batch(ours, 0).payloads == values
        subjects: dict[str, Callable[[], object]] = {way: partial(decode, ours) for way, decode in ways().items()}
        for name, decode in others.items():
            assert decode(theirs) == values, name
            subjects[name] = partial(decode, theirs)
        figures = rates(laps(subjects, rounds, time.process_time), len(values) / 1e6)
        for way in ways():
            results += compared(NAME, f"{case}, {way}", "M msg/cpu-s", figures, ours=way, others=others)
    return results


def ways() -> dict[str, Callable[[bytes], object]]:
    """What is measured of ours."""
    codec = native.codec()
    found: dict[str, Callable[[bytes], object]] = {PURE: partial(decode_payloads, None)}
    if codec is not None:
        found |= {NATIVE: partial(decode_payloads, codec), INDEX: partial(decode_batch, offset=0)}
    return found


def decode_payloads(codec: native.NativeCodec | None, data: bytes) -> Sequence[bytes]:
    """All payloads as a list."""
    with native.using(codec):
        return decode_batch(data, 0).payloads


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise that could be looked at, as a sentence, and whether it is kept."""
    found = {}
    for result in results:
        case, _, way = result.case.partition(", ")
        promised = PROMISES.get((case, way), {}).get(result.subject)
        if promised is not None and result.ratio is not None:
            sentence = f"{result.case}: at least {promised}x as fast as {result.subject}: {result.ratio:.2f}x"
            found[sentence] = result.ratio >= promised
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where a promise is broken."""
    return run_rounds(NAME, __doc__ or "", measure, verdict, arguments, rounds=30)


if __name__ == "__main__":
    sys.exit(main())
