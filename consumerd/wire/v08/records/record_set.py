"""The record data of a fetch response: payloads with their attributes, decoded when they are read.

Strategy: payloads and keys are lists of `bytes`; headers, which few records have, are in a dictionary by the record's
number. Offsets and timestamps are kept once per *run* (the records of one batch, wrapper or row of plain messages):
offsets as a range wherever they have no gaps, timestamps in the form in which the data has them. Unlike in 0.7 every
record has an offset of its own, and each of them is a position that can be committed.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from functools import partial
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Unpack

from consumerd.wire.batch import PIECE, BatchEnding, DecodedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_Made = TypeVar("_Made")
#: Names and values in the order in which the producer wrote them; names may repeat, values may be null.
Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"

#: The timestamp of what has none.
NO_TIMESTAMP = -1
#: What a record costs beside its payload: its places in the other lists, and a timestamp.
OVERHEAD_PER_RECORD = 24
#: What a run costs: a tuple, a range and a list.
OVERHEAD_PER_RUN = 300
#: What a header costs beside its bytes: a tuple, a `str` and a `bytes`.
OVERHEAD_PER_HEADER = 200
#: What a key costs beside its bytes.
OVERHEAD_PER_KEY = 33


class TimestampType(IntEnum):
    """Whose clock a timestamp is of."""

    #: Messages of magic 0 have no timestamp.
    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """One record. `next_offset` is the position to commit once it is handled, all before it being handled too.

    `index` is 0: no two records share an offset. `timestamp` is in milliseconds, -1 where there is none.
    """

    offset: int
    index: int  # type: ignore[assignment]  # the word of the field, as in v07.Message
    next_offset: int
    payload: bytes | None
    key: bytes | None
    timestamp: int
    timestamp_type: TimestampType
    headers: Headers


class RecordRun(NamedTuple):
    """Consecutive records from one source.

    `first` is the number of the first one; `offsets` and `times` have one entry per record, `times` counted from
    `base_time`. `codec` is the number of the compression that they came in.
    """

    first: int
    offsets: Sequence[int]
    timestamp_type: TimestampType
    base_time: int
    times: Sequence[int]
    codec: int = 0

    @property
    def timestamps(self) -> Iterable[int]:
        """One per record, in milliseconds."""
        return map(self.base_time.__add__, self.times) if self.base_time else self.times


_FIRST = attrgetter("first")
_SUCCESSOR = (1).__add__
_record = partial(tuple.__new__, Record)


class RecordSet(DecodedBatch["bytes | None", RecordRun]):
    """The records of one partition; see `DecodedBatch`. `next_offset` is also behind control batches and gaps.

    `payloads` and `keys` have one entry per record, None where it is null; `headers` only those records' that have
    some.
    """

    __slots__ = ("headers", "keys")

    def __init__(
        self,
        payloads: list[bytes | None],
        keys: list[bytes | None],
        headers: dict[int, Headers],
        runs: Sequence[RecordRun],
        start_offset: int,
        next_offset: int,
        record_bytes: int,
        **ending: Unpack[BatchEnding],
    ) -> None:
        super().__init__(payloads, runs, start_offset, next_offset, record_bytes, **ending)
        self.keys = keys
        self.headers = headers

    @property
    def runs(self) -> Sequence[RecordRun]:
        """The records in runs of one origin, in order: for code that makes columns of them."""
        return self._runs

    @property
    def offsets(self) -> list[int]:
        """One per record, created by each call."""
        return list(chain.from_iterable(run.offsets for run in self._runs))

    @property
    def timestamps(self) -> list[int]:
        """One per record, in milliseconds; -1 where there is none. Created by each call."""
        return list(chain.from_iterable(run.timestamps for run in self._runs))

    def messages(self) -> Iterator[Record]:
        """The records, made as they are asked for."""
        return self.messages_as(_record)

    def _pieces(
        self, make: Callable[[tuple[Any, ...]], _Made], before: Sequence[Iterator[object]], first: int
    ) -> Iterator[Iterator[_Made]]:
        """`messages_as`, in pieces that are made without a line of Python for each record."""
        last = len(self.payloads) - 1
        for run in self._runs:
            begin = max(first - run.first, 0)
            timestamps = islice(run.timestamps, begin, None)
            for start in range(begin, len(run.offsets), PIECE):
                offsets = run.offsets[start : start + PIECE]
                at = run.first + start
                stop = at + len(offsets)
                after: Iterable[int] = map(_SUCCESSOR, offsets)
                if stop > last:
                    after = chain(islice(after, len(offsets) - 1), (self.next_offset,))
                headers = map(self.headers.get, range(at, stop), repeat(())) if self.headers else repeat(())
                yield map(
                    make,
                    zip(
                        *before,
                        offsets,
                        repeat(0),
                        after,
                        self.payloads[at:stop],
                        self.keys[at:stop],
                        islice(timestamps, len(offsets)),
                        repeat(run.timestamp_type),
                        headers,
                        strict=False,
                    ),
                )

    def _inside(self, count: int) -> int:
        run = self._runs[bisect_right(self._runs, count - 1, key=_FIRST) - 1]
        return run.offsets[count - 1 - run.first] + 1
