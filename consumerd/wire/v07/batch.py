"""A decoded fetch response of 0.7: its messages' identities and positions.

Strategy: where payloads stood is kept as one small entry per *run* (a row of plain messages of one magic, or one
wrapper) and nothing per message: offsets follow from the payloads' lengths. A message's identity is the offset of its
outermost message and its index among the flattened leaves of that one; a position to commit is always a boundary of the
outer set, and of a wrapper's leaves only the last one moves it (golden notes, 2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, count, islice, pairwise, repeat
from operator import add, attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, Unpack, cast

from consumerd.base.native import NativePayloads
from consumerd.base.native import codec as native_codec
from consumerd.wire.batch import MAX_NUMBER, PIECE, BatchEnding, DecodedBatch
from consumerd.wire.column_buffers import BinaryBuffers, ColumnBuffers
from consumerd.wire.v07.packed import PackedPayloads

_Made = TypeVar("_Made")


class MessageLeaf(NamedTuple):
    """One leaf. `next_offset` is the position to commit once it is handled, all before it being handled too."""

    offset: int
    index: int  # type: ignore[assignment]  # hides `tuple.index`, which is not used
    next_offset: int
    payload: bytes


class MessageRun(NamedTuple):
    """Consecutive leaves with one rule for their offsets.

    `first` is the number of its first leaf and `offset` where the run begins. `overhead` is what each plain message has
    beside its payload, or 0 for a wrapper, whose leaves share the offset.
    """

    first: int
    offset: int
    overhead: int


_FIRST = attrgetter("first")
_message = partial(tuple.__new__, MessageLeaf)


class MessageBatch(DecodedBatch[bytes, MessageRun]):
    """The messages of one partition; see `DecodedBatch`. `payloads` are the flattened leaves.

    They are a list; or a buffer and an index, as the native codec makes them; or, of a large compressed message,
    packed: then `payload_bytes` is what is held for all of them. A buffer and its index become a list, and are gone,
    when `payloads` are asked for: what is held stays within `memory_bytes`.
    """

    __slots__ = ("_mark",)

    #: 0.7 has neither keys nor timestamps nor headers.
    keyed: ClassVar[bool] = False

    def __init__(
        self,
        payloads: list[bytes] | PackedPayloads | NativePayloads,
        runs: Sequence[MessageRun],
        start_offset: int,
        next_offset: int,
        payload_bytes: int,
        **ending: Unpack[BatchEnding],
    ) -> None:
        super().__init__(cast("Sequence[bytes]", payloads), runs, start_offset, next_offset, payload_bytes, **ending)
        if isinstance(payloads, PackedPayloads):
            self.memory_bytes = payload_bytes
        #: A number of handled leaves within a plain run, and where they end.
        self._mark = (-1, 0)

    @property
    def payloads(self) -> Sequence[bytes]:
        if self.buffer is not None:
            self._payloads = self._payloads[:]
        return self._payloads

    @property
    def buffer(self) -> NativePayloads | None:
        """The payloads as the native codec holds them; None where they are objects."""
        held = self._payloads
        return None if isinstance(held, (list, PackedPayloads)) else cast("NativePayloads", held)

    @property
    def runs(self) -> Sequence[MessageRun]:
        """The leaves in runs, in order."""
        return self._runs

    def column_buffers(self, first: int, stop: int, most: int, *, wide: bool) -> ColumnBuffers | None:
        native = self.buffer
        if native is None:
            return None
        payload, offset, index, next_offset = native.arrow(first, stop, self.start_offset, self.next_offset, most, wide)
        return ColumnBuffers(BinaryBuffers(*payload), offset, next_offset, index)

    def message_lists(
        self, kind: type[Any], partition: object, first: int, stop: int, most: int
    ) -> Iterator[list[Any]] | None:
        native, codec = self.buffer, native_codec()
        if native is None or codec is None or self.next_offset > MAX_NUMBER:
            return None
        common = codec.MessageKind(partition, kind)
        return native.messages(common, first, stop, self.start_offset, self.next_offset, most)

    def fitting(self, first: int, stop: int, size: int) -> tuple[int, int] | None:
        native = self.buffer
        return None if native is None else native.fitting(first, stop, size)

    def messages(self) -> Iterator[MessageLeaf]:
        """Iterate over the leaves with their identities, made on access."""
        return self.messages_as(_message)

    def _pieces(
        self, make: Callable[[tuple[Any, ...]], _Made], before: Sequence[Iterator[object]], first: int
    ) -> Iterator[Iterator[_Made]]:
        """`messages_as`, in pieces whose identities are made without a line of Python for each."""
        payloads = self._payloads
        last = MessageRun(len(payloads), self.next_offset, 0)
        for run, following in pairwise((*self._runs, last)):
            if following.first <= first:
                continue
            begin = max(first, run.first)
            start = self._after(run, begin) if run.overhead and begin > run.first else run.offset
            for at in range(begin, following.first, PIECE):
                inside = payloads[at : min(at + PIECE, following.first)]
                if run.overhead:
                    sizes = map(add, map(len, inside), repeat(run.overhead))
                    bounds = list(accumulate(sizes, initial=start))
                    start = bounds[-1]
                    fields = zip(*before, bounds, repeat(0), islice(bounds, 1, None), inside, strict=False)
                else:
                    # Of a wrapper's leaves only the last moves the position.
                    after = [start] * len(inside)
                    if at + len(inside) == following.first:
                        after[-1] = following.offset
                    fields = zip(*before, repeat(start), count(at - run.first), after, inside, strict=False)
                yield map(make, fields)

    def _inside(self, count: int) -> int:
        at = bisect_right(self._runs, count - 1, key=_FIRST) - 1
        run = self._runs[at]
        if run.overhead:
            return self._after(run, count)
        following = self._runs[at + 1] if at + 1 < len(self._runs) else None
        return following.offset if following is not None and following.first == count else run.offset

    def _after(self, run: MessageRun, count: int) -> int:
        """Return the end of leaf `count - 1` of a plain run, continuing from the last call's result if possible."""
        # A mark at the very start of the run is the end of another one, before empty wrappers perhaps.
        first, offset = self._mark if run.first < self._mark[0] <= count else (run.first, run.offset)
        payloads = self._payloads
        if isinstance(payloads, list):
            size = sum(map(len, payloads[first:count]))
        else:  # plain messages are never packed
            size = cast("NativePayloads", payloads).size_between(first, count)
        self._mark = (count, offset + run.overhead * (count - first) + size)
        return self._mark[1]
