"""Reading a segment front to back: batches and messages of magic 0, 1 and 2, and the flaws between them.

Strategy: a window slides over a stream that need not seek. What stands at a position is judged by its header; a batch
whose length can be followed is decoded as a consumer would, and one that cannot be decoded is one flaw, after which
reading continues. Where no header can be followed, the search goes on byte by byte for the next *proven* batch: one
that decodes, CRC included, and has an offset that may follow; a message of magic 0 or 1 must be followed by another
intact one, too, since it may be a part of a compressed one. Batches and flaws tile the segment exactly.

Who needs no single batches gets those of one kind together (`consumerd.storage.segments.kinds`), which is as fast for
small batches as for large ones; where anything is wrong with them, each of them is judged by itself. Who needs no
records gets the number of those that are sound (`consumerd.storage.segments.checking`).

What a broker checks when it recovers a log is checked here: CRC, lengths, offsets that grow, leader epochs that do not
go back. A batch with a wrong order is readable, so it comes with its `problem`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from consumerd.storage.log.archive_items import ByteStream, FlawKind, unread
from consumerd.storage.log.archive_resync import BELIEVED_AFTER, FREE_WORK, WORK_PER_BYTE, WORK_PER_PLACE
from consumerd.storage.log.errors import DamagedArchiveError
from consumerd.storage.segments.checking import CheckedBatches, sound_batches
from consumerd.storage.segments.kinds import MAGIC_AT, MAX_OFFSET, OFFSET_AND_LENGTH, OVERHEAD, same_kind
from consumerd.wire.crc import crc32
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v08.records import BatchEnd, RecordCodec, RecordSet, TimestampType, decode_records
from consumerd.wire.v08.records.codecs import CODEC_MASK
from consumerd.wire.v08.records.columns import RecordColumns
from consumerd.wire.v08.records.message_set import timestamp_type
from consumerd.wire.v08.records.record_batch import CRC_END, HEADER, MAGIC, MIN_LENGTH, read_header, read_records

#: Bytes requested from the stream at once.
WINDOW: Final = 1 << 20
#: The position of the attributes' second byte in a batch of magic 2.
_ATTRIBUTES_AT: Final = 22
#: The least values of the length field, by magic.
_LEAST: Final = (14, 22, MIN_LENGTH)
_MARKER = struct.Struct(">hh")
_MARKERS: Final = {0: "abort", 1: "commit", 2: "leader-change", 3: "snapshot-header", 4: "snapshot-footer"}
_LARGEST_CODEC: Final = max(RecordCodec)
#: Where a batch may begin: an offset and a length that are not negative, and a magic of 0 to 2.
_PLACE = re.compile(rb"(?=[\0-\x7f][\0-\xff]{7}[\0-\x7f][\0-\xff]{7}[\0-\2])")
#: Bytes of batches that are read together: plain ones, and compressed ones, which become larger.
_TOGETHER: Final = 1 << 20
_TOGETHER_COMPRESSED: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class BatchProducer:
    """Who wrote a batch of an idempotent or transactional producer."""

    id: int
    epoch: int
    sequence: int


class StoredBatch(NamedTuple):
    """A batch of magic 2, or an outer message of magic 0 or 1, with its records.

    `position` and `size` in bytes of the segment. `offset` and `last_offset` are those of its first and last record
    as the format has them; compaction may have removed the records. `control` names what a control batch says: commit,
    abort, ...; None for others. `problem` is a clause where a readable batch should not be where it is.

    `batches` of one kind may be read together: `max_timestamp` is None then, and `producer` is that of a transaction.
    `delete_horizon`: when compaction removes tombstones and markers, in milliseconds; None where it has not begun to.
    """

    position: int
    size: int
    offset: int
    last_offset: int
    magic: int
    codec: RecordCodec
    timestamp_type: TimestampType
    #: Milliseconds; None for magic 0, and where there is none.
    max_timestamp: int | None
    leader_epoch: int | None
    producer: BatchProducer | None
    transactional: bool
    control: str | None
    records: RecordSet
    problem: tuple[FlawKind, str] | None = None
    batches: int = 1
    delete_horizon: int | None = None

    @property
    def next_offset(self) -> int:
        """The offset to read next."""
        return self.last_offset + 1


class SegmentFlaw(NamedTuple):
    """A stretch without a readable batch. `offset`: the least that may follow; `problem`: a clause with the place.

    `raw`: the bytes of a whole batch that cannot be read; empty for anything else.
    """

    kind: FlawKind
    position: int
    size: int
    offset: int
    problem: str
    raw: bytes = b""


def check_batches(
    stream: ByteStream, start: int, *, limits: DecodeLimits = DEFAULT_LIMITS, window: int = WINDOW, shallow: bool
) -> Iterator[CheckedBatches | StoredBatch | SegmentFlaw]:
    """Check everything in the segment that starts at offset `start`, in order and without a gap, as `read_batches`.

    `shallow`: believe the headers of batches whose CRC is right, and decode no records.
    """
    return _Reader(stream, start, limits, window, together=True, shallow=shallow).check()


def read_batches(
    stream: ByteStream,
    start: int,
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    window: int = WINDOW,
    together: bool = False,
    position: int = 0,
) -> Iterator[StoredBatch | SegmentFlaw]:
    """Read everything in the segment that starts at offset `start`, in order and without a gap.

    `position`: that of the stream's first byte in the segment, where the batch of offset `start` stands. `together`:
    sound batches of one kind are one `StoredBatch`, as many as are in the window. Never raises for the data. Errors of
    the stream are raised, except DamagedArchiveError, which is a flaw.
    """
    reader = _Reader(stream, start, limits, window, together=together)
    reader.base = position
    return reader.read()


class _Reader:
    """One pass over one segment. `data[at:]` is read and not yet used; `base` is the position of `data[0]`."""

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        limits: DecodeLimits,
        window: int,
        *,
        together: bool,
        shallow: bool = False,
    ) -> None:
        self.stream = stream
        self.limits = limits
        self.window = window
        self.data = b""
        self.at = 0
        self.base = 0
        self.ended = False
        #: The sentence of a stream that ended too early.
        self.damage: str | None = None
        #: The least offset, and the least leader epoch, that may follow.
        self.least = start
        self.epoch = -1
        self.work = FREE_WORK
        self.together = together
        self.shallow = shallow
        #: The position up to which each batch is judged by itself.
        self.alone_until = 0

    def read(self) -> Iterator[StoredBatch | SegmentFlaw]:
        while self._has(1):
            item = self._next()
            yield item
            self.at = item.position + item.size - self.base
        yield from self._end()

    def check(self) -> Iterator[CheckedBatches | StoredBatch | SegmentFlaw]:
        while self._has(1):
            item = self._sound() or self._next()
            yield item
            self.at = item.position + item.size - self.base
        yield from self._end()

    def _end(self) -> Iterator[SegmentFlaw]:
        if self.damage is not None:
            yield SegmentFlaw(FlawKind.ARCHIVE, self.base + self.at, 0, self.least, self.damage)

    def _next(self) -> StoredBatch | SegmentFlaw:
        if self.together and self.base + self.at >= self.alone_until and (joined := self._joined()) is not None:
            self._advance(joined)
            return joined
        if not self._has(MAGIC_AT + 1):
            return self._zeros() or self._torn(None)
        size = self._size_of(self.data, self.at)
        if size is None:
            here = self.base + self.at
            return self._zeros() or self._nonsense(here, self._find(here + 1))
        if not self._has(size):
            return self._cut_off(size)
        read = self._decoded(self.data[self.at : self.at + size], self.base + self.at)
        if isinstance(read, StoredBatch):
            self._advance(read)
            return read
        here = self.base + self.at
        if self._is_followed(size):
            return read
        found = self._find(here + 1, here + size)
        return read if found is None else self._nonsense(here, found)

    def _advance(self, read: StoredBatch) -> None:
        self.least = max(self.least, read.next_offset)
        self.epoch = max(self.epoch, -1 if read.leader_epoch is None else read.leader_epoch)

    # -- the window

    def _has(self, count: int) -> bool:
        """Whether `count` bytes stand at the position; reads on until they do."""
        while len(self.data) - self.at < count and not self.ended:
            pieces = self._rest()
            wanted = max(self.window, count - sum(map(len, pieces)))
            self.base += self.at
            self.at, self.data = 0, b""  # its memory is that of the next window, which the cache has
            try:
                while wanted > 0 and (fresh := self.stream.read(wanted)):
                    pieces.append(fresh)
                    wanted -= len(fresh)
            except DamagedArchiveError as error:
                self.damage = str(error)
            self.ended = wanted > 0
            self.data = b"".join(pieces)
        return len(self.data) - self.at >= count

    def _rest(self) -> list[bytes]:
        """What is read and not yet used; nothing where the stream gives that again, which spares a copy of the next
        window.
        """
        rest = self.data[self.at :]
        if not rest or (len(rest) < self.window // 4 and unread(self.stream, len(rest))):
            return []
        return [rest]

    # -- batches

    def _size_of(self, data: bytes, at: int = 0) -> int | None:
        """The size of the batch that could begin at `data[at]`; None if none could."""
        return batch_size(data, at, most=self.limits.max_message_bytes)

    def _is_followed(self, size: int) -> bool:
        """Whether lengths lead from the spoiled batch at the position to an intact one, or to the very end.

        Where they do not, its own length may be what is damaged.
        """
        for _ in range(BELIEVED_AFTER):
            if not self._has(size + 1):
                return True
            length = self._size_of(self.data, self.at + size) if self._has(size + MAGIC_AT + 1) else None
            if length is None or not self._has(size + length):
                return False
            if is_intact(self.data[self.at + size : self.at + size + length]):
                return True
            size += length
        return True

    def _sound(self) -> CheckedBatches | None:
        """The sound batches at the position, as many as are read; None if there are none."""
        size = self._size_of(self.data, self.at) if self._has(MAGIC_AT + 1) else None
        if size is None or not self._has(size):
            return None
        found = sound_batches(self.data, self.at, self.least, self.epoch, limits=self.limits, shallow=self.shallow)
        if not found.batches:
            return None
        self.least, self.epoch = found.next_offset, found.last_epoch
        return found._replace(position=self.base + found.position, end=self.base + found.end)

    def _joined(self) -> StoredBatch | None:
        """Whole, sound batches of one kind at the position; None where there are not two of them."""
        compressed = codec_of(self.data, self.at) if len(self.data) - self.at >= HEADER.size else 0
        if compressed > _LARGEST_CODEC:
            return None
        room = _TOGETHER_COMPRESSED if compressed else _TOGETHER
        found = same_kind(self.data, self.at, self.least, self.limits.max_message_bytes, room)
        if found.batches < 2:
            return None
        position, data = self.base + self.at, self.data[self.at : found.end]
        records = decode_records(data, 0, limits=self.limits)
        if records.end is BatchEnd.COMPLETE:
            read = self._stored(data, position, records, alone=False)
            if read.problem is None:
                producer = read.producer if read.transactional else None
                return read._replace(
                    last_offset=found.last_offset, max_timestamp=None, producer=producer, batches=found.batches
                )
        self.alone_until = self.base + found.end
        return None

    def _decoded(self, data: bytes, position: int) -> StoredBatch | SegmentFlaw:
        """What stands at a position, whole; a flaw has the extent of the batch."""
        records = decode_records(data, 0, limits=self.limits)
        if records.end is not BatchEnd.COMPLETE:
            return self._spoiled(data, position, records)
        if (codec := codec_of(data)) > _LARGEST_CODEC:  # of a control batch, which is not decompressed
            problem = f"the batch at position {position} has the unknown codec {codec}"
            return SegmentFlaw(FlawKind.CODEC, position, len(data), self.least, problem, data)
        return self._stored(data, position, records)

    def _stored(self, data: bytes, position: int, records: RecordSet, *, alone: bool = True) -> StoredBatch:
        """What stands at a position, by its header and its records; for several batches, by that of the first."""
        if data[MAGIC_AT] == MAGIC:
            return self._batch(data, position, records)
        offset = OFFSET_AND_LENGTH.unpack_from(data)[0]
        runs = records.runs
        first = runs[0].offsets[0] if runs else offset
        attributes = data[MAGIC_AT + 1]
        stamps = [stamp for stamp in records.timestamps if stamp >= 0] if alone and data[MAGIC_AT] else []
        return StoredBatch(
            position,
            len(data),
            first,
            offset,
            data[MAGIC_AT],
            RecordCodec(attributes & CODEC_MASK),
            timestamp_type(data[MAGIC_AT], attributes),
            max(stamps, default=None),
            None,
            None,
            False,
            None,
            records,
            self._wrong_place(first, None),
        )

    def _batch(self, data: bytes, position: int, records: RecordSet) -> StoredBatch:
        header = read_header(data, 0)
        epoch = header.leader_epoch if header.leader_epoch >= 0 else None
        producer = None
        if header.producer_id >= 0:
            producer = BatchProducer(header.producer_id, header.producer_epoch, header.base_sequence)
        return StoredBatch(
            position,
            len(data),
            header.base_offset,
            header.last_offset,
            MAGIC,
            RecordCodec(header.attributes & CODEC_MASK),
            TimestampType.LOG_APPEND_TIME if header.log_append_time else TimestampType.CREATE_TIME,
            header.max_timestamp if header.max_timestamp >= 0 else None,
            epoch,
            producer,
            header.transactional,
            _control_of(data) if header.control else None,
            records,
            self._wrong_place(header.base_offset, epoch),
            delete_horizon=header.delete_horizon,
        )

    def _wrong_place(self, first: int, epoch: int | None) -> tuple[FlawKind, str] | None:
        if first < self.least:
            return (
                FlawKind.ORDER,
                f"the batch at offset {first} stands where {self.least} is the least that may follow",
            )
        if epoch is not None and epoch < self.epoch:
            return (
                FlawKind.EPOCH,
                f"the batch at offset {first} is of leader epoch {epoch}, after one of {self.epoch}",
            )
        return None

    def _spoiled(self, data: bytes, position: int, records: RecordSet) -> SegmentFlaw:
        kind = FlawKind.WRAPPER if is_intact(data) else FlawKind.CRC
        problem = records.problem or f"the batch at position {position} cannot be read"
        return SegmentFlaw(kind, position, len(data), self.least, problem, data)

    # -- what is not a batch

    def _zeros(self) -> SegmentFlaw | None:
        """Zeros: reserved space, or what a file system gave back empty. None if something else is here."""
        start = self.base + self.at
        if self.data[self.at : self.at + MAGIC_AT].strip(b"\0"):
            return None
        while not self.data[self.at :].strip(b"\0"):
            self.at = max(self.at, len(self.data) - MAGIC_AT)
            if not self._has(len(self.data) - self.at + 1):
                rest = self.base + len(self.data) - start
                problem = (
                    f"the last {rest} bytes are zeros: space that the broker reserved (log.preallocate), or lost when "
                    "the machine stopped"
                )
                return SegmentFlaw(FlawKind.TORN, start, rest, self.least, problem)
        return self._nonsense(start, self._find(max(self.base + self.at, start + 1)))

    def _torn(self, needed: int | None) -> SegmentFlaw:
        position, rest = self.base + self.at, len(self.data) - self.at
        of = " of its header" if needed is None else f" of its {needed}"
        problem = f"the batch at position {position} is torn: the file has {rest} bytes{of}"
        return SegmentFlaw(FlawKind.TORN, position, rest, self.least, problem)

    def _cut_off(self, size: int) -> SegmentFlaw:
        """A batch that is longer than the rest: torn, unless a proven batch follows, which shows its length wrong."""
        here = self.base + self.at
        found = self._find(here + 1, here + len(self.data) - self.at)
        return self._torn(size) if found is None else self._nonsense(here, found)

    def _nonsense(self, start: int, end: int | None) -> SegmentFlaw:
        """Bytes from position `start` to `end`; None: to the end of the segment, which is read now."""
        while end is None and not self.ended:
            self.at = len(self.data)
            self._has(1)
        end = self.base + len(self.data) if end is None else end
        problem = f"{end - start} bytes from position {start} on are not batches"
        return SegmentFlaw(FlawKind.NONSENSE, start, end - start, self.least, problem)

    def _find(self, low: int, high: int | None = None) -> int | None:
        """The first position from `low` on, and below `high`, at which a proven batch begins.

        Without `high` the window moves on: what it leaves behind is nonsense.
        """
        while self.work >= 0:
            data, base = self.data, self.base
            stop = len(data) if high is None else min(len(data), high + MAGIC_AT - base)
            self.work += max(0, stop - (low - base)) * WORK_PER_BYTE
            for match in _PLACE.finditer(data, low - base, stop):
                self.work -= WORK_PER_PLACE
                if self.work < 0:
                    return None
                if self._is_proven(base + match.start()):
                    return base + match.start()
            # Looking at a place may have read on.
            if high is not None or (self.ended and base + stop >= self.base + len(self.data)):
                return None
            low = max(low, base + stop - MAGIC_AT)
            self.at = low - self.base
            self._has(MAGIC_AT + self.window)
        return None

    def _at(self, position: int, size: int) -> bytes | None:
        """The bytes at a position that is not behind the window; None where the segment ends before their end."""
        if not self._has(position + size - self.base - self.at):
            return None
        return self.data[position - self.base : position - self.base + size]

    def _is_proven(self, position: int) -> bool:
        head = self._at(position, MAGIC_AT + 1)
        size = None if head is None else self._size_of(head)
        if head is None or size is None or size > self.work or OFFSET_AND_LENGTH.unpack_from(head)[0] < self.least:
            return False
        self.work -= size
        data = self._at(position, size)
        if data is None or not is_intact(data):
            return False
        read = self._decoded(data, position)
        return isinstance(read, StoredBatch) and (read.magic == MAGIC or self._fits(position + size, read.next_offset))

    def _fits(self, position: int, least: int) -> bool:
        """Whether the end, or an intact batch of at least the offset `least`, stands at `position`.

        A message inside of a compressed one may be stored as it is, but for its offset, which no CRC covers.
        """
        head = self._at(position, MAGIC_AT + 1)
        if head is None:
            return True
        size = self._size_of(head)
        if size is None or OFFSET_AND_LENGTH.unpack_from(head)[0] < least:
            return False
        self.work -= size
        data = self._at(position, size)
        return data is None or is_intact(data)


def batch_size(data: bytes, at: int = 0, *, most: int = DEFAULT_LIMITS.max_message_bytes) -> int | None:
    """The size in bytes of the batch that could begin at `data[at]`, by its header; None if none could.

    `most`: bytes that a message may have.
    """
    if len(data) - at <= MAGIC_AT:
        return None
    offset, size = OFFSET_AND_LENGTH.unpack_from(data, at)
    magic = data[at + MAGIC_AT]
    if not 0 <= offset <= MAX_OFFSET or magic >= len(_LEAST) or not _LEAST[magic] <= size <= most + OVERHEAD:
        return None
    return int(OVERHEAD + size)


def codec_of(data: bytes, at: int = 0) -> int:
    """The number of the compression of the batch or message whose header is at `data[at]`."""
    return data[at + (_ATTRIBUTES_AT if data[at + MAGIC_AT] == MAGIC else MAGIC_AT + 1)] & CODEC_MASK


def is_intact(data: bytes) -> bool:
    """Whether the CRC of a whole batch or message is right."""
    if data[MAGIC_AT] != MAGIC:
        return crc32(data[MAGIC_AT:]) == int.from_bytes(data[OVERHEAD:MAGIC_AT])
    # 2 MiB, with the library of C++: not before the first batch.
    from consumerd.wire.v08.records.crc32c import crc32c  # noqa: PLC0415

    return len(data) >= HEADER.size and crc32c(data[CRC_END:]) == read_header(data, 0).crc


def _control_of(data: bytes) -> str:
    """What a control batch says: the second number of its record's key."""
    columns = RecordColumns()
    try:
        read_records(data, HEADER.size, len(data), read_header(data, 0), columns)
    except CorruptMessageError:
        return "unreadable"
    key = columns.keys[0] if columns.keys else None
    if key is None or len(key) < _MARKER.size:
        return "unreadable"
    number = _MARKER.unpack_from(key)[1]
    return _MARKERS.get(number, f"type {number}")
