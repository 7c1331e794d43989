"""Fetched data to Arrow: `Batch.to_arrow` beside a list of payloads that `pyarrow.array` makes a column of.

Decoding is included, with all CRCs checked. *list* is what a handler does without `to_arrow`: one column, that of the
payloads. *messages* makes all columns that differ between messages, from `Batch.messages`. All decode with the native
codec, in the same rounds, except for *to_arrow, pure codec*. Times are processor time of the one process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow

from benchmarks.decode import payloads, v07_set
from benchmarks.race import Measurement, compared, laps, rates, run_rounds
from benchmarks.records import Rows
from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.wire.v07 import Codec, decode_batch
from consumerd.wire.v08.records import RecordCodec, decode_records

NAME = "arrow"
OURS, LIST, MESSAGES, PURE = "to_arrow", "list", "messages", "to_arrow, pure codec"
#: What the project promises of `to_arrow` (times as fast), by subject, of messages that are not compressed, where the
#: native codec is built.
PROMISES = {LIST: 1.2, MESSAGES: 6.0}
COMPRESSED = "gzip"


def cases() -> dict[str, tuple[int, Callable[[], Batch]]]:
    """By name the number of messages, and what decodes them."""
    values, rows, keyed = payloads(100), Rows(100, keyed=False), Rows(100, keyed=True)
    found: dict[str, tuple[int, Callable[[], Batch]]] = {}
    for name, codec in (("0.7 plain", Codec.NONE), ("0.7 gzip", Codec.GZIP)):
        found[f"{name} 100 B"] = len(values), partial(_v07, v07_set(values, codec))
    for name, each in (("0.8+ batches", rows), ("0.8+ batches, keys of 16 B", keyed)):
        found[f"{name}, 100 B"] = len(values), partial(_v08, each.encoded(2, RecordCodec.NONE))
    return found


def _v07(data: bytes) -> Batch:
    return Batch(TopicPartition("bench", 0, 0), decode_batch(data, 0))


def _v08(data: bytes) -> Batch:
    return Batch(TopicPartition.numbered("bench", 0), decode_records(data, 0))


def to_arrow(codec: native.NativeCodec | None, decode: Callable[[], Batch]) -> Any:
    with native.using(codec):
        return decode().to_arrow()


def from_list(decode: Callable[[], Batch]) -> Any:
    return pyarrow.array(decode().payloads, pyarrow.binary())


def from_messages(decode: Callable[[], Batch]) -> list[Any]:
    _, offsets, indexes, nexts, values, *later = zip(*decode().messages(), strict=True)
    numbers, binary = pyarrow.int64(), pyarrow.binary()
    columns = [pyarrow.array(offsets, numbers), pyarrow.array(indexes, numbers), pyarrow.array(nexts, numbers)]
    if later:
        columns += [pyarrow.array(later[0], binary), pyarrow.array(later[1], numbers)]
    return [*columns, pyarrow.array(values, binary)]


def measure(rounds: int) -> list[Measurement]:
    """All cases, by processor time."""
    results: list[Measurement] = []
    codec = native.codec()
    for case, (count, decode) in cases().items():
        subjects: dict[str, Callable[[], Any]] = {
            OURS: partial(to_arrow, codec, decode),
            LIST: partial(from_list, decode),
            MESSAGES: partial(from_messages, decode),
            PURE: partial(to_arrow, None, decode),
        }
        rows = subjects[OURS]()
        assert rows.equals(subjects[PURE]())
        assert rows.column("payload").equals(subjects[LIST]())
        assert rows.column("payload").equals(subjects[MESSAGES]()[-1])
        figures = rates(laps(subjects, rounds, time.process_time), count / 1e6)
        results += compared(NAME, case, "M msg/cpu-s", figures, ours=OURS)
    return results


def verdict(results: list[Measurement]) -> dict[str, bool]:
    """Each promise as a sentence, and whether it is kept. The pure codec makes none."""
    if native.codec() is None:
        return {}
    found = {}
    for result in results:
        promised = PROMISES.get(result.subject)
        if promised is not None and result.ratio is not None and COMPRESSED not in result.case:
            sentence = f"{result.case}: to_arrow at least {promised}x as fast as {result.subject}: {result.ratio:.2f}x"
            found[sentence] = result.ratio >= promised
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where a promise is broken."""
    return run_rounds(NAME, __doc__ or "", measure, verdict, arguments, rounds=30)


if __name__ == "__main__":
    sys.exit(main())
