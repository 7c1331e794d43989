"""Rows as NDJSON: one object per line, with the members of a row in their order.

`payload` is text where the payload is UTF-8; otherwise there is `payload_base64` in its place. Text is kept exactly.
`problem` is there only where there is one.
"""

from __future__ import annotations

from binascii import b2a_base64
from itertools import pairwise
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Protocol

from consumerd.archive.rows import boundaries
from consumerd.wire.v07 import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from consumerd.archive.rows import Origin
    from consumerd.storage.archive import Flaw, Run

#: Rows put together at once: a wrapper may have millions.
_SLICE = 4096


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object: ...


def _text(payload: bytes) -> str:
    try:
        return f'"payload":{encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return _base64(payload)


def _base64(payload: bytes) -> str:
    return f'"payload_base64":"{b2a_base64(payload, newline=False).decode()}"'


class NdjsonWriter:
    """See `consumerd.archive.rows.RowWriter`."""

    def __init__(self, sink: Sink, origin: Origin, *, base64: bool) -> None:
        self._sink = sink
        broker = "null" if origin.broker is None else origin.broker
        topic, self._source = encode_basestring(origin.topic), encode_basestring(origin.source)
        self._head = f'{{"topic":{topic},"broker":{broker},"partition":{origin.partition},"offset":'
        self._payload: Callable[[bytes], str] = _base64 if base64 else _text

    def add_run(self, run: Run) -> None:
        head, payload = self._head, self._payload
        kind = f',"codec":"{run.codec.name.lower()}","magic":{run.magic},"crc_ok":true,'
        tail = f',"source":{self._source}}}\n'
        if run.codec is Codec.NONE:
            rows = (
                f'{head}{offset},"index":0,"next_offset":{after}{kind}{payload(data)}{tail}'
                for data, (offset, after) in zip(run.payloads, pairwise(boundaries(run)), strict=True)
            )
        else:
            head += str(run.offset)
            final = len(run.payloads) - 1
            rows = (
                f'{head},"index":{index},"next_offset":{run.next_offset if index == final else run.offset}{kind}'
                f"{payload(data)}{tail}"
                for index, data in enumerate(run.payloads)
            )
        self._write(rows)

    def add_flaw(self, flaw: Flaw) -> None:
        codec = "null" if flaw.codec is None else f'"{flaw.codec.name.lower()}"'
        magic = "null" if flaw.magic is None else flaw.magic
        row = (
            f'{self._head}{flaw.offset},"index":0,"next_offset":{flaw.next_offset},"codec":{codec},"magic":{magic},'
            f'"crc_ok":{"true" if flaw.crc_ok else "false"},{self._payload(flaw.raw)},'
            f'"problem":{encode_basestring(flaw.problem)},"source":{self._source}}}\n'
        )
        self._write([row])

    def finish(self) -> None: ...

    def _write(self, rows: Iterable[str]) -> None:
        lines: list[str] = []
        for row in rows:
            lines.append(row)
            if len(lines) == _SLICE:
                self._sink.write("".join(lines).encode())
                lines.clear()
        if lines:
            self._sink.write("".join(lines).encode())
