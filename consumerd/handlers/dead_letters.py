"""Where messages go that a handler would not take: each must be on disk before its offset may be committed.

Strategy: an append-only NDJSON file, one write(2) with O_APPEND and one fsync for all letters of a failure (for each
few thousand where there are more), so that members on one host can share the file. A letter holds the message's whole
identity, its exact bytes and the error. After a crash between the letter and the commit it is written again at the next
delivery: identity tells.

The file is nobody's to delete but the user's, so it has a limit, at which the daemon stops, and may be moved away at
any time: the next letter goes to a new one. A handler that refuses everything must not fill the disk meanwhile.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from consumerd.errors import ConfigError, HandlerFailedError
from consumerd.handlers.threads import in_thread
from consumerd.partition import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.handlers.messages import Message
    from consumerd.ports import Clock


#: Bytes up to which a file of dead letters grows by default.
MAX_SIZE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that is given up, and why."""

    message: Message
    #: The last error.
    error: BaseException
    #: How often the handler was asked.
    attempts: int


class DeadLetters(Protocol):
    """A place for messages that are given up."""

    async def start(self) -> None:
        """Make ready, so that a wrong path or address is found before the first message. Raises ConsumerdError."""
        ...

    async def write(self, letters: Sequence[Letter]) -> None:
        """Store `letters`. Returning confirms them; raises HandlerFailedError when they cannot be kept."""
        ...

    async def stop(self) -> None: ...


class FileDeadLetters(DeadLetters):
    """Appends letters to the file at `path`, made (with its folders) when missing.

    Each line: `topic`, `broker`, `partition`, `offset`, `index`, `payload_base64`, `error_type`, `error`, `attempts`,
    `failed_at` (seconds since the epoch); of 0.8 and later also `key_base64`, `timestamp`, `headers`.
    A line that a crash cut short stays, and the next one begins on its own. The file grows up to `max_size` bytes.
    """

    def __init__(self, path: Path | str, *, clock: Clock, max_size: int = MAX_SIZE) -> None:
        self._path = Path(path)
        self._clock = clock
        self._max_size = max_size
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise ConfigError where `start` could not make the file. Nothing is made: another user may be looking."""
        path = self._path
        if path.is_dir():
            raise ConfigError(f"handler.dead_letter: {path} is a directory; name a file.")
        there = path if path.exists() else next(parent for parent in path.absolute().parents if parent.exists())
        if there != path and not there.is_dir():
            raise ConfigError(f"handler.dead_letter: {path} cannot be created: {there} is not a directory.")
        if not os.access(there, os.W_OK if there == path else os.W_OK | os.X_OK):
            raise ConfigError(f"handler.dead_letter: {path} cannot be written: no permission for {there}.")

    async def start(self) -> None:
        try:
            await in_thread(self._open)
        except OSError as error:
            raise ConfigError(
                f"handler.dead_letter: the dead-letter file {self._path} cannot be opened: {error.strerror}."
            ) from error

    async def write(self, letters: Sequence[Letter]) -> None:
        try:
            await in_thread(lambda: self._append(letters))
        except OSError as error:
            raise HandlerFailedError(
                f"cannot write to the dead-letter file {self._path}: {error.strerror}; "
                "the messages are not committed and are delivered again after a restart."
            ) from error

    async def stop(self) -> None:
        self._close()

    # -- in a thread, one at a time

    def _open(self) -> int:
        if self._descriptor is not None and self._was_moved(self._descriptor):
            self._close()
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)  # a new file is only there after a power failure if its folder says so
            finally:
                os.close(folder)
        return self._descriptor

    def _was_moved(self, descriptor: int) -> bool:
        """Whether the path names another file by now, or none."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return True

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, letters: Sequence[Letter]) -> None:
        with self._lock:
            descriptor = self._open()
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = memoryview(b"\n" * torn + b"".join(self._line(letter) for letter in letters))
            if size + len(data) > self._max_size:
                raise HandlerFailedError(
                    f"the dead-letter file {self._path} has {size} bytes and would exceed "
                    f"handler.dead_letter_max_size ({self._max_size}): find out why messages fail, then move the file "
                    "away or raise the limit; the messages stay uncommitted and come again after a restart."
                )
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)

    def _line(self, letter: Letter) -> bytes:
        message = letter.message
        record = {
            **message.identity._asdict(),
            "payload_base64": _base64(message.payload),
            "error_type": type(letter.error).__qualname__,
            "error": str(letter.error),
            "attempts": letter.attempts,
            "failed_at": round(self._clock.wall(), 3),
        }
        if message.broker == NO_BROKER:  # of 0.8 or later
            record |= {
                "broker": None,
                "key_base64": _base64(message.key),
                "timestamp": message.timestamp,
                "headers": [[name, _base64(value)] for name, value in message.headers],
            }
        return json.dumps(record).encode() + b"\n"


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
