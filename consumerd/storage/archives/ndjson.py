"""Rows as NDJSON: one object per line, with the members of a row in their order.

`payload` is text where the payload is UTF-8; otherwise there is `payload_base64` in its place. Text is kept exactly.
`problem` is there only where there is one.
"""

from __future__ import annotations

import contextlib
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Protocol

from consumerd.storage.archives.rows import RowOrigin, json_frame
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, IndexedMessages
from consumerd.wire.v07 import Codec

#: Rows put together at once: a wrapper may have millions.
_SLICE = 4096
#: Characters that are written at once, at least.
_BUFFER = 1 << 20
#: Payloads looked through at once for what JSON escapes.
_LOOK = 64
_ESCAPED = bytes(range(32)) + b'"\\'


class ByteSink(Protocol):
    """A writable stream of bytes."""

    def write(self, data: bytes, /) -> object: ...


def _texts(payloads: list[bytes]) -> Iterator[str]:
    """The members of the payloads. Escaping costs ten times as much as the check whether it is needed."""
    for start in range(0, len(payloads), _LOOK):
        part = payloads[start : start + _LOOK]
        joined = b"".join(part)
        if len(joined.translate(None, _ESCAPED)) == len(joined):
            with contextlib.suppress(UnicodeDecodeError):
                yield from [f'"payload":"{payload.decode()}"' for payload in part]
                continue
        yield from map(_text, part)


def _text(payload: bytes) -> str:
    return member("payload", payload, base64=False)


def _all_base64(payloads: list[bytes]) -> Iterator[str]:
    return (member("payload", payload, base64=True) for payload in payloads)


def member(name: str, data: bytes | None, *, base64: bool) -> str:
    """The member `name` of an object: text where `data` is UTF-8, else, or with `base64`, `name_base64`."""
    if data is None:
        return f'"{name}":null'
    if not base64:
        try:
            return f'"{name}":{encode_basestring(data.decode())}'
        except UnicodeDecodeError:
            pass  # not text: in base64
    return f'"{name}_base64":"{b2a_base64(data, newline=False).decode()}"'


def _kind(codec: Codec, magic: int) -> str:
    return f',"codec":"{codec.name.lower()}","magic":{magic},"crc_ok":true,'


class NdjsonLines:
    """Writes lines to a file, many at once."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, *, base64: bool) -> None:
        self._sink = sink
        self._head, self._tail = json_frame(origin)
        self._base64 = base64
        self._lines: list[str] = []
        self._size = 0

    def _write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            self._size += len(line)
            if self._size >= _BUFFER:
                self.finish()

    def finish(self) -> None:
        if self._lines:
            # A name of a header may be what no encoding can write.
            self._sink.write("".join(self._lines).encode(errors="backslashreplace"))
        self._lines, self._size = [], 0


class NdjsonWriter(NdjsonLines):
    """See `consumerd.storage.archives.rows.RowWriter`."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, *, base64: bool) -> None:
        super().__init__(sink, origin, base64=base64)
        self._payloads: Callable[[list[bytes]], Iterator[str]] = _all_base64 if base64 else _texts

    def add_run(self, run: ArchivedRun) -> None:
        head, payloads = self._head, self._payloads(run.payloads)
        kind, tail = _kind(run.codec, run.magic), self._tail
        if run.codec is Codec.NONE:
            rows = (
                f'{head}{offset},"index":0,"next_offset":{after}{kind}{payload}{tail}'
                for payload, (offset, after) in zip(payloads, pairwise(run.boundaries()), strict=True)
            )
        else:
            head += str(run.offset)
            final = len(run.payloads) - 1
            rows = (
                f'{head},"index":{index},"next_offset":{run.next_offset if index == final else run.offset}{kind}'
                f"{payload}{tail}"
                for index, payload in enumerate(payloads)
            )
        self._write(rows)

    def add_indexed(self, messages: IndexedMessages) -> None:
        self.finish()
        head, tail, payloads = self._head.encode(), self._tail.encode(), messages.payloads
        first = 0
        for count, magic, codec in messages.kinds(0, len(payloads)):
            kind, end = _kind(codec, magic).encode(), first + count
            for start in range(first, end, _SLICE):
                stop = min(start + _SLICE, end)
                rows = payloads.json_rows(
                    start, stop, messages.offset, messages.next_offset, head, kind, tail, self._base64
                )
                self._sink.write(rows)
            first = end

    def add_flaw(self, flaw: Flaw) -> None:
        codec = "null" if flaw.codec is None else f'"{flaw.codec.name.lower()}"'
        magic = "null" if flaw.magic is None else flaw.magic
        row = (
            f'{self._head}{flaw.offset},"index":0,"next_offset":{flaw.next_offset},"codec":{codec},"magic":{magic},'
            f'"crc_ok":{"true" if flaw.crc_ok else "false"},{next(self._payloads([flaw.raw]))},'
            f'"problem":{encode_basestring(flaw.problem)}{self._tail}'
        )
        self._write([row])
