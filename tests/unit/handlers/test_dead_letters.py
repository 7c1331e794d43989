from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.errors import ConfigError, HandlerFailedError
from consumerd.handlers import Batch, FileDeadLetters, Letter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeBatch = Callable[..., Batch]


def letters(batch: Batch) -> list[Letter]:
    return [Letter(message, ValueError("no\ngood"), 5) for message in batch.messages()]


@pytest.mark.asyncio
async def test_a_letter_holds_identity_bytes_and_error(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    path = tmp_path / "new" / "folder" / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    await file.write(letters(make_batch([b"a", b"\xff\x00\n"], start=71, topic="привет", broker=1, partition=2)))
    await file.stop()
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert records[1] == {
        "topic": "привет",
        "broker": 1,
        "partition": 2,
        "offset": 71,
        "index": 1,
        "payload_base64": base64.b64encode(b"\xff\x00\n").decode(),
        "error_type": "ValueError",
        "error": "no\ngood",
        "attempts": 5,
        "failed_at": 1_700_001_000.0,
    }
    assert [r["index"] for r in records] == [0, 1]


@pytest.mark.asyncio
async def test_letters_are_appended_after_a_restart_and_a_torn_line_stands_alone(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    for _ in range(2):
        file = FileDeadLetters(path, clock=clock)
        await file.start()
        await file.write(letters(make_batch(b"a")))
        await file.stop()
    with path.open("ab") as broken:
        broken.write(b'{"topic": "t", "bro')
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    await file.write(letters(make_batch(b"b")))
    await file.stop()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert lines[2] == b'{"topic": "t", "bro'
    assert json.loads(lines[3])["payload_base64"] == base64.b64encode(b"b").decode()


@pytest.mark.asyncio
async def test_a_letter_is_on_disk_when_write_returns(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    file = FileDeadLetters(tmp_path / "dead.ndjson", clock=clock)
    await file.start()
    monkeypatch.setattr(os, "fsync", fsync)
    await file.write(letters(make_batch(b"a")))
    await file.stop()
    assert synced == [(tmp_path / "dead.ndjson").stat().st_size]


@pytest.mark.asyncio
async def test_failures_of_the_file_are_declared(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"handler\.dead_letter: .* cannot be opened: File exists"):
        await FileDeadLetters(tmp_path / "file" / "dead.ndjson", clock=clock).start()
    full = FileDeadLetters("/dev/full", clock=clock)
    with pytest.raises(HandlerFailedError, match="No space left on device; the messages are not committed"):
        await full.write(letters(make_batch(b"a")))
    await full.stop()


@pytest.mark.asyncio
async def test_a_file_that_reached_its_limit_stops_and_goes_on_when_it_was_moved(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    one = letters(make_batch(b"a"))
    file = FileDeadLetters(path, clock=clock, max_size=400)
    await file.start()
    await file.write(one)
    await file.write(one)
    before = path.read_bytes()
    with pytest.raises(HandlerFailedError, match=rf"has {len(before)} bytes.* handler\.dead_letter_max_size \(400\)"):
        await file.write(one)
    assert path.read_bytes() == before  # no half letter
    path.rename(tmp_path / "dead.ndjson.1")
    await file.write(one)
    await file.stop()
    assert (tmp_path / "dead.ndjson.1").read_bytes() == before
    assert path.read_bytes() == before[: len(before) // 2]


@pytest.mark.asyncio
async def test_letters_of_a_file_that_was_replaced_go_to_the_new_one(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    path.rename(tmp_path / "old")
    path.touch()
    await file.write(letters(make_batch(b"a")))
    await file.stop()
    assert (tmp_path / "old").stat().st_size == 0
    assert path.stat().st_size > 0


def test_a_place_that_cannot_be_written_is_found_without_making_anything(tmp_path: Path, clock: Any) -> None:
    FileDeadLetters(tmp_path / "new" / "folder" / "dead.ndjson", clock=clock).check()
    FileDeadLetters("dead.ndjson", clock=clock).check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a directory; name a file"):
        FileDeadLetters(tmp_path, clock=clock).check()
    with pytest.raises(ConfigError, match=r"cannot be created: .*file is not a directory"):
        FileDeadLetters(tmp_path / "file" / "dead.ndjson", clock=clock).check()
    if os.geteuid():
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(ConfigError, match=r"no permission for .*locked"):
            FileDeadLetters(locked / "new" / "dead.ndjson", clock=clock).check()
