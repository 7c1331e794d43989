"""The rows of an export, and the selection of a run's messages.

A row: topic, broker, partition, offset, index, next_offset, codec, magic, crc_ok, payload, problem, source. The first
five are a message's identity; `offset` is that of the outermost message, `next_offset` the position to commit after it.
"""

from __future__ import annotations

from bisect import bisect_left
from json.encoder import encode_basestring
from typing import NamedTuple, Protocol

from consumerd.storage.log.archive_items import ArchivedRun, Flaw, IndexedMessages
from consumerd.storage.log.archive_names import SegmentName
from consumerd.wire.v07 import Codec


class RowWriter(Protocol):
    """Writes the rows of one segment to one file, in their order."""

    def add_run(self, run: ArchivedRun) -> None: ...

    def add_indexed(self, messages: IndexedMessages) -> None: ...

    def add_flaw(self, flaw: Flaw) -> None: ...

    def finish(self) -> None:
        """Write the end of the file."""
        ...


def is_within(messages: ArchivedRun | IndexedMessages, first: int, last: int | None) -> bool:
    """Whether all of them have outermost offsets of at least `first` and below `last`."""
    return messages.offset >= first and (last is None or messages.next_offset <= last)


def within(run: ArchivedRun, first: int, last: int | None) -> ArchivedRun | None:
    """The messages of `run` whose outermost offset is at least `first` and below `last`."""
    if is_within(run, first, last):
        return run
    if run.codec is not Codec.NONE:
        return run if first <= run.offset and (last is None or run.offset < last) else None
    offsets = run.boundaries()
    low = bisect_left(offsets, first, hi=len(offsets) - 1)
    high = len(offsets) - 1 if last is None else bisect_left(offsets, last, hi=len(offsets) - 1)
    if low >= high:
        return None
    return ArchivedRun(offsets[low], offsets[high], run.magic, run.codec, run.payloads[low:high])


def json_frame(origin: RowOrigin) -> tuple[str, str]:
    """The members of a row as JSON that all rows of a segment have: those before the offset's value, and the last."""
    name, source = origin.name, encode_basestring(origin.source)
    broker, topic = "null" if name.broker is None else name.broker, encode_basestring(name.topic)
    head = f'{{"topic":{topic},"broker":{broker},"partition":{name.partition},"offset":'
    return head, f',"source":{source}}}\n'


class RowOrigin(NamedTuple):
    """The values that all rows of a segment have in common."""

    name: SegmentName
    source: str
