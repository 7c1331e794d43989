"""A split of logical offsets -> its rows as Arrow batches: what an executor's task does.

Strategy: fetch, decode, cut to the range, again from where the records end, until that is the split's end. Offsets may
have gaps: compaction takes records out, and markers of transactions are none. So what is not there is told from what is
lost by what the broker says: it has the offset and skips on, or it has it no more. A broker that has nothing although
its log goes on may only be slow to find it (a new leader, remote storage), so it is asked some times before
that counts as a gap at the log's end.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from consumerd.spark.source.columns import Mode
from consumerd.spark.source.errors import BrokerReadError, DataLossError, MalformedMessageError, OffsetUnavailableError
from consumerd.spark.source.request import freeze_imports
from consumerd.spark.source.v08.client import KafkaClient
from consumerd.spark.source.v08.rows import V08Rows
from consumerd.wire.v07 import EARLIEST, LATEST, BatchEnd
from consumerd.wire.v08.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from consumerd.spark.source.request import ReadRequest
    from consumerd.spark.source.v08.client import Fetched
    from consumerd.spark.source.v08.split import V08Split
    from consumerd.wire.v08.records import RecordSet

log = logging.getLogger(__name__)

#: Fetches are never larger, unless for one message or batch: what one of them brings is in memory several times.
_LARGEST_FETCH: Final = 8 << 20
#: Empty answers in a row after which a gap is believed. The broker takes its time for each.
_BELIEVED: Final = 5
#: Seconds before an answer that may be another one soon is asked for again.
_PAUSE: Final = 0.2
#: What a message or batch has before what its size counts.
_ROOM: Final = 12
_INT32: Final = (1 << 31) - 1


def read_v08_split(split: V08Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for offsets that are gone where that is to fail, and
    BrokerReadError. Memory: some times a fetch, or the largest message or batch, decompressed.
    """
    freeze_imports()
    reader = _Reader(split, request)
    yield from reader.read()
    if reader.dropped:
        log.warning("dropped %d unreadable ranges of %s", reader.dropped, split)


class _Reader:
    """One pass over one split."""

    def __init__(self, split: V08Split, request: ReadRequest) -> None:
        self.dropped = 0
        self._split = split
        self._request = request
        self._partition = split.topic, split.partition
        self._rows = V08Rows(split, request.columns)
        self._usual = self._size = min(request.fetch_size, _LARGEST_FETCH)
        #: What one message or batch may take of a fetch.
        self._most = min(request.limits.max_message_bytes + _ROOM, _INT32)
        #: Empty answers in a row, and when the first of them came.
        self._empty = 0
        self._empty_since = 0.0

    def read(self) -> Iterator[pa.RecordBatch]:
        split, request = self._split, self._request
        position = split.start
        leaders, largest = {self._partition: split.leader}, max(self._usual, self._most)
        with KafkaClient(split.location, request.timeout, leaders=leaders, largest=largest) as client:
            while position < split.end:
                try:
                    answer = client.fetch(self._partition, position, self._size)
                except OffsetUnavailableError as error:
                    position = self._gone(client, position, error)
                    continue
                records = decode_records(answer.data, position, limits=request.limits, aborted=answer.aborted)
                yield from self._rows.batches(records, split.end)
                if records.next_offset > position:
                    self._size, self._empty = self._usual, 0
                    position = records.next_offset
                elif records.end is BatchEnd.CORRUPT or (records.end is BatchEnd.PARTIAL and self._size >= self._most):
                    following = min(records.resume_offset or position + 1, split.end)
                    yield from self._flaw(position, following, records)
                    position = following
                elif records.end is BatchEnd.PARTIAL:
                    self._size = min(max(records.needed or 0, 2 * self._size), self._most)
                else:
                    position = self._nothing(position, answer)

    def _flaw(self, position: int, following: int, records: RecordSet) -> Iterator[pa.RecordBatch]:
        problem = records.problem or f"a message or batch larger than maxMessageBytes ({self._most - _ROOM})"
        if self._request.mode is Mode.FAILFAST:
            raise MalformedMessageError(
                f"{self._split.topic}/{self._split.partition} cannot be read at offset {position}: {problem}; "
                "read with mode=PERMISSIVE or DROPMALFORMED to continue"
            )
        if self._request.mode is Mode.DROPMALFORMED:
            self.dropped += 1
        else:
            yield self._rows.flaw(position, following, problem)

    def _nothing(self, position: int, answer: Fetched) -> int:
        """The broker has the offset, and nothing from there on: where to go on."""
        if answer.throttled:  # the client is silent for as long as the broker wants
            return position
        now = time.monotonic()
        self._empty += 1
        if self._empty == 1:
            self._empty_since = now
        end = self._split.end
        if answer.reach >= end:
            if self._empty >= _BELIEVED:
                log.info("%s has nothing from %d to %d", self._split, position, end)
                return end
        elif now - self._empty_since > self._request.timeout:
            self._lost(position, end, f"the log ends at {answer.reach} now")
            return end
        time.sleep(_PAUSE)
        return position

    def _gone(self, client: KafkaClient, position: int, error: OffsetUnavailableError) -> int:
        """The broker does not have the offset: where to go on. Raises DataLossError where that is to fail."""
        end = self._split.end
        first, last = (client.offsets([self._partition], when)[self._partition] for when in (EARLIEST, LATEST))
        if first is not None and position < first:
            following = min(first, end)
            self._lost(position, following, "the start of the log was deleted after the read was planned")
            return following
        if last is not None and position > last:
            self._lost(position, end, f"the log ends at {last} now")
            return end
        self._empty += 1  # it has it after all
        if self._empty > _BELIEVED:
            raise BrokerReadError(f"{error}, although it reports offsets {first} to {last}")
        time.sleep(_PAUSE)
        return position

    def _lost(self, start: int, end: int, why: str) -> None:
        """Offsets that were planned are not there."""
        what = f"the offsets {start} to {end} of {self._split.topic}/{self._split.partition} no longer exist: {why}"
        if self._request.fail_on_data_loss:
            raise DataLossError(f"{what}; start later, or set failOnDataLoss=false to continue without them")
        log.warning("%s; continuing without them", what)
