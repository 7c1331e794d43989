"""A fetch response's message set -> `MessageBatch`.

Strategy: runs of plain messages by `walk`, everything else one by one. Nothing is raised for what the bytes say: the
batch holds what could be read and says why it ends. A wrapper counts as a whole or not at all, because a position
between its leaves cannot be committed.
"""

from __future__ import annotations

from consumerd.wire.batch import BatchEnd, memory_of
from consumerd.wire.compression import Codec
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07.batch import MessageBatch, Run
from consumerd.wire.v07.constants import DEFAULT_LIMITS, Limits
from consumerd.wire.v07.outer import OuterMessage, Tail, plausible_after, read_outer
from consumerd.wire.v07.unwrap import unwrap
from consumerd.wire.v07.walk import LAYOUTS, walk


def decode_batch(data: bytes | bytearray | memoryview, offset: int, *, limits: Limits = DEFAULT_LIMITS) -> MessageBatch:
    """Decode the message set `data` whose first byte has log offset `offset`.

    Never raises for bad bytes: it stops there and says so. The batch copies what it needs and does not keep `data`
    alive. Sources: spec 000 (Message, Fetch), golden notes 1 and 2.
    """
    return _Decoder(bytes(data), offset, limits).decode()


class _Decoder:
    """One decode: the state that the steps share."""

    __slots__ = ("data", "expanded", "limits", "magic", "offset", "payload_bytes", "payloads", "position", "runs")

    def __init__(self, data: bytes, offset: int, limits: Limits) -> None:
        self.data = data
        self.offset = offset
        self.limits = limits
        self.payloads: list[bytes] = []
        self.runs: list[Run] = []
        self.position = 0
        self.payload_bytes = 0
        self.expanded = 0
        self.magic = 1

    def decode(self) -> MessageBatch:
        data, end, append = self.data, len(self.data), self.payloads.append
        while self.position < end:
            layout = LAYOUTS[self.magic]
            first, start = len(self.payloads), self.position
            self.position = walk(data, start, append, layout)
            if self.position > start:
                self._plain(first, start, layout.overhead)
            item = read_outer(data, self.position, self.offset + self.position, self.limits.max_message_bytes)
            if isinstance(item, Tail):
                return self._cut(item)
            if not item.valid or item.codec is None:
                return self._corrupt(item, f"has {item.problem}", certain=False)
            if item.codec is Codec.NONE:
                append(item.payload)
                start, self.position = self.position, self.position + 4 + item.size
                self.magic = item.magic
                self._plain(len(self.payloads) - 1, start, LAYOUTS[item.magic].overhead)
                continue
            if self._is_full():
                return self._batch(BatchEnd.PARTIAL, needed=4 + item.size)
            try:
                leaves, expanded = unwrap(item.codec, item.payload, limits=self.limits)
            except CorruptMessageError as error:
                return self._corrupt(item, f"cannot be opened: {error}", certain=True)
            self._wrapper(item, leaves, expanded)
        return self._batch(BatchEnd.COMPLETE)

    def _is_full(self) -> bool:
        memory = memory_of(len(self.payloads), self.payload_bytes)
        return memory >= self.limits.max_batch_bytes or self.expanded >= self.limits.max_decompressed_bytes

    def _plain(self, first: int, start: int, overhead: int) -> None:
        """Account for the plain messages from number `first` on, which stood at `start` and after."""
        self.payload_bytes += self.position - start - overhead * (len(self.payloads) - first)
        if not self.runs or self.runs[-1].overhead != overhead:
            self.runs.append(Run(first, self.offset + start, overhead))

    def _wrapper(self, item: OuterMessage, leaves: list[bytes], expanded: int) -> None:
        self.runs.append(Run(len(self.payloads), item.offset, 0))
        self.payloads += leaves
        self.payload_bytes += sum(map(len, leaves))
        self.expanded += expanded
        self.position += 4 + item.size

    def _cut(self, tail: Tail) -> MessageBatch:
        if tail.problem is None:
            return self._batch(BatchEnd.PARTIAL, needed=tail.needed)
        return self._batch(BatchEnd.CORRUPT, problem=f"the message at offset {tail.offset} has {tail.problem}")

    def _corrupt(self, item: OuterMessage, what: str, *, certain: bool) -> MessageBatch:
        """End at a message that is whole but bad. Its length counts if `certain`, or if another could follow it."""
        after = self.position + 4 + item.size
        believed = certain or plausible_after(self.data, after, self.limits.max_message_bytes)
        return self._batch(
            BatchEnd.CORRUPT,
            problem=f"the message at offset {item.offset} {what}",
            resume_offset=item.next_offset if believed else None,
        )

    def _batch(
        self,
        end: BatchEnd,
        *,
        problem: str | None = None,
        resume_offset: int | None = None,
        needed: int | None = None,
    ) -> MessageBatch:
        return MessageBatch(
            self.payloads,
            self.runs,
            self.offset,
            self.offset + self.position,
            self.payload_bytes,
            end=end,
            problem=problem,
            resume_offset=resume_offset,
            needed=needed,
        )
