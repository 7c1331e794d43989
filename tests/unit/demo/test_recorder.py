from __future__ import annotations

import os
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import audit, read_records
from consumerd.demo.ledger import Ledger
from consumerd.demo.recorder import RecordedFilesHandler, RecordHandler
from consumerd.handlers import Batch, HandlerContext, PartitionTakenError, load_handler
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

P = TopicPartition("t", 0, 1)


def context() -> HandlerContext:
    return HandlerContext(group="g", consumer_id="g_a", clock=SystemClock())


async def test_records_what_the_audit_reads(tmp_path: Path) -> None:
    lines = [b"", b"\xff", b"same", b"same"]
    data = encode_message_set(lines[:2]) + encode_message_set(lines[2:], codec=Codec.GZIP)
    batch = Batch(P, decode_batch(data, 500))
    handler = RecordHandler(str(tmp_path / "records"))
    await handler.start(context())
    assert await handler.position(P) is None
    await handler.handle(batch)
    assert batch.handled == 4
    (path,) = (tmp_path / "records").iterdir()
    records = list(read_records(path))  # it is written before `stop`: a kill loses nothing
    assert [record.claim for record in records] == [True, False]
    assert [record.member for record in records] == ["g_a", "g_a"]
    await handler.stop()
    await handler.stop()
    ledger = Ledger()
    ledger.partition(P).send(lines)
    for message in batch.messages():
        if message.index == 0:
            leaves = [other.payload for other in batch.messages() if other.offset == message.offset]
            ledger.partition(P).store(message.offset, leaves)
    result = audit(ledger, records)
    assert result.sound
    assert (result.produced, result.handled, result.distinct) == (4, 4, 4)


async def test_gives_each_process_its_own_file(tmp_path: Path) -> None:
    handler = RecordHandler(str(tmp_path))
    with pytest.raises(RuntimeError, match="started before"):
        await handler.position(P)
    await handler.start(context())
    await handler.stop()
    assert [path.name for path in tmp_path.iterdir()] == [f"g_a-{os.getpid()}.ndjson"]
    with pytest.raises(FileExistsError):
        await RecordHandler(str(tmp_path)).start(context())


async def test_daemon_loads_the_recorder(tmp_path: Path) -> None:
    handler = load_handler("consumerd.demo.recorder:RecordHandler", {"directory": str(tmp_path), "pause": 0.001})
    await handler.start(context())
    await handler.handle(Batch(P, decode_batch(encode_message_set([b"x"]), 0)))
    await handler.stop()
    assert len((tmp_path / f"g_a-{os.getpid()}.ndjson").read_bytes().splitlines()) == 1


async def test_records_a_batch_before_it_is_stored(tmp_path: Path) -> None:
    def batch(start: int) -> Batch:
        return Batch(P, decode_batch(encode_message_set([b"one", b"two"]), start))

    handler = RecordedFilesHandler(str(tmp_path / "records"), str(tmp_path / "files"))
    await handler.start(context())
    assert await handler.position(P) is None
    await handler.handle(first := batch(500))
    assert first.handled == 2
    assert await handler.position(P) == first.next_offset
    (folder,) = (tmp_path / "files" / "t").iterdir()
    folder.rename(folder.with_name("away"))
    second = batch(first.next_offset)
    with pytest.raises(PartitionTakenError):
        await handler.handle(second)
    folder.with_name("away").rename(folder)
    assert second.handled == 0  # not stored: it has to come again
    await handler.stop()
    (path,) = (tmp_path / "records").iterdir()
    assert [(record.claim, len(record.messages)) for record in read_records(path)] == [
        (True, 0), (False, 2), (True, 0), (False, 2),
    ]  # fmt: skip
    assert len([name for name in os.listdir(folder) if name.endswith(".ndjson")]) == 1
