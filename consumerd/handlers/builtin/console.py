"""The handler behind `consumerd consume`: payloads, or NDJSON, to standard output, until there are enough.

Strategy: `PrintHandler` writes, so that a slow or vanished reader of the output is met in one way; only what a message
looks like differs. The limit counts messages that are out: a batch that is too long is cut in front, what is out is
marked, and the error that says "enough" leaves exactly those handled, and so committed.

Values are decoded in front of it by the daemon's own stage. A message that cannot be decoded has an error as its value,
so that it is written in its place as any other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, Literal, NamedTuple, cast, get_args

from consumerd.base.errors import ConsumerdError, ExitCode, HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.builtin.print import PrintHandler
from consumerd.handlers.builtin.records import encode_records, value_field
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.decoding.api import Decoder, NotReadyError
from consumerd.handlers.decoding.stage import Decoding
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.messages import Batch, KeyedMessage, Message
from consumerd.handlers.tracebacks import brief
from consumerd.net.schemas.errors import DecodeError

#: What a format shows of a message, by the letter that kcat has for it.
Field = Literal["s", "S", "k", "K", "t", "p", "o", "T", "h"]
_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def parse_form(text: str) -> list[bytes | Field]:
    """Parse a format of kcat into texts and fields. Raises ValueError for an unknown letter or escape."""
    parts: list[bytes | Field] = []
    end = 0
    for found in _TOKEN.finditer(text):
        parts.append(text[end : found.start()].encode())
        end = found.end()
        letter, escape = found.groups()
        if letter is not None and letter in get_args(Field):
            parts.append(cast("Field", letter))
        elif letter == "%":
            parts.append(b"%")
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif escape is not None and escape.startswith("x") and len(escape) > 1:
            parts.append(bytes.fromhex(escape[1:]))
        else:
            letters = ", ".join(f"%{each}" for each in get_args(Field))
            raise ValueError(
                f"must consist of {letters}, %%, \\n, \\t, \\r, \\0, \\\\, \\xHH and text, not {found[0]!r}"
            )
    parts.append(text[end:].encode())
    return [part for part in parts if part]


def _shown(part: bytes | Field, message: Message | KeyedMessage) -> bytes:
    """A part of a format, of one message. The size of what is null is -1, as in kcat."""
    match part:
        case bytes():
            return part
        case "s" | "k":
            return (message.payload if part == "s" else message.key) or b""
        case "S" | "K":
            content = message.payload if part == "S" else message.key
            return b"%d" % (-1 if content is None else len(content))
        case "t":
            return message.topic.encode()
        case "p":
            return message.partition.name.encode()
        case "o":
            return b"%d" % message.offset
        case "T":
            return b"%d" % message.timestamp
        case "h":
            return b",".join(name.encode() + b"=" + (value or b"") for name, value in message.headers)


class UndecodableError(ConsumerdError):
    """Some of the printed messages could not be decoded."""

    exit_code: ClassVar[ExitCode] = ExitCode.CHECK_FAILED


class _Shown(NamedTuple):
    """The member that a message's line gets from its decoder."""

    field: bytes
    decoded: bool


_NULL: Final = _Shown(value_field(None), decoded=True)


class _Showing:
    """A decoder whose values are members of JSON objects: an error, too, is one."""

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode

    def decode(self, message: Message) -> _Shown:
        try:
            return _Shown(value_field(self._decode(message)), decoded=True)
        except NotReadyError:
            raise
        except DecodeError as error:
            return _Shown(value_field(str(error), "error"), decoded=False)
        except (Exception, SystemExit) as error:
            return _Shown(value_field(brief(error), "error"), decoded=False)


class EnoughError(HandlerFailedError):
    """As many messages as were asked for are out: not a failure, but the way to stop within a batch."""

    exit_code: ClassVar[ExitCode] = ExitCode.OK


class ConsoleHandler(PrintHandler):
    """Writes payloads with a newline after each (nothing before it for a tombstone), or records where `as_json`.

    `key_separator`: write the key and this before each payload (nothing for the key of a message without one). `form`:
    write these for each message, as `parse_form` returns them. `starts`: the offset at which a partition begins.
    EnoughError ends it at `max_messages`. `undecodable`: printed messages that a decoder, if there is one, could not
    decode.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        max_messages: int | None = None,
        key_separator: bytes | None = None,
        form: Sequence[bytes | Field] | None = None,
        starts: Mapping[TopicPartition, int] | None = None,
        descriptor: int = 1,
    ) -> None:
        super().__init__(descriptor)
        self._form = form
        self._starts = starts or {}
        self._as_json = as_json
        self._separator = key_separator
        self._left = max_messages
        self.undecodable = 0

    def behind(self, decoder: Decoder) -> Decoding:
        """The handler of messages that `decoder` decodes: with `as_json`, lines have their values."""
        # Nothing is given up, since an error is a value here.
        counts = HandlerCounts()
        return Decoding(self, _Showing(decoder), GivingUp("print", "stop", None, counts), counts)

    def lines(self, batch: Batch) -> Iterable[bytes]:
        """As many lines as are still wanted."""
        lines: Iterable[bytes]
        if self._as_json:
            lines = encode_records(batch)
            if batch.decoded:
                shown: Iterable[_Shown | None] = batch.values
                lines = (
                    b"%b,%b}\n" % (line.removesuffix(b"}\n"), (each or _NULL).field)
                    for line, each in zip(lines, shown, strict=True)
                )
        elif self._form is not None:
            form = self._form
            lines = (b"".join(_shown(part, message) for part in form) for message in batch.messages())
        elif self._separator is not None:
            keys = batch.keys or [None] * len(batch)
            separator = self._separator
            pairs = zip(keys, batch, strict=True)
            lines = (b"".join((key or b"", separator, payload or b"", b"\n")) for key, payload in pairs)
        else:
            lines = ((payload or b"") + b"\n" for payload in batch)
        return lines if self._left is None else islice(lines, self._left)

    async def position(self, partition: TopicPartition) -> int | None:
        """Where the partition begins, if that was given."""
        return self._starts.get(partition)

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
            if batch.decoded:
                self.undecodable += sum(not (each or _NULL).decoded for each in batch.values[before : batch.handled])
