from __future__ import annotations

import base64
import io
import json
from typing import Any

import pyarrow.parquet
import pytest

from consumerd.storage.archives import parquet
from consumerd.storage.archives.ndjson import NdjsonWriter
from consumerd.storage.archives.options import ExportCompression
from consumerd.storage.archives.parquet import ParquetRows
from consumerd.storage.archives.rows import RowOrigin, RowWriter, within
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, FlawKind
from consumerd.storage.log.archive_names import SegmentName
from consumerd.wire.v07 import Codec

PLAIN = ArchivedRun(100, 142, 1, Codec.NONE, [b"hello", b"", b"\xff\x00q"])
OLD = ArchivedRun(142, 152, 0, Codec.NONE, [b"x"])
WRAPPER = ArchivedRun(152, 200, 1, Codec.GZIP, [b'"\\\n\x07', "é\u2028\N{SNOWMAN}".encode(), b"c"])
EMPTY = ArchivedRun(200, 240, 1, Codec.SNAPPY, [])
FLAW = Flaw(FlawKind.CRC, 240, 260, 'bad "crc"', 1, Codec.NONE, False, b"raw\xff")
UNKNOWN = Flaw(FlawKind.MAGIC, 260, 270, "magic", 200, None, False, b"\xc8")
ITEMS: list[ArchivedRun | Flaw] = [PLAIN, OLD, WRAPPER, EMPTY, FLAW, UNKNOWN]
ROWS = [
    (100, 0, 115, "none", 1, True, b"hello", None),
    (115, 0, 125, "none", 1, True, b"", None),
    (125, 0, 138, "none", 1, True, b"\xff\x00q", None),
    (142, 0, 152, "none", 0, True, b"x", None),
    (152, 0, 152, "gzip", 1, True, b'"\\\n\x07', None),
    (152, 1, 152, "gzip", 1, True, "é\u2028\N{SNOWMAN}".encode(), None),
    (152, 2, 200, "gzip", 1, True, b"c", None),
    (240, 0, 260, "none", 1, False, b"raw\xff", 'bad "crc"'),
    (260, 0, 270, None, 200, False, b"\xc8", "magic"),
]
FIELDS = ("offset", "index", "next_offset", "codec", "magic", "crc_ok", "payload", "problem")
NAME = SegmentName('top"ic', 3, 7, 100)


def fed(writer: RowWriter) -> None:
    for item in ITEMS:
        if isinstance(item, ArchivedRun):
            writer.add_run(item)
        else:
            writer.add_flaw(item)
    writer.finish()


def expected(broker: int | None = 3) -> list[dict[str, Any]]:
    common = {"topic": 'top"ic', "broker": broker, "partition": 7, "source": "/a b"}
    return [{**common, **dict(zip(FIELDS, row, strict=True))} for row in ROWS]


def ndjson(*, base64: bool = False, broker: int | None = 3) -> list[dict[str, Any]]:
    sink = io.BytesIO()
    fed(NdjsonWriter(sink, RowOrigin(NAME._replace(broker=broker), "/a b"), base64=base64))
    lines = sink.getvalue().decode().split("\n")
    assert lines.pop() == ""
    return [json.loads(line) for line in lines]


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    if "payload_base64" in row:
        row["payload"] = base64.b64decode(row.pop("payload_base64"))
    else:
        row["payload"] = row["payload"].encode()
    return {"problem": None, **row}


@pytest.mark.parametrize("broker", [3, None])
def test_writes_every_column_to_ndjson(broker: int | None) -> None:
    assert [decoded(row) for row in ndjson(broker=broker)] == expected(broker)
    assert " ".join(ndjson()[0]) == "topic broker partition offset index next_offset codec magic crc_ok payload source"


def test_writes_text_to_ndjson_where_the_payload_is_utf_8() -> None:
    assert ["payload" in row for row in ndjson()] == [True, True, False, True, True, True, True, False, False]
    assert not any("payload" in row for row in ndjson(base64=True))
    assert [decoded(row) for row in ndjson(base64=True)] == expected()


@pytest.mark.parametrize("broker", [3, None])
@pytest.mark.parametrize("compression", list(ExportCompression))
def test_writes_every_column_to_parquet(broker: int | None, compression: ExportCompression) -> None:
    sink = io.BytesIO()
    fed(ParquetRows(Keep(sink), RowOrigin(NAME._replace(broker=broker), "/a b"), compression))
    sink.seek(0)
    table = pyarrow.parquet.read_table(sink)
    assert table.to_pylist() == expected(broker)
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        "topic": "string",
        "broker": "int32",
        "partition": "int32",
        "offset": "int64",
        "index": "int32",
        "next_offset": "int64",
        "codec": "string",
        "magic": "uint8",
        "crc_ok": "bool",
        "payload": "binary",
        "problem": "string",
        "source": "string",
    }


class Keep(io.RawIOBase):
    """Passes writes on and leaves the file open."""

    def __init__(self, sink: io.BytesIO) -> None:
        self.sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self.sink.write(data)


def test_row_groups_depend_on_rows_and_bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1000)

    def groups(*runs: ArchivedRun) -> list[int]:
        sink = io.BytesIO()
        writer = ParquetRows(Keep(sink), RowOrigin(NAME, ""), ExportCompression.NONE)
        for run in runs:
            writer.add_run(run)
        writer.finish()
        found = pyarrow.parquet.ParquetFile(io.BytesIO(sink.getvalue()))
        table = found.read()
        assert table["index"].to_pylist() == [
            index for run in runs for index in (range(len(run.payloads)) if run.codec else [0] * len(run.payloads))
        ]
        last = table["next_offset"].to_pylist()[-1]
        assert last == runs[-1].next_offset
        return [found.metadata.row_group(number).num_rows for number in range(found.metadata.num_row_groups)]

    assert groups(ArchivedRun(0, 110, 1, Codec.NONE, [b"x"] * 10)) == [4, 4, 2]
    assert groups(ArchivedRun(0, 50, 1, Codec.GZIP, [b"x"] * 9)) == [4, 4, 1]
    assert groups(*[ArchivedRun(n * 510, n * 510 + 510, 1, Codec.NONE, [b"x" * 500]) for n in range(5)]) == [2, 2, 1]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, None, (100, 138, 3)),
        (100, 138, (100, 138, 3)),
        (101, None, (115, 138, 2)),
        (115, 116, (115, 125, 1)),
        (0, 115, (100, 115, 1)),
        (126, None, None),
        (0, 100, None),
        (0, 101, (100, 115, 1)),
        (125, 126, (125, 138, 1)),
        (116, 125, None),
    ],
)
def test_selects_ranges_of_plain_messages(first: int, last: int | None, expected: tuple[int, int, int] | None) -> None:
    run = within(ArchivedRun(100, 138, 1, Codec.NONE, [b"hello", b"", b"abc"]), first, last)
    assert (run and (run.offset, run.next_offset, len(run.payloads))) == expected


@pytest.mark.parametrize(("first", "last", "wanted"), [(152, 153, True), (153, None, False), (0, 152, False)])
def test_selects_a_wrapper_as_a_whole(first: int, last: int | None, wanted: bool) -> None:
    assert within(WRAPPER, first, last) == (WRAPPER if wanted else None)
