"""The handler behind `consumerd consume`: payloads, or NDJSON, to standard output, until there are enough.

Strategy: `PrintHandler` writes, so that a slow or vanished reader of the output is met in one way; only what a message
looks like differs. The limit counts messages that are out: a batch that is too long is cut in front, what is out is
marked, and the error that says "enough" leaves exactly those handled, and so committed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from consumerd.errors import ExitCode, HandlerFailedError
from consumerd.handlers.builtin.print import PrintHandler
from consumerd.handlers.builtin.records import encode_records

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from consumerd.handlers.messages import Batch


class EnoughError(HandlerFailedError):
    """As many messages as were asked for are out: not a failure, but the way to stop within a batch."""

    exit_code: ClassVar[ExitCode] = ExitCode.OK


class ConsoleHandler(PrintHandler):
    """Writes payloads with a newline after each (nothing before it for a tombstone), or records where `as_json`.

    `key_separator`: write the key and this before each payload (nothing for the key of a message without one).
    EnoughError ends it at `max_messages`.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        max_messages: int | None = None,
        key_separator: bytes | None = None,
        descriptor: int = 1,
    ) -> None:
        super().__init__(descriptor)
        self._as_json = as_json
        self._separator = key_separator
        self._left = max_messages

    def lines(self, batch: Batch) -> Iterable[bytes]:
        """As many lines as are still wanted."""
        lines: Iterable[bytes]
        if self._as_json:
            lines = encode_records(batch)
        elif self._separator is not None:
            keys = batch.keys or [None] * len(batch)
            separator = self._separator
            pairs = zip(keys, batch, strict=True)
            lines = (b"".join((key or b"", separator, payload or b"", b"\n")) for key, payload in pairs)
        else:
            lines = ((payload or b"") + b"\n" for payload in batch)
        return lines if self._left is None else islice(lines, self._left)

    async def handle(self, batch: Batch) -> None:
        """Write the batch up to the limit. Raises EnoughError with the last message."""
        await super().handle(batch)
        if self._left == 0:
            raise EnoughError("the requested number of messages was printed.")

    def _write(self, batch: Batch, stop: threading.Event) -> None:
        # Counted here, in the turn of this batch: another partition's batch may be waiting for its own.
        before = batch.handled
        try:
            super()._write(batch, stop)
        finally:
            if self._left is not None:
                self._left -= batch.handled - before
