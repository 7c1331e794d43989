"""The columns that the readers of the three formats fill: payloads, keys and headers of one fetch.

Strategy: everything is appended to the same lists. A reader that finds a bad batch truncates them to the start of the
batch, and a read from the middle of a batch removes the records before it again.
"""

from __future__ import annotations

from consumerd.wire.column_buffers import Headers
from consumerd.wire.v08.records.record_set import (
    OVERHEAD_PER_HEADER,
    OVERHEAD_PER_KEY,
    OVERHEAD_PER_RECORD,
    OVERHEAD_PER_RUN,
)


class RecordColumns:
    """Per record one entry in `payloads` and `keys`; `headers` by its number; `record_bytes`: see `account`."""

    __slots__ = ("_new_headers", "_new_keyless", "headers", "keys", "payloads", "record_bytes")

    def __init__(self) -> None:
        self.payloads: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}
        self.record_bytes = 0
        #: Since the last `account`.
        self._new_headers = self._new_keyless = 0

    def __len__(self) -> int:
        return len(self.payloads)

    def add_headers(self, headers: Headers) -> None:
        """Of the record that is added next."""
        self.headers[len(self.payloads)] = headers
        self._new_headers += len(headers)

    def add(self, key: bytes | None, payload: bytes | None, headers: Headers) -> None:
        """One record."""
        if headers:
            self.add_headers(headers)
        self._new_keyless += key is None
        self.keys.append(key)
        self.payloads.append(payload)

    def note_keyless(self, count: int) -> None:
        """Of records that are there already, that `count` of them, not noted before, have no keys."""
        self._new_keyless += count

    def count_keyless(self, first: int) -> None:
        """Look how many of the records from number `first` on, which are all there, have no keys."""
        self._new_keyless += self.keys[first:].count(None)

    def cut(self, first: int) -> None:
        """Forget the records from number `first` on, of which nothing is accounted for or noted yet."""
        del self.payloads[first:], self.keys[first:]
        for number in [number for number in self.headers if number >= first]:
            self._new_headers -= len(self.headers.pop(number))

    def drop(self, first: int, count: int) -> None:
        """Take out `count` records from number `first` on, which are not accounted for yet."""
        if not count:
            return
        self._new_keyless -= self.keys[first : first + count].count(None)
        self._new_headers -= sum(len(self.headers.get(number, ())) for number in range(first, first + count))
        del self.payloads[first : first + count], self.keys[first : first + count]
        moved = {number: found for number, found in self.headers.items() if number < first}
        moved.update((number - count, found) for number, found in self.headers.items() if number >= first + count)
        self.headers = moved

    def account(self, first: int, stored: int) -> None:
        """Count a run: the records from number `first` on, which take `stored` bytes in the data."""
        count = len(self.payloads) - first
        keyed = count - self._new_keyless
        self.record_bytes += stored + OVERHEAD_PER_KEY * keyed + OVERHEAD_PER_HEADER * self._new_headers
        self.record_bytes += OVERHEAD_PER_RUN + OVERHEAD_PER_RECORD * count
        self._new_headers = self._new_keyless = 0
