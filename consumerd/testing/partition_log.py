"""The log of one partition in memory, in the bytes of the wire, so that offsets in tests are real ones."""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.wire.v07 import Codec, MessageBatch, decode_batch, encode_message_set, iter_outer


class MemoryPartitionLog:
    """Starts at offset 0 and only grows."""

    def __init__(self) -> None:
        self._data = bytearray()
        #: The starts of outermost messages, and the end of the last one.
        self._boundaries = [0]

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return len(self._data)

    def append(self, payloads: Iterable[bytes], *, codec: Codec = Codec.NONE, magic: int = 1) -> int:
        """Append a message set; returns the offset at which it begins. Raises EncodeError."""
        start = self.end
        data = encode_message_set(payloads, magic=magic, codec=codec)
        self._boundaries += [message.next_offset for message in iter_outer(data, start)]
        self._data += data
        return start

    def is_boundary(self, offset: int) -> bool:
        """Whether `offset` lies between outermost messages (or at an end): only there can a fetch begin."""
        return offset in self._boundaries

    def read(self, start: int, end: int, *, at_most: int | None = None) -> MessageBatch:
        """The messages from `start` to `end`, both boundaries; not more than `at_most` outermost ones."""
        if at_most is not None:
            end = [offset for offset in self._boundaries if start < offset <= end][:at_most][-1]
        return decode_batch(bytes(self._data[start:end]), start)
