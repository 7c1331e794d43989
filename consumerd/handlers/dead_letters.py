"""Messages that a handler did not accept: the content of a dead letter, and the contract of their storage.

Strategy: a letter holds the message's whole identity, its exact bytes and the error. It is one JSON object wherever
it is stored as a line or as a message; the reader treats such lines as hostile. After a crash between a letter and
the commit the letter is written again at the next delivery: identity tells.

The places are `consumerd.handlers.dead_letter_files` and `consumerd.handlers.dead_letter_topic`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers.messages import Identity, KeyedMessage, Message
from consumerd.handlers.tracebacks import MAX_TRACEBACK, text_of

#: Characters of an error's text that are kept, and of one in a letter that is too large for its place.
MAX_ERROR: Final = 4000
_SHORT_ERROR: Final = 200
#: The prefix of the names of the headers that describe a failure, and the one with its time in seconds since 1970.
PREFIX: Final = "consumerd.dead_letter."
FAILED_AT: Final = f"{PREFIX}failed_at"
#: Bytes of the rest of a letter's description, at most: names, numbers, and the names of fields.
_IDENTITY: Final = 1500
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_EPOCH: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that is given up, and why."""

    message: Message
    #: The last error.
    error: BaseException
    #: The number of calls of the handler.
    attempts: int
    #: The log that the message was read from, as far as it is known.
    log: LogId = UNKNOWN_LOG
    #: The frames of the error (`consumerd.handlers.tracebacks`); empty if there are none.
    traceback: str = ""
    #: Characters of the error's text that are recorded: it may quote a message of megabytes.
    max_error: int = MAX_ERROR
    #: When the message failed, in seconds since 1970; None for the time at which the letter is written.
    failed_at: float | None = None

    def shorter(self) -> Iterator[Letter]:
        """Yield this letter, then with less about its error: without its frames, with a line, and without a text."""
        yield self
        if self.traceback:
            yield replace(self, traceback="")
        for most in (_SHORT_ERROR, 0):
            if len(text_of(self.error)) > most:
                yield replace(self, traceback="", max_error=most)

    def told_log(self) -> dict[str, Any]:
        """Return what is recorded of the log, by name."""
        reported = {"topic_id": self.log.topic_id_text, "leader_epoch": self.log.leader_epoch}
        return {name: value for name, value in reported.items() if value is not None}

    def told_error(self) -> dict[str, str]:
        """Return what is recorded of the error, by name."""
        reported = {"error_type": type(self.error).__qualname__, "error": text_of(self.error)[: self.max_error]}
        return reported | ({"traceback": self.traceback} if self.traceback else {})


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A letter as it was read back. `failed_at`: seconds since the epoch."""

    message: Message | KeyedMessage
    error_type: str
    error: str
    attempts: int
    failed_at: float
    #: As that of `Letter`.
    log: LogId = UNKNOWN_LOG
    #: Empty in letters of earlier releases, and where the error had no frames.
    traceback: str = ""

    @property
    def identity(self) -> Identity:
        """The identity of the message."""
        return self.message.identity


class DeadLetters(Protocol):
    """A place for messages that are given up."""

    async def start(self) -> None:
        """Make ready, so that a wrong path or address is found before the first message. Raises ConsumerdError."""
        ...

    async def write(self, letters: Sequence[Letter]) -> None:
        """Store `letters`. Returning confirms them; raises HandlerFailedError when they cannot be kept."""
        ...

    async def stop(self) -> None: ...


class OriginalLetters(DeadLetters):
    """Stores the letters of a retry topic in `place` as those of the messages that failed first.

    So a dead letter says where its message came from and how often it was tried in all, however many topics it passed.
    """

    def __init__(self, place: DeadLetters) -> None:
        self._place = place

    async def start(self) -> None:
        await self._place.start()

    async def write(self, letters: Sequence[Letter]) -> None:
        await self._place.write([original(letter) for letter in letters])

    async def stop(self) -> None:
        await self._place.stop()

    def __str__(self) -> str:
        return str(self._place)


def original(letter: Letter) -> Letter:
    """Return `letter` about the message that its headers describe; itself where they describe none."""
    message: Message | KeyedMessage = letter.message
    described = {name.removeprefix(PREFIX): value for name, value in message.headers if name.startswith(PREFIX)}
    try:
        topic = (described["topic"] or b"").decode()
        partition, offset, attempts = (int(described[name] or b"") for name in ("partition", "offset", "attempts"))
        read = LogId.from_text(_text(described.get("topic_id")), _epoch(described.get("leader_epoch")))
    except (KeyError, ValueError):
        return letter
    if not topic or not isinstance(message, KeyedMessage) or not 0 <= offset <= _MAX_OFFSET or partition < 0:
        return letter
    headers = tuple(header for header in message.headers if not header[0].startswith(PREFIX))
    where = TopicPartition.numbered(topic, partition)
    first: Any = KeyedMessage(where, offset, 0, offset + 1, *message[4:8], headers)
    return replace(letter, message=first, attempts=attempts + letter.attempts, log=read)


def failure_time(headers: Sequence[tuple[str, bytes | None]]) -> float | None:
    """Return when a message with these headers failed last, in seconds since 1970; None where they do not tell."""
    header = next((value for name, value in reversed(headers) if name == FAILED_AT), None)
    try:
        seconds = None if header is None else float(header)
    except ValueError:
        return None
    return seconds if seconds is not None and math.isfinite(seconds) else None


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode()


def _epoch(header: bytes | None) -> int | None:
    return None if header is None else int(header)


def encode_letter(letter: Letter, failed_at: float) -> bytes:
    """The letter as one JSON object, without a newline.

    `topic`, `broker`, `partition`, `offset`, `index`, `payload_base64`, `error_type`, `error`, `traceback`, `attempts`,
    `failed_at`; of messages of 0.8 and later `broker` is null, and there are `key_base64`, `timestamp` and `headers`.
    `topic_id` and `leader_epoch` are there where the broker told them.
    """
    message = letter.message
    record = {
        **message.identity._asdict(),
        "payload_base64": _base64(message.payload),
        **letter.told_error(),
        "attempts": letter.attempts,
        "failed_at": round(failed_at, 3),
    }
    if message.broker == NO_BROKER:  # of 0.8 or later
        record |= {
            "broker": None,
            "key_base64": _base64(message.key),
            "timestamp": message.timestamp,
            "headers": [[name, _base64(value)] for name, value in message.headers],
        }
    record |= letter.told_log()
    return json.dumps(record).encode()


def letter_size(message: int, *, as_json: bool) -> int:
    """The size in bytes of the largest letter for a message of `message` bytes, if its error's text is ASCII."""
    return (-(-message // 3) * 4 if as_json else message) + MAX_ERROR + MAX_TRACEBACK + _IDENTITY


def decode_letter(line: bytes) -> StoredLetter:
    """The letter that `encode_letter` made. Raises ValueError with a reason for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not a JSON object") from None
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    topic = _field(record, "topic", str)
    if not topic:
        raise ValueError("topic is empty")
    offset, number = (_number(record, name, _MAX_OFFSET) for name in ("offset", "partition"))
    index, attempts = (_number(record, name, _MAX_OFFSET) for name in ("index", "attempts"))
    failed_at = record.get("failed_at")
    if isinstance(failed_at, bool) or not isinstance(failed_at, int | float) or not 0 <= failed_at < 1e12:
        raise ValueError("failed_at must be a time in seconds")
    message: Message | KeyedMessage
    if record.get("broker") is None:
        message = KeyedMessage(
            TopicPartition.numbered(topic, number), offset, 0, offset + 1, _bytes(record, "payload_base64"),
            _bytes(record, "key_base64"), _field(record, "timestamp", int), 0, _headers(record),
        )  # fmt: skip
    else:
        broker = _number(record, "broker", (1 << 31) - 1)
        payload = _bytes(record, "payload_base64")
        if payload is None:
            raise ValueError("payload_base64 is missing")
        message = Message(TopicPartition(topic, broker, number), offset, index, offset, payload)
    return StoredLetter(
        message,
        _field(record, "error_type", str),
        _field(record, "error", str),
        attempts,
        float(failed_at),
        _log(record),
        _field(record, "traceback", str) if "traceback" in record else "",
    )


def _log(record: dict[str, Any]) -> LogId:
    """Return what is recorded of the log; nothing in letters of earlier releases."""
    topic_id = _field(record, "topic_id", str) if record.get("topic_id") is not None else None
    known = record.get("leader_epoch") is not None
    return LogId.from_text(topic_id, _number(record, "leader_epoch", _MAX_EPOCH) if known else None)


def _field(record: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is missing or of the wrong type")
    return value


def _number(record: dict[str, Any], name: str, most: int) -> int:
    value: int = _field(record, name, int)
    if not 0 <= value <= most:
        raise ValueError(f"{name} is out of range")
    return value


def _bytes(record: dict[str, Any], name: str) -> bytes | None:
    value = record.get(name)
    return None if value is None else _from_base64(value, name)


def _from_base64(value: object, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]  # it may be anything
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"{name} is not base64") from None


def _headers(record: dict[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    found = record.get("headers") or []
    if not isinstance(found, list):
        raise ValueError("headers must be a list")
    headers = []
    for header in found:
        if not isinstance(header, list) or len(header) != 2 or not isinstance(header[0], str):
            raise ValueError("headers must be pairs of a name and a value")
        headers.append((header[0], None if header[1] is None else _from_base64(header[1], "a header")))
    return tuple(headers)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
