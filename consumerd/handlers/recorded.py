"""Messages from files in place of a cluster, for trying a handler: lines, records as `print` writes them, segments."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import Any, BinaryIO, Final

from consumerd.base.errors import CorruptDataError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers.batching import cut
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.messages import Batch, KeyedMessage, Message, payload_size
from consumerd.handlers.sparse_content import SparseContent
from consumerd.storage.archives.dumped import (
    DeletedSegment,
    DumpedSegment,
    find_dumped,
    find_uncommitted,
    open_dumped,
)
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.dump import read_entries
from consumerd.storage.segments.batches import StoredBatch, read_batches
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.transactions import UncommittedRanges

#: The partition that lines of text are attributed to.
LINES: Final = TopicPartition("lines", 0, 0)
_MAX_OFFSET: Final = (1 << 63) - 1
_COUNT: Final = 1000
_BYTES: Final = 1 << 20


def line_messages(file: BinaryIO) -> Iterator[Message]:
    """A message for each line, without its newline; offsets are those of the bytes."""
    offset = 0
    for line in file:
        following = offset + len(line)
        yield Message(LINES, offset, 0, following, line.removesuffix(b"\n"))
        offset = following


def record_messages(file: BinaryIO) -> Iterator[Message | KeyedMessage]:
    """The messages of NDJSON as the handler `print` writes it. Raises CorruptDataError for other lines."""
    for number, line in enumerate(file, 1):
        try:
            yield _record(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptDataError(
                f"line {number} is not a record as the handler `print` writes it ({type(error).__name__}: {error})."
            ) from error


def segment_messages(
    path: str, topic: str, number: int, *, on_deleted: Callable[[str], object], committed: bool = False
) -> Iterator[Message | KeyedMessage]:
    """The messages of the segments of one partition, of either dialect, in the order of their files.

    `committed`: without those of transactions that were not committed. The torn end of the last segment is left out,
    as a broker since 0.8 does when it starts. Where a running broker deletes segments before they are read, the next
    one follows, and a sentence that names the offsets is passed to `on_deleted`. Raises CorruptDataError for anything
    else that cannot be read, NotFoundError, StorageError.
    """
    found = find_dumped([path])
    left_out = find_uncommitted(found) if committed else {}
    cut = ""
    for segment in _present(open_dumped(found), on_deleted):
        if cut:
            raise CorruptDataError(cut)
        if not isinstance(segment, DumpedSegment):
            raise CorruptDataError(f"{segment.problem}.")
        if segment.dialect is SegmentDialect.V07:
            yield from _old_messages(segment, TopicPartition(topic, 0, number))
            continue
        uncommitted = left_out.get(segment.folder, UncommittedRanges())
        for item in read_batches(segment.stream, segment.start):
            if isinstance(item, StoredBatch):
                if item.control is None and not uncommitted.has(item):
                    for record in item.records.messages():
                        yield KeyedMessage(TopicPartition.numbered(topic, number), *record)
                continue
            cut = f"{segment.name}: {item.problem}."
            if item.kind is not FlawKind.TORN:
                raise CorruptDataError(cut)


def _present(
    segments: Iterable[DumpedSegment | DeletedSegment | ArchiveFinding], on_deleted: Callable[[str], object]
) -> Iterator[DumpedSegment | ArchiveFinding]:
    """The segments that are there; consecutive deleted ones are one sentence for `on_deleted`."""
    deleted: int | None = None
    for segment in segments:
        if isinstance(segment, DeletedSegment) and segment.start is not None:
            deleted = segment.start if deleted is None else deleted
            continue
        if isinstance(segment, DeletedSegment):  # a tar is nothing that a broker deletes
            raise CorruptDataError(f"{segment.problem}.")
        if deleted is not None and isinstance(segment, DumpedSegment):
            on_deleted(_deletion(f"from offset {deleted} to {segment.start - 1}"))
            deleted = None
        yield segment
    if deleted is not None:
        on_deleted(_deletion(f"from offset {deleted} on"))


def _deletion(offsets: str) -> str:
    return f"the segments {offsets} were deleted since they were found, as a running broker does; they are left out"


def _old_messages(segment: DumpedSegment, partition: TopicPartition) -> Iterator[Message]:
    for entry in read_entries(segment.stream, segment.start):
        if not entry.valid:
            raise CorruptDataError(f"{segment.name}: {entry.problem}.")
        last = len(entry.payloads) - 1
        for index, payload in enumerate(entry.payloads):
            after = entry.next_offset if index == last else entry.offset
            yield Message(partition, entry.offset, index, after, payload)


def batches(messages: Iterable[Message | KeyedMessage], size: HandlerSection) -> Iterator[Batch]:
    """Batches of consecutive messages of one partition, of the size that a configuration asks for."""
    for partition, of_partition in groupby(messages, key=lambda message: message.partition):
        # The leaves of a compressed message share its offset, and stay together.
        whole = (list(outer) for _, outer in groupby(of_partition, key=lambda message: message.offset))
        for piece in in_chunks(whole, _COUNT, _BYTES, _size):
            yield from cut(Batch(partition, SparseContent([*chain.from_iterable(piece)], contiguous=True)), size)


def _size(messages: list[Message | KeyedMessage]) -> int:
    return sum(map(payload_size, messages))


def _record(record: dict[str, Any]) -> Message | KeyedMessage:
    topic, number, offset, index = record["topic"], record["partition"], record["offset"], record["index"]
    broker = record["broker"]
    numbers = [number, offset, index, *([] if broker is None else [broker])]
    if not isinstance(topic, str) or not all(type(each) is int and 0 <= each <= _MAX_OFFSET for each in numbers):
        raise ValueError("an identity is a topic and numbers from 0 on")
    payload = _content(record, "payload")
    if broker is not None:
        if payload is None:
            raise ValueError("payload is null")
        return Message(TopicPartition(topic, broker, number), offset, index, offset, payload)
    headers = tuple(
        (str(name), None if value is None else _decoded(value)) for name, value in record.get("headers", ())
    )
    timestamp = record.get("timestamp", -1)
    if type(timestamp) is not int:
        raise ValueError("timestamp must be a number")
    partition = TopicPartition.numbered(topic, number)
    return KeyedMessage(partition, offset, 0, offset + 1, payload, _content(record, "key"), timestamp, 0, headers)


def _content(record: dict[str, Any], name: str) -> bytes | None:
    if (encoded := record.get(f"{name}_base64")) is not None:
        return _decoded(encoded)
    text = record.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text")
    return text.encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid base64: {error}") from error
