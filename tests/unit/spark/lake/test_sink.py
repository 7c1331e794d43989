"""The handlers `delta` and `iceberg`: each message once in the table, also after kills, suspensions and races."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from consumerd.base.errors import ConsumerdError, HandlerFailedError, HandlerLoadError
from consumerd.base.partition import NO_BROKER, LogId, TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext, load_handler, plain_handler
from consumerd.handlers.api import PartitionTakenError, SinkPosition
from consumerd.handlers.disk_full import is_disk_full
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.append_rules import LandedAlreadyError, OffsetsMovedBackError
from consumerd.spark.lake.appending import TableAppender
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.handover import joined
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.lake.tasks import bronze_schema
from consumerd.spark.tables.errors import TableError
from consumerd.testing import FakeClock, MemoryGroup
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.lake_tables import list_late

HERE = TopicPartition("t", NO_BROKER, 0)


def records(first: int, end: int, *, partition: int = 0, topic_id: str | None = None) -> Batch:
    """Messages of a broker of 0.8 or later: the value of each is its offset."""
    data = encode_record_batch([b"%d" % offset for offset in range(first, end)], base_offset=first)
    found = decode_records(data, first)
    if topic_id is not None:
        found.log = LogId.from_text(topic_id, 3)
    return Batch(TopicPartition("t", NO_BROKER, partition), found)


async def started(path: Path, kind: str = "delta", **options: Any) -> Handler:
    handler = load_handler(kind, {"directory": str(path / "bronze"), "commit_interval": 0, **options})
    await handler.start(HandlerContext("g", "g_1", FakeClock(auto=True)))
    return handler


def offsets(path: Path, kind: str = "delta", partition: int = 0) -> list[int]:
    """The offsets of a partition's rows, by a reader that is not ours."""
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
        rows = open_lake_table(str(path / "bronze"), "iceberg").dataset().to_table().to_pylist()
        return sorted(row["offset"] for row in rows if row["partition"] == partition)

    files = [uri.removeprefix("file://") for uri in DeltaTable(str(path / "bronze")).file_uris()]
    if not files:
        return []
    query = f'SELECT "offset", value FROM read_parquet({files!r}) WHERE partition = {partition} ORDER BY "offset"'
    found = duckdb.execute(query).fetchall()
    assert all(value == b"%d" % offset for offset, value in found)
    return [offset for offset, _ in found]


KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@KINDS
async def test_appends_batches_and_continues_where_the_table_ends(tmp_path: Path, kind: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    handler = await started(tmp_path, kind)
    assert await handler.position(HERE) is None
    await handler.handle(records(5, 8, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    await handler.handle(records(8, 10, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    await handler.stop()
    assert offsets(tmp_path, kind) == [5, 6, 7, 8, 9]
    other = await started(tmp_path, kind)
    position = await other.position(HERE)
    assert isinstance(position, SinkPosition)
    assert (position, position.log) == (10, LogId.from_text("AAAAAAAAAAAAAAAAAAAAAA", 3))
    reached = open_lake_table(str(tmp_path / "bronze"), kind).offsets()
    assert reached is not None
    assert (reached.batch, reached.starts["t", "0"].offset) == (1, 5)


async def test_partitions_that_wait_share_a_commit(tmp_path: Path) -> None:
    handler = await started(tmp_path)
    batches = [records(0, 4, partition=number) for number in range(20)]
    await asyncio.gather(*(handler.handle(batch) for batch in batches))
    assert open_lake_table(str(tmp_path / "bronze")).batches() == (range(1),)
    assert [offsets(tmp_path, partition=number) for number in range(20)] == [[0, 1, 2, 3]] * 20


async def test_former_owner_appends_nothing_that_is_there(tmp_path: Path) -> None:
    former, owner = await started(tmp_path), await started(tmp_path)
    assert await former.position(HERE) is None
    await former.handle(records(0, 5))
    assert await owner.position(HERE) == 5
    await owner.handle(records(5, 8))
    await former.handle(records(5, 10))  # suspended meanwhile: it has the same messages, and two more
    assert offsets(tmp_path) == [*range(10)]
    await owner.handle(records(8, 12))
    await former.handle(records(10, 12))
    assert offsets(tmp_path) == [*range(12)]
    assert await owner.position(HERE) == 12


@KINDS
async def test_prepares_a_commit_again_when_another_member_was_faster(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    one, other = await started(tmp_path, kind), await started(tmp_path, kind)
    await one.position(HERE)
    await other.position(HERE)
    written = TableAppender._written
    loop = asyncio.get_running_loop()

    def faster(self: TableAppender, *arguments: Any) -> Any:
        file = written(self, *arguments)
        monkeypatch.setattr(TableAppender, "_written", written)
        asyncio.run_coroutine_threadsafe(other.handle(records(0, 6)), loop).result(30)
        return file

    monkeypatch.setattr(TableAppender, "_written", faster)
    await one.handle(records(0, 9))
    assert offsets(tmp_path, kind) == [*range(9)]
    files = [each.name for each in (tmp_path / "bronze").rglob("part-*.parquet")]
    assert len(files) == 2  # of the first attempt nothing is left


class Killed(BaseException):
    """The process ends here."""


def steps(kind: str) -> list[tuple[Any, str]]:
    """What changes something, or reads what others change."""
    files = [(DataFileWriter, name) for name in ("__init__", "write", "close")]
    if kind == "delta":
        return [*files, *((DeltaLakeTable, name) for name in ("offsets", "_write_offsets", "_claimed", "_sync"))]
    from pyiceberg.catalog.sql import SqlCatalog

    from consumerd.spark.lake.iceberg import IcebergLakeTable

    return [*files, (IcebergLakeTable, "offsets"), (SqlCatalog, "create_table"), (SqlCatalog, "commit_table")]


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
async def test_a_kill_at_any_step_neither_loses_nor_doubles_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    table = type(open_lake_table(str(tmp_path), kind))
    died = 0
    while True:
        place = tmp_path / str(died)
        calls = iter(range(10_000))

        def dying(original: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                found = original(*arguments, **named) if after else None
                if next(calls) == died:  # noqa: B023 - called within this turn
                    raise Killed
                return found if after else original(*arguments, **named)

            return call

        with monkeypatch.context() as patched:
            for place_of, name in [*steps(kind), (table, "commit")]:
                patched.setattr(place_of, name, dying(getattr(place_of, name), after=False))
            patched.setattr(table, "commit", dying(table.commit, after=True))
            former = load_handler(kind, {"directory": str(place / "bronze"), "commit_interval": 0})
            handled, killed = 0, False
            try:
                await former.start(HandlerContext("g", "g_1", FakeClock(auto=True)))
                await former.position(HERE)
                for first in (0, 4):
                    await former.handle(records(first, first + 4))
                    handled = first + 4
            except Killed:
                killed = True
        owner = await started(place, kind)
        position = await owner.position(HERE) or 0
        assert position >= handled, f"handled messages were lost at step {died}"
        await owner.handle(records(position, 12))
        assert offsets(place, kind) == [*range(12)], f"killed at step {died}"
        if not killed:
            break
        died += 1
    assert died >= 15


async def test_two_members_that_race_with_the_same_messages_append_each_once(tmp_path: Path) -> None:
    """Both believe that they own all partitions; batches overlap at other places."""
    members = [await started(tmp_path) for _ in range(2)]

    async def consume(member: Handler, partition: int, size: int) -> None:
        place = TopicPartition("t", NO_BROKER, partition)
        at = await member.position(place) or 0
        while at < 40:
            await member.handle(records(at, min(at + size, 40), partition=partition))
            at = min(at + size, 40)

    async with asyncio.TaskGroup() as group:
        for number, member in enumerate(members):
            for partition in range(3):
                group.create_task(consume(member, partition, 7 + 4 * number))
    assert [offsets(tmp_path, partition=number) for number in range(3)] == [[*range(40)]] * 3


@pytest.mark.parametrize("seed", range(3))
async def test_two_members_that_see_commits_late_append_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    members = [await started(tmp_path), await started(tmp_path)]
    await members[0].handle(records(0, 3))
    rng = random.Random(seed)
    refused = 0

    async def consume(member: Handler, size: int) -> None:
        nonlocal refused
        offset = 0
        while offset < 24:
            assert refused < 200
            try:
                offset = await member.position(HERE) or 0
                await member.handle(records(offset, min(offset + size, 24)))
            except ConsumerdError:  # what was read is no longer the newest
                refused += 1

    with monkeypatch.context() as patched:
        lacking = list_late(patched, rng)
        await asyncio.gather(consume(members[0], 3), consume(members[1], 4))
    assert sum(lacking)
    assert offsets(tmp_path) == [*range(24)]


async def test_a_batch_whose_confirmation_was_lost_is_not_appended_again(tmp_path: Path) -> None:
    handler = await started(tmp_path)
    await handler.position(HERE)
    await handler.handle(records(0, 5))
    await handler.handle(records(0, 5))
    assert offsets(tmp_path) == [*range(5)]


async def test_rejects_messages_before_its_position(tmp_path: Path) -> None:
    handler = await started(tmp_path)
    await handler.handle(records(0, 5))
    with pytest.raises(LandedAlreadyError, match=r"^offset 2 of t/0 is below 5, up to where .*/bronze has it"):
        await handler.handle(records(2, 9))
    assert offsets(tmp_path) == [*range(5)]


async def test_a_topic_made_again_begins_at_its_own_offset(tmp_path: Path) -> None:
    handler, former = await started(tmp_path), await started(tmp_path)
    await handler.handle(records(0, 5, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    assert await former.position(HERE) == 5
    await handler.handle(records(0, 3, topic_id="BBBBBBBBBBBBBBBBBBBBBA"))
    assert offsets(tmp_path) == [0, 0, 1, 1, 2, 2, 3, 4]
    with pytest.raises(PartitionTakenError, match=r"a newer log of t/0 \(topic id BBBB"):
        await former.handle(records(5, 9, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    assert await former.position(HERE) == 3


async def test_a_table_that_went_back_stops_the_member(tmp_path: Path) -> None:
    handler = await started(tmp_path)
    await handler.handle(records(0, 5))
    (tmp_path / "bronze").rename(tmp_path / "elsewhere")
    with pytest.raises(OffsetsMovedBackError, match=r"had t/0 up to offset 5, and now up to nothing"):
        await handler.handle(records(5, 9))


async def test_a_cancelled_batch_is_committed_before_the_call_ends_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = await started(tmp_path)
    writing, go = threading.Event(), threading.Event()
    written = TableAppender._written

    def slow(self: TableAppender, *arguments: Any) -> Any:
        writing.set()
        assert go.wait(30)
        return written(self, *arguments)

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    for partition in range(4):
        await handler.position(TopicPartition("t", NO_BROKER, partition))
    monkeypatch.setattr(TableAppender, "_written", slow)
    # Two that share the commit that is under way, and two that share the next one.
    calls = [asyncio.create_task(handler.handle(records(0, 5, partition=number))) for number in range(2)]
    await asyncio.to_thread(writing.wait, 30)
    calls += [asyncio.create_task(handler.handle(records(0, 5, partition=number))) for number in (2, 3)]
    await turns()
    for number in (0, 1, 2):
        calls[number].cancel()
    await turns()
    assert [call.done() for call in calls] == [False, False, True, False]
    go.set()
    await asyncio.wait(calls)
    assert [call.cancelled() for call in calls] == [True, True, True, False]
    assert [offsets(tmp_path, partition=number) for number in range(4)] == [[*range(5)], [*range(5)], [], [*range(5)]]
    await handler.handle(records(0, 5))
    assert offsets(tmp_path) == [*range(5)]


async def test_a_commit_that_takes_too_long_fails_and_is_not_repeated_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = await started(tmp_path, timeout=0.05)
    await handler.position(HERE)
    go = threading.Event()
    commit = DeltaLakeTable.commit

    def slow(self: DeltaLakeTable, *arguments: Any, **named: Any) -> bool:
        assert go.wait(30)
        return commit(self, *arguments, **named)

    monkeypatch.setattr(DeltaLakeTable, "commit", slow)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
        await handler.handle(records(0, 5))
    with pytest.raises(TimeoutError):
        await handler.handle(records(0, 5))
    go.set()
    while True:
        try:
            await handler.handle(records(0, 5))
            break
        except TimeoutError:
            continue
    await handler.stop()
    assert offsets(tmp_path) == [*range(5)]


async def test_says_when_commits_will_be_small(tmp_path: Path) -> None:
    for linger, expected in ((60.0, []), (0.0, ["linger_not_configured"])):
        handler = load_handler("delta", {"directory": str(tmp_path / "bronze")})
        with capture_logs() as lines:
            await handler.start(HandlerContext("g", "g_1", FakeClock(auto=True), config={"linger": linger}))
        assert [line["event"] for line in lines] == expected


async def test_a_table_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    path, writer = str(tmp_path / "bronze"), joined(str(tmp_path / "land")).query_id()
    other = pa.schema([("value", pa.int64()), ("batch", pa.int64())])
    open_lake_table(path).commit([], writer=writer, batch=0, schema=other, offsets=TableOffsets(0, {}))
    with pytest.raises(HandlerFailedError, match=r"^column 'value' of .* is bigint, and the new rows have "):
        await started(tmp_path, checkpoint=str(tmp_path / "land"))
    assert open_lake_table(path).schema() == other


async def test_a_table_whose_end_is_unknown_is_left_alone(tmp_path: Path) -> None:
    path, writer = str(tmp_path / "bronze"), joined(str(tmp_path / "land")).query_id()
    open_lake_table(path).commit([], writer=writer, batch=0, schema=bronze_schema(headers=False))
    with pytest.raises(HandlerFailedError, match=r"^batch 0 of .* does not say where it ends in its source"):
        await started(tmp_path, checkpoint=str(tmp_path / "land"))
    WritableCheckpoint(str(tmp_path / "land")).plan(0, {"t": {"0": 7}})  # as an earlier release left it
    handler = await started(tmp_path, checkpoint=str(tmp_path / "land"))
    assert await handler.position(HERE) == 7
    await handler.handle(records(7, 9))
    assert offsets(tmp_path) == [7, 8]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"directory": ""}, "directory must be a path or the URL of an object store"),
        ({"directory": "file://host/x"}, "directory must be of the form file:///path"),
        ({"directory": "/x/100%"}, r"is not a valid path of a Delta table"),
        ({"directory": "/x", "commit_interval": -1}, "commit_interval"),
    ],
)
async def test_rejects_invalid_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HandlerLoadError, match=sentence):
        load_handler("delta", options)


async def test_a_full_disk_is_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = await started(tmp_path)
    await handler.position(HERE)

    def full(self: Any, *arguments: Any) -> Any:
        raise OSError("Generic LocalFileSystem error: unable to write (os error 28)")

    monkeypatch.setattr(DeltaLakeTable, "_sync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        await handler.handle(records(0, 5))
    assert is_disk_full(caught.value)
    monkeypatch.undo()
    await handler.handle(records(0, 5))
    assert offsets(tmp_path) == [*range(5)]


async def test_missing_credentials_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(self: Any) -> Any:
        raise TableError("the table s3://b/t cannot be read or written: an error occurred while loading credentials.")

    monkeypatch.setattr(DeltaLakeTable, "offsets", unable)
    with pytest.raises(HandlerFailedError, match=r"^there are no credentials for .*: set them in storage_options"):
        await started(tmp_path)


async def test_a_stop_interrupts_a_commit_that_took_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = await started(tmp_path, timeout=0.05)
    await handler.position(HERE)
    go, written = threading.Event(), TableAppender._written

    def slow(self: TableAppender, *arguments: Any) -> Any:
        file = written(self, *arguments)
        assert go.wait(30)
        return file

    monkeypatch.setattr(TableAppender, "_written", slow)
    with pytest.raises(TimeoutError):
        await handler.handle(records(0, 5))
    plain: Any = plain_handler(handler)
    plain._timeout = 30
    stopping = asyncio.create_task(handler.stop())
    await asyncio.sleep(0)
    go.set()
    await stopping
    assert not open_lake_table(str(tmp_path / "bronze")).exists
    assert [*(tmp_path / "bronze").rglob("part-*")] == []


async def test_rows_have_the_columns_and_values_of_land(tmp_path: Path) -> None:
    """Of a 0.7 log with plain and compressed messages: as `lake land` reads them, but for the codec of the latter."""
    from consumerd.spark.lake.land import land
    from consumerd.spark.spec import PipelineSpec

    sets = [encode_message_set([b"a", b"bb"]), encode_message_set([b"c", b"d"], codec=Codec.GZIP)]
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.kafka").write_bytes(b"".join(sets))
    pipeline = PipelineSpec("p", str(tmp_path / "lake"), {"path": str(tmp_path / "logs"), "subscribe": "t"})
    land(pipeline, workers=1)
    expected = (
        open_lake_table(pipeline.bronze).dataset().to_table().sort_by([("offset", "ascending"), ("index", "ascending")])
    )
    broker = expected["broker"][0].as_py()
    handler = await started(tmp_path)
    place = TopicPartition("t", NO_BROKER if broker is None else broker, 0)
    await handler.handle(Batch(place, decode_batch(b"".join(sets), 0)))
    found = open_lake_table(str(tmp_path / "bronze")).dataset().to_table()
    assert found.schema == expected.schema
    same = [name for name in found.schema.names if name not in ("landed_at", "codec")]
    assert found.select(same).to_pylist() == expected.select(same).to_pylist()
    assert found["codec"].to_pylist() == ["none", "none", None, None]


async def test_a_table_of_a_pipeline_is_left_alone_without_its_checkpoint(tmp_path: Path) -> None:
    table = open_lake_table(str(tmp_path / "bronze"))
    handler = await started(tmp_path, checkpoint=str(tmp_path / "_checkpoints" / "land"))
    await handler.handle(records(0, 3))
    await handler.stop()
    with pytest.raises(
        HandlerFailedError, match=r"belongs to a pipeline or another group: set the option `checkpoint`"
    ):
        await started(tmp_path)
    with pytest.raises(HandlerFailedError, match=r"belongs to another checkpoint than "):
        await started(tmp_path, checkpoint=str(tmp_path / "other"))
    assert table.batches() == (range(1),)
    again = await started(tmp_path, checkpoint=str(tmp_path / "_checkpoints" / "land"))
    assert await again.position(HERE) == 3


async def test_a_group_appends_each_message_once_whatever_its_members_and_offsets_suffer(tmp_path: Path) -> None:
    """Kills, expired sessions and deleted offsets: the table tells where each partition continues."""
    directory = str(tmp_path / "bronze")
    options = {"directory": directory, "commit_interval": 0.01}
    made = [0] * 4

    def produce(group: MemoryGroup, count: int) -> None:
        for partition in range(4):
            values = [b"%d %d" % (partition, number) for number in range(made[partition], made[partition] + count)]
            group.produce("t", values[: count // 2], partition=partition)
            group.produce("t", values[count // 2 :], partition=partition, codec=Codec.GZIP)
            made[partition] += count

    def stored(partition: int) -> int:
        reached = table.offsets()
        found = None if reached is None else reached.ends.get(("t", f"0-{partition}"))
        return 0 if found is None else found.offset

    table = open_lake_table(directory)
    async with MemoryGroup() as group:
        group.topic("t", 4)
        first, second = await group.member("delta", options), await group.member("delta", options)
        produce(group, 20)
        await group.until(lambda: sum(map(stored, range(4))) > 0, 30)
        await first.kill()
        group.expire(first)
        produce(group, 20)
        await group.until_committed(60)
        assert [group.committed("t", number) for number in range(4)] == [stored(number) for number in range(4)]
        group.expire(second)
        await second.kill()
        for partition in range(4):
            group.zookeeper.put(f"/consumers/{group.name}/offsets/t/0-{partition}", b"0")
        produce(group, 20)
        await group.member("delta", options)
        await group.until_committed(60)
    rows = table.dataset().to_table().sort_by([("offset", "ascending"), ("index", "ascending")]).to_pylist()
    for partition in range(4):
        values = [row["value"] for row in rows if row["partition"] == partition]
        assert values == [b"%d %d" % (partition, number) for number in range(60)]
