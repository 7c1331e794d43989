"""How many messages of a list fit: their bytes, counted natively where that is possible.

Strategy: a list is counted once as a whole, and then cut where a batch ends. Both are one native call each for lists of
bytes and nulls; everything else is counted in Python.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise

from consumerd.base.native import NativeCodec
from consumerd.base.native import codec as native_codec


class PureSizes:
    """Sizes in Python: the bytes up to and with each message, and a binary search in them. `total`: of all messages."""

    __slots__ = ("_ends", "total")

    def __init__(self, values: list[bytes | None], beside: int) -> None:
        try:
            self._ends = list(accumulate([beside + len(value) for value in values], initial=0))  # type: ignore[arg-type]
        except TypeError:  # some values are null
            self._ends = list(accumulate([beside + len(value or b"") for value in values], initial=0))
        self.total = self._ends[-1]

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        ends = self._ends
        return max([end - begin for begin, end in pairwise(ends)])

    def fitting(self, first: int, size: int, /) -> tuple[int, int]:
        """Return the number behind the messages from `first` on that have at most `size` bytes, and their bytes."""
        begin = self._ends[first]
        stop = bisect_right(self._ends, begin + max(0, size), first) - 1
        return stop, self._ends[stop] - begin


class NativeSizes:
    """As `PureSizes`, of a list that the native codec can count."""

    __slots__ = ("_beside", "_native", "_values", "largest", "total")

    def __init__(self, native: NativeCodec, values: list[bytes | None], beside: int, counted: tuple[int, int]) -> None:
        total, longest = counted
        self.total = total + beside * len(values)
        self.largest = longest + beside
        self._native = native
        self._values = values
        self._beside = beside

    def fitting(self, first: int, size: int, /) -> tuple[int, int]:
        """As `PureSizes.fitting`."""
        return self._native.fitting_values(self._values, first, size, self._beside)


def sizes_of(values: list[bytes | None], beside: int) -> PureSizes | NativeSizes:
    """The sizes of messages with these values, each of which has `beside` bytes more. The list must not change."""
    native = native_codec()
    if native is not None:
        counted = native.value_sizes(values)
        if counted is not None:
            return NativeSizes(native, values, beside, counted)
    return PureSizes(values, beside)
