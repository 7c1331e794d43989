"""A handler that prints messages as NDJSON on standard output, without ever stalling the event loop.

Strategy: a thread writes, and never more at a time than poll(2) has just said the descriptor takes without blocking.
So however slow the reader is, a cancelled handler ends within `PATIENCE`. A line that was cut by that is completed
before anything else is written: the output stays NDJSON, and the messages that are out are marked as handled.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import ClassVar

from consumerd.base.errors import ExitCode, HandlerFailedError
from consumerd.handlers.api import Handler
from consumerd.handlers.builtin.records import encode_records
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.messages import Batch
from consumerd.handlers.threads import in_thread

#: Seconds after which a writing thread looks whether it was asked to stop.
PATIENCE = 0.1
#: POSIX: a pipe that polls as writable takes this much without blocking (PIPE_BUF).
CHUNK = select.PIPE_BUF
#: Lines, and their bytes, that are made at once: a batch may have millions of messages.
LINES, BYTES = 10_000, 1 << 20


class OutputClosedError(HandlerFailedError):
    """The output no longer has a reader."""

    exit_code: ClassVar[ExitCode] = ExitCode.PIPE


class PrintHandler(Handler):
    """Writes each message as one line of JSON (see `consumerd.handlers.builtin.records`).

    Options: `descriptor`, the number of an open file descriptor, standard output by default. Raises
    OutputClosedError when the reader went away, other errors of the descriptor (disk full) as OSError.
    """

    def __init__(self, descriptor: int = 1) -> None:
        if isinstance(descriptor, bool) or not isinstance(descriptor, int) or descriptor < 0:
            raise ValueError(f"descriptor must be the number of a file descriptor, not {descriptor!r}")
        self._descriptor = descriptor
        self._turn = asyncio.Lock()  # partitions come concurrently, lines must not mix
        self._unfinished = b""  # the rest of the last line of a cancelled write

    async def handle(self, batch: Batch) -> None:
        """Write the batch; when it returns, the operating system has all of it."""
        async with self._turn:
            stop = threading.Event()
            try:
                await in_thread(lambda: self._write(batch, stop), interrupt=stop.set)
            except BrokenPipeError as error:
                raise OutputClosedError("the reader of the output closed it.") from error

    def lines(self, batch: Batch) -> Iterable[bytes]:
        """Return the line for each message of `batch`, in order; a subclass may write something else."""
        return encode_records(batch)

    def _write(self, batch: Batch, stop: threading.Event) -> None:
        """Write until all is out or `stop` is set; marks the messages whose lines are out as a whole."""
        for piece in in_chunks(self.lines(batch.rest(batch.handled)), LINES, BYTES, len):
            self._write_lines(batch, piece, stop)
            if stop.is_set():
                return
        if self._unfinished:
            self._write_lines(batch, [], stop)

    def _write_lines(self, batch: Batch, lines: list[bytes], stop: threading.Event) -> None:
        data = memoryview(self._unfinished + b"".join(lines))
        ends = list(accumulate(map(len, lines), initial=len(self._unfinished)))
        sent = 0
        try:
            for count in self._attempts(data, stop):
                sent += count
        finally:
            torn = bisect_left(ends, sent)  # the first line end that is not before the cut
            self._unfinished = bytes(data[sent : ends[torn]])
            batch.mark(batch.handled + bisect_right(ends, sent, lo=1) - 1)

    def _attempts(self, data: memoryview, stop: threading.Event) -> Iterator[int]:
        """Write `data` in steps that do not block; yields the size of each."""
        step = 1 << 20 if stat.S_ISREG(os.fstat(self._descriptor).st_mode) else CHUNK
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while data and not stop.is_set():
            if not poll.poll(PATIENCE * 1000):
                continue
            try:
                count = os.write(self._descriptor, data[:step])
            except BlockingIOError:  # another process made it non-blocking, and was faster
                continue
            data = data[count:]
            yield count
