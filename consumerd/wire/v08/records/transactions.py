"""Which batches of a fetch belong to aborted transactions.

Strategy: brokers name aborted transactions by producer and first offset. From there on the producer's transactional
batches are aborted, until the control batch that ends the transaction; all in the order of offsets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.wire.v08.records.record_batch import BatchHeader

#: The key of a control record: version and type.
_MARKER = struct.Struct(">hh")
_ABORT = 0


class Aborted:
    """Fed with the batches of one fetch, in order; `transactions`: (producer id, first offset) of each aborted one."""

    __slots__ = ("_active", "_coming")

    def __init__(self, transactions: Iterable[tuple[int, int]] = ()) -> None:
        #: By first offset, the next one at the end.
        self._coming = sorted(transactions, key=lambda one: one[1], reverse=True)
        self._active: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._coming or self._active)

    def covers(self, header: BatchHeader) -> bool:
        """Whether the transactional batch `header` is of an aborted transaction."""
        self._begin(header)
        return header.producer_id in self._active

    def end(self, header: BatchHeader, marker: bytes | None) -> None:
        """A control batch; `marker`: the key of its record."""
        self._begin(header)
        if marker is not None and len(marker) >= _MARKER.size and _MARKER.unpack_from(marker)[1] == _ABORT:
            self._active.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        last = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[-1][1] <= last:
            self._active.add(self._coming.pop()[0])
