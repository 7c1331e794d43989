"""Rows as Parquet.

Strategy: columns are collected as plain lists and cut into row groups by rows and bytes, never by how the input came
in, so that the same segment always gives the same file. Columns with few values are handed over as dictionaries,
which cost next to nothing per row; readers see plain strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consumerd.archive.extras import extra
from consumerd.archive.rows import boundaries
from consumerd.wire.v07 import Codec

if TYPE_CHECKING:
    from consumerd.archive.ndjson import ByteSink
    from consumerd.archive.options import ExportCompression
    from consumerd.archive.rows import RowOrigin
    from consumerd.storage.archive import ArchivedRun, Flaw

#: A row group ends at the first of these.
GROUP_ROWS = 1 << 17
GROUP_BYTES = 64 << 20

#: The names that a cell of `codec` is an index of; None where it is unknown.
_CODECS = [codec.name.lower() for codec in Codec]
#: Columns worth a dictionary inside of the file.
_FEW_VALUES = ["topic", "broker", "partition", "index", "codec", "magic", "problem", "source"]


def require_parquet() -> None:
    """Check that Parquet can be written, before any work is done. Raises MissingExtraError."""
    extra("pyarrow.parquet", "writing Parquet")


class ParquetRows:
    """See `consumerd.archive.rows.RowWriter`. Memory: one row group and its columns."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, compression: ExportCompression) -> None:
        self._arrow: Any = extra("pyarrow", "writing Parquet")
        parquet: Any = extra("pyarrow.parquet", "writing Parquet")
        self._origin = origin
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(
            self._arrow.PythonFile(sink, mode="w"),
            self._schema,
            compression=str(compression),
            use_dictionary=_FEW_VALUES,
            write_statistics=[name for name in self._schema.names if name not in ("payload", "problem")],
            store_schema=False,  # else the file would tell readers to restore the dictionaries
        )
        self._start_group()

    def _start_group(self) -> None:
        self._bytes = 0
        self._offsets: list[int] = []
        self._indexes: list[int] = []
        self._nexts: list[int] = []
        self._codecs: list[int | None] = []
        self._magics: list[int | None] = []
        self._payloads: list[bytes] = []
        #: Row number -> the flaw that the row is.
        self._flaws: dict[int, Flaw] = {}

    def add_run(self, run: ArchivedRun) -> None:
        plain = run.codec is Codec.NONE
        ends = boundaries(run) if plain else []
        total = len(run.payloads)
        for start in range(0, total, GROUP_ROWS):  # a wrapper may have millions
            end = min(start + GROUP_ROWS, total)
            count = end - start
            if plain:
                self._offsets += ends[start:end]
                self._nexts += ends[start + 1 : end + 1]
                self._indexes += [0] * count
            else:
                self._offsets += [run.offset] * count
                self._nexts += [run.offset] * count
                self._indexes += range(start, end)
                if end == total:
                    self._nexts[-1] = run.next_offset
            payloads = run.payloads[start:end]
            self._payloads += payloads
            self._codecs += [int(run.codec)] * count
            self._magics += [run.magic] * count
            self._bytes += sum(map(len, payloads))
            self._end_group_if_full()

    def add_flaw(self, flaw: Flaw) -> None:
        self._flaws[len(self._payloads)] = flaw
        self._offsets.append(flaw.offset)
        self._nexts.append(flaw.next_offset)
        self._indexes.append(0)
        self._payloads.append(flaw.raw)
        self._codecs.append(None if flaw.codec is None else int(flaw.codec))
        self._magics.append(flaw.magic)
        self._bytes += len(flaw.raw)
        self._end_group_if_full()

    def finish(self) -> None:
        if self._payloads:
            self._end_group()
        self._writer.close()

    def _end_group_if_full(self) -> None:
        if len(self._payloads) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._end_group()

    def _end_group(self) -> None:
        arrow, origin, count = self._arrow, self._origin, len(self._payloads)
        intact, problems = arrow.repeat(arrow.scalar(True), count), arrow.nulls(count, arrow.string())
        if self._flaws:
            found = [self._flaws.get(row) for row in range(count)]
            intact = arrow.array([flaw is None or flaw.crc_ok for flaw in found], arrow.bool_())
            problems = arrow.array([flaw and flaw.problem for flaw in found], arrow.string())
        columns = {
            "topic": same_text(arrow, origin.topic, count),
            "broker": arrow.repeat(arrow.scalar(origin.broker, arrow.int32()), count),
            "partition": arrow.repeat(arrow.scalar(origin.partition, arrow.int32()), count),
            "offset": arrow.array(self._offsets, arrow.int64()),
            "index": arrow.array(self._indexes, arrow.int32()),
            "next_offset": arrow.array(self._nexts, arrow.int64()),
            "codec": arrow.DictionaryArray.from_arrays(arrow.array(self._codecs, arrow.int8()), arrow.array(_CODECS)),
            "magic": arrow.array(self._magics, arrow.uint8()),
            "crc_ok": intact,
            "payload": arrow.array(self._payloads, arrow.binary()),
            "problem": problems,
            "source": same_text(arrow, origin.source, count),
        }
        self._start_group()
        self._writer.write_table(arrow.table(columns, schema=self._schema), row_group_size=count)


def same_text(arrow: Any, text: str, count: int) -> Any:
    """A column of `count` equal texts."""
    # A third of the time of `repeat`, which appends one after the other.
    indexes = arrow.Array.from_buffers(arrow.int8(), count, [None, arrow.py_buffer(bytes(count))])
    return arrow.DictionaryArray.from_arrays(indexes, arrow.array([text], arrow.string()), safe=False)


def identity_fields(arrow: Any) -> list[Any]:
    """The columns that say which message a row is, in every Parquet file of ours."""
    return [
        arrow.field("topic", _few(arrow), nullable=False),
        arrow.field("broker", arrow.int32()),
        arrow.field("partition", arrow.int32(), nullable=False),
        arrow.field("offset", arrow.int64(), nullable=False),
        arrow.field("index", arrow.int32(), nullable=False),
        arrow.field("next_offset", arrow.int64(), nullable=False),
    ]


def _few(arrow: Any) -> Any:
    return arrow.dictionary(arrow.int8(), arrow.string())


def _schema(arrow: Any) -> Any:
    few = _few(arrow)
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("codec", few),
            arrow.field("magic", arrow.uint8()),  # a flaw's may be any byte
            arrow.field("crc_ok", arrow.bool_(), nullable=False),
            arrow.field("payload", arrow.binary(), nullable=False),
            arrow.field("problem", arrow.string()),
            arrow.field("source", few, nullable=False),
        ]
    )
