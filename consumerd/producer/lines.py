"""Lines of a file descriptor as they come, without blocking the event loop.

Strategy: the loop says when a pipe, terminal or socket has bytes, and one read(2) then takes what there is; the
descriptor is not made non-blocking, because others (a shell) may share it. Regular files cannot be waited for and are
read in a thread. Lines are bytes between newlines: any bytes, empty ones too, and the last one needs no newline.
"""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.threads import in_thread

_CHUNK = 1 << 20


class InputError(ConsumerdError):
    """The input cannot be read, or does not have the declared form."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class LineReader:
    """Reads lines from `descriptor`; one longer than `max_line_bytes` is refused before memory fills with it."""

    def __init__(self, descriptor: int, *, max_line_bytes: int) -> None:
        self._descriptor = descriptor
        self._max_line_bytes = max_line_bytes
        self._begun = bytearray()
        self._ended = False

    async def read(self) -> list[bytes] | None:
        """Wait for whole lines and return those that are there; None at the end. Raises InputError."""
        while not self._ended:
            try:
                data = await self._some()
            except OSError as error:
                raise InputError(f"cannot read the input: {error.strerror or error}.") from error
            if not data:
                self._ended = True
                return [bytes(self._begun)] if self._begun else None
            *lines, rest = data.split(b"\n")
            if lines:
                lines[0] = bytes(self._begun) + lines[0]
                self._begun.clear()
            self._begun += rest
            if len(self._begun) > self._max_line_bytes:
                raise InputError(f"a line of the input is longer than {self._max_line_bytes} bytes; is it a text file?")
            if lines:
                return lines
        return None

    async def _some(self) -> bytes:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._descriptor, readable.set)
        except PermissionError:  # epoll's word for "a file is always ready"
            # If it is cancelled, the caller may close the descriptor next, and another file get its number.
            return await in_thread(os.read, self._descriptor, _CHUNK)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, _CHUNK)
