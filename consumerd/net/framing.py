"""Cutting a byte stream into length-prefixed frames, in one recycled buffer.

Strategy: the socket writes straight into `free()`, the unused tail of one bytearray; `received(n)` walks the complete
frames in it, hands each body to `deliver` as a view that is valid only during the call, and moves the incomplete rest
to the front. A frame's announced size is shown to `admit` before anything is allocated for it, and the buffer then
grows by doubling, only as far as bytes have really arrived, so that a false length costs nothing. After a giant frame
the buffer goes back to its resting size. No asyncio here: `connection` feeds it.

Frames: int32 length, then that many bytes (spec 003, golden notes 1). The length does not count itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

HEADER_BYTES = 4
_read_size = struct.Struct(">i").unpack_from
RESTING_BYTES = 64 * 1024
#: A buffer up to this size is kept between frames: ordinary fetches are about 1 MiB.
KEPT_BYTES = 4 * 1024 * 1024
#: Room beyond the present frame, so that its last read also reads the start of the next one.
SLACK_BYTES = 64 * 1024


class FrameReceiver:
    """Reassembles frames. `admit(size)` may raise to refuse a frame; `deliver(body)` must copy what it keeps.

    Frames of `least` to `most` bytes are admitted without a call; none at first.
    """

    __slots__ = ("_admit", "_buffer", "_deliver", "_filled", "_need", "_view", "least", "most")

    def __init__(self, admit: Callable[[int], None], deliver: Callable[[memoryview], None]) -> None:
        self._admit = admit
        self._deliver = deliver
        self.least, self.most = 0, -1
        self._filled = 0
        self._need = 0  # bytes of the present frame with its header; 0 while the header is incomplete
        self._allocate(RESTING_BYTES)

    def free(self, _: int = -1) -> memoryview:
        """Return the buffer for the next bytes: never empty. Takes the hint that `get_buffer` of a protocol gets."""
        if self._filled == len(self._buffer):
            self._grow()
        return self._view[self._filled :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were written to `free()`. Lets the exceptions of `admit` through."""
        self._filled = filled = self._filled + count
        start = 0
        view = self._view
        while True:
            if not self._need:
                if filled - start < HEADER_BYTES:
                    break
                size = _read_size(view, start)[0]
                if not self.least <= size <= self.most:
                    self._admit(size)
                self._need = HEADER_BYTES + size
            end = start + self._need
            if filled < end:
                break
            self._need = 0
            self._deliver(view[start + HEADER_BYTES : end])
            start = end
        if start:
            self._filled = rest = filled - start
            if rest or len(self._buffer) > KEPT_BYTES:
                self._keep(view[start:filled], rest)

    def _keep(self, rest: memoryview, size: int) -> None:
        if len(self._buffer) > KEPT_BYTES and size <= RESTING_BYTES and self._need <= KEPT_BYTES:
            self._allocate(RESTING_BYTES)
        if size:
            self._view[:size] = rest  # overlapping is fine: memoryview moves, it does not copy forward

    def _grow(self) -> None:
        wanted = max(self._need, HEADER_BYTES) + SLACK_BYTES
        size = min(wanted, 2 * len(self._buffer))
        old = self._view
        self._allocate(size)
        self._view[: self._filled] = old[: self._filled]

    def _allocate(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
