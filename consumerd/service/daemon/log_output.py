"""Standard error as the log's file, which goes on when a line cannot be written.

Strategy: a full disk must not stop a daemon, so a line that cannot be written is left out and counted, and the next one
that can be has the number as `log_lines_lost`. A pipe without a reader is another matter: nobody will read it again, so
that error is raised. Bytes go to the file without a buffer of Python's in between, which would keep what failed and
write it with later lines.
"""

from __future__ import annotations

import io
import threading
from typing import Final, TextIO

from structlog.typing import EventDict, WrappedLogger

_KEY: Final = "log_lines_lost"


class LogOutput:
    """The file that log lines are written to. May be used from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        #: None where standard error is not a file of the system, as in tests.
        self._raw = raw if isinstance(raw, io.FileIO) else None
        self._lock = threading.Lock()
        self._lost = 0
        #: Whether the file ends within a line.
        self._torn = False

    def tell_lost(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """As a processor: add the number of lines that were left out."""
        if self._lost:
            event[_KEY] = self._lost
        return event

    def write(self, text: str) -> None:
        """Write whole lines, or count them as lost. Raises BrokenPipeError."""
        with self._lock:
            try:
                self._put(text)
            except BrokenPipeError:
                raise
            except OSError:
                self._lost += 1
            else:
                self._lost = 0

    def flush(self) -> None:
        """Everything is written by then."""

    def _put(self, text: str) -> None:
        if self._raw is None:
            self._stream.write(text)
            self._stream.flush()
            return
        self._stream.flush()
        data = f"{chr(10) if self._torn else ''}{text}".encode(self._stream.encoding, "backslashreplace")
        while data:
            written = self._raw.write(data)
            if written is None:
                raise BlockingIOError("the reader of the log does not keep up")
            data = data[written:]
            self._torn = bool(data)
