"""The handler `parquet` on a file system and on a store of objects, read back by pyarrow."""

from __future__ import annotations

import datetime
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
import pytest_asyncio
from pyarrow import parquet as pq

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.base.files import StrPath, SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext, PartitionTakenError, load_handler
from consumerd.handlers.builtin import parquet_rows
from consumerd.handlers.builtin.parquet import ParquetHandler
from consumerd.handlers.builtin.parquet_rows import parquet_pieces
from consumerd.handlers.builtin.ranges import RangeOverlapError
from consumerd.handlers.secrets import HIDDEN, shown_options
from consumerd.storage.archives.options import ExportCompression
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.object_store import PROTOCOL, FolderStore

MakeBatch = Callable[..., Batch]


ROOT = Path(__file__).parents[3]
HERE = TopicPartition("t", 0, 0)

TYPES = {
    "topic": "string",
    "broker": "int32",
    "partition": "int32",
    "offset": "int64",
    "index": "int32",
    "next_offset": "int64",
    "key": "binary",
    "timestamp": "timestamp[ms, tz=UTC]",
    "raw_timestamp": "int64",
    "headers": "list<element: struct<name: string not null, value: binary>>",
    "payload": "binary",
}


def rows(path: Path | str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return found


def written(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


@pytest.fixture(params=["path", "url", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same folder, as a file system and as a store."""
    return {"path": f"{tmp_path}/out", "url": f"file://{tmp_path}/out", "objects": f"folders://{tmp_path}/out"}[
        request.param
    ]


@pytest_asyncio.fixture
async def handler(place: str, clock: Any) -> AsyncIterator[Handler]:
    made = load_handler("parquet", {"directory": place})
    await made.start(HandlerContext("g", "g_1", clock))
    yield made
    await made.stop()


# -- files


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("compression", list(ExportCompression))
async def test_file_has_every_message_with_its_identity(
    tmp_path: Path, make_batch: MakeBatch, compression: str
) -> None:
    handler = load_handler("parquet", {"directory": str(tmp_path), "compression": compression})
    batch = make_batch(b"one", [b"two", b"\xff"], b"", start=71, topic="events", broker=1, partition=10)
    await handler.handle(batch)
    await handler.stop()
    (name,) = written(tmp_path)
    assert name == f"events/1-10/{71:020}-{batch.next_offset:020}.parquet"
    table = pq.read_table(tmp_path / name, partitioning=None)
    assert {field.name: str(field.type) for field in table.schema} == TYPES
    assert [(*message.partition, *message[1:]) for message in batch.messages()] == [
        tuple(row[column] for column in ("topic", "broker", "partition", "offset", "index", "next_offset", "payload"))
        for row in table.to_pylist()
    ]
    assert {column: table[column].null_count for column in ("key", "timestamp", "headers")} == dict.fromkeys(
        ("key", "timestamp", "headers"), 4
    )
    group = pq.ParquetFile(tmp_path / name).metadata.row_group(0)
    shown = "UNCOMPRESSED" if compression == "none" else compression.upper()
    assert group.column(0).compression == shown
    assert batch.handled == 4


@pytest.mark.usefixtures("either_codec")
async def test_a_file_with_microseconds_for_milliseconds_can_be_read(tmp_path: Path) -> None:
    when, wrong, worst = 1_700_000_000_123, 1_700_000_000_123_000, 1_700_000_000_123_000_000
    data = encode_record_batch([b"a", b"b", b"c", b"d"], timestamps=[when, wrong, worst, -1])
    handler = load_handler("parquet", {"directory": str(tmp_path)})
    await handler.handle(Batch(TopicPartition.numbered("t", 3), decode_records(data, 0)))
    await handler.stop()
    (path,) = tmp_path.rglob("*.parquet")
    file = pq.ParquetFile(path)
    found = file.read().to_pylist()
    read = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, datetime.UTC)
    assert [row["timestamp"] for row in found] == [read, None, None, None]
    assert [row["raw_timestamp"] for row in found] == [None, wrong, worst, None]
    column = file.schema_arrow.get_field_index("timestamp")
    assert file.metadata.row_group(0).column(column).statistics.max == read


async def test_messages_of_later_brokers_have_keys_timestamps_headers_and_tombstones(tmp_path: Path) -> None:
    data = encode_record_batch(
        [b"one", None, b"\xff"],
        keys=[b"k", b"gone", None],
        timestamps=[1_700_000_000_123, 0, -1],
        headers={0: (("h", b"v"), ("n", None))},
        base_offset=7,
    )
    batch = Batch(TopicPartition.numbered("t", 3), decode_records(data, 7))
    await ParquetHandler(tmp_path).handle(batch)
    (name,) = written(tmp_path)
    assert name.startswith("t/3/")
    first, second, third = rows(tmp_path / name)
    when = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.UTC)
    assert first == {
        "topic": "t", "broker": None, "partition": 3, "offset": 7, "index": 0, "next_offset": 8, "key": b"k",
        "timestamp": when, "raw_timestamp": None,
        "headers": [{"name": "h", "value": b"v"}, {"name": "n", "value": None}], "payload": b"one",
    }  # fmt: skip
    assert (second["key"], second["payload"], second["timestamp"].timestamp()) == (b"gone", None, 0.0)
    assert (third["key"], third["payload"], third["timestamp"], third["headers"]) == (None, b"\xff", None, [])


def test_documents_the_columns() -> None:
    text = (ROOT / "docs" / "handlers.md").read_text().partition("### parquet")[2].partition("\n### ")[0]
    documented = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].strip("`") in TYPES:
            documented[cells[0]] = cells[1]
    assert documented == {**TYPES, "headers": "list<struct<name: string, value: binary>>"}


def test_the_same_batch_makes_the_same_bytes_in_several_row_groups(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parquet_rows, "GROUP_ROWS", 10)
    made = [[*parquet_pieces(make_batch([b"x"] * 25), ExportCompression.ZSTD)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(made[0]) == 4
    (tmp_path / "x.parquet").write_bytes(b"".join(made[0]))
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_row_groups == 3
    assert file.read().column("index").to_pylist() == list(range(25))


async def test_encodes_and_writes_in_a_thread(tmp_path: Path, make_batch: MakeBatch) -> None:
    threads: list[int] = []

    class Noted(SystemFiles):
        def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
            threads.append(threading.get_ident())
            super().write(path, self.noted(pieces))

        def noted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                threads.append(threading.get_ident())
                yield piece

    await ParquetHandler.on(Noted(), tmp_path).handle(make_batch(b"a"))
    assert len(threads) >= 2
    assert threading.get_ident() not in threads


# -- once


async def test_position_is_the_end_of_the_last_range(
    handler: Handler, place: str, make_batch: MakeBatch, clock: Any
) -> None:
    assert await handler.position(HERE) is None
    first, gap = make_batch(b"one"), make_batch(b"two", start=1000)
    await handler.handle(first)
    await handler.handle(gap)
    other = load_handler("parquet", {"directory": place})
    await other.start(HandlerContext("g", "g_2", clock))
    for each in (handler, other):
        assert await each.position(HERE) == gap.next_offset
        assert await each.position(TopicPartition("t", 0, 1)) is None
    await other.stop()


async def test_stores_a_batch_once_if_its_confirmation_is_lost(
    handler: Handler, make_batch: MakeBatch, tmp_path: Path
) -> None:
    for _ in range(3):
        batch = make_batch(b"one", b"two")
        await handler.handle(batch)
        assert batch.handled == 2
    assert len([name for name in written(tmp_path) if name.endswith(".parquet")]) == 1
    with pytest.raises(RangeOverlapError, match="offset 0 of t/0-0 is below 26, where the files in"):
        await handler.handle(make_batch(b"six", b"two"))


async def test_former_owner_cannot_write(handler: Handler, place: str, make_batch: MakeBatch, clock: Any) -> None:
    first, second, third = make_batch(b"one"), make_batch(b"two", start=13), make_batch(b"three", start=13)
    await handler.handle(first)
    other = load_handler("parquet", {"directory": place})
    await other.start(HandlerContext("g", "g_2", clock))
    assert await other.position(HERE) == first.next_offset
    await other.handle(third)
    with pytest.raises(PartitionTakenError, match="another member took over t/0-0"):
        await handler.handle(second)
    assert await handler.position(HERE) == third.next_offset
    await other.stop()


async def test_an_upload_whose_answer_was_lost_is_made_again(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = load_handler("parquet", {"directory": f"folders://{tmp_path}"})
    await handler.start(HandlerContext("g", "g_1", clock))
    whole = FolderStore.pipe_file

    def lost(self: FolderStore, path: str, value: bytes, **_: Any) -> None:
        whole(self, path, value)
        raise TimeoutError("no answer")

    batch = make_batch(b"one")
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "pipe_file", lost)
        with pytest.raises(TimeoutError):
            await handler.handle(batch)
    assert not batch.counted
    await handler.handle(batch)
    await handler.handle(make_batch(b"two", start=batch.next_offset))
    assert len(written(tmp_path)) == 2


async def test_a_failed_upload_leaves_nothing(
    make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    handler = load_handler("parquet", {"directory": "memory://failed-upload"})
    await handler.start(HandlerContext("g", "g_1", clock))

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("reset by peer")

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "pipe_file", fail)
        with pytest.raises(OSError, match="reset by peer"):
            await handler.handle(make_batch(b"one"))
    assert memory.find("/failed-upload") == []
    await handler.handle(make_batch(b"one"))
    (path,) = memory.find("/failed-upload")
    with memory.open(path) as file:
        assert pq.read_table(file).column("payload").to_pylist() == [b"one"]
    memory.rm("/failed-upload", recursive=True)


@pytest.mark.parametrize("options", [{}, {"use_listings_cache": True}])
async def test_sees_what_another_member_wrote_though_the_driver_keeps_listings(
    make_batch: MakeBatch, clock: Any, tmp_path: Path, options: dict[str, bool]
) -> None:
    directory = f"{PROTOCOL}://{tmp_path}"
    members = [load_handler("parquet", {"directory": directory, "storage_options": options}) for _ in range(2)]
    for member in members:
        await member.start(HandlerContext("g", "g_1", clock))
    first = make_batch(b"one")
    await members[0].handle(first)
    await members[1].handle(make_batch(b"two", start=first.next_offset))
    with pytest.raises(PartitionTakenError, match="another member took over"):
        await members[0].handle(make_batch(b"three", start=first.next_offset))
    assert len(written(tmp_path)) == 2


# -- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"directory": 5}, "directory must be a path or URL"),
        ({"directory": ""}, "directory must be a path or URL"),
        ({"directory": "file://other/x"}, "directory must be of the form file:///path"),
        ({"directory": "sftp://host/x"}, "directory must be a path or a store of objects such as s3://, not sftp://"),
        ({"compression": "lz77"}, "compression must be one of none, gzip, zstd, snappy"),
        ({"storage_options": {"key": "x"}}, "needs a directory that is a URL"),
        ({"directory": "memory://x", "storage_options": "y"}, "storage_options must be a table"),
    ],
)
def test_names_each_wrong_option(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        load_handler("parquet", {"directory": "/nowhere", **options})


@pytest.mark.parametrize(
    ("directory", "words"),
    [("nosuch://bucket/x", "nosuch://bucket/x cannot be used: .*nosuch"), ("{}/file/x", "cannot create the directory")],
)
async def test_names_a_place_that_cannot_be_used_at_the_start(
    tmp_path: Path, clock: Any, directory: str, words: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HandlerFailedError, match=words):
        await load_handler("parquet", {"directory": directory.format(tmp_path)}).start(
            HandlerContext("g", "g_1", clock)
        )


def test_does_not_show_credentials() -> None:
    options = {"directory": "s3://bucket", "storage_options": {"key": "AKIA"}}
    assert shown_options("parquet", options)["storage_options"] == HIDDEN


def test_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(HandlerLoadError, match=r"^the handler 'parquet' needs the extra `archive`: pip install"):
        ParquetHandler("/nowhere")


def test_schema_is_that_of_an_export_where_columns_are_the_same() -> None:
    ours = parquet_rows.parquet_schema()
    export = pyarrow.schema(importlib.import_module("consumerd.storage.archives.parquet")._schema(pyarrow, []))
    common = ("topic", "broker", "partition", "offset", "index", "next_offset")
    assert [ours.field(name) for name in common] == [export.field(name) for name in common]
