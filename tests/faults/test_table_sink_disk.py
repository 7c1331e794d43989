"""The handlers `delta` and `iceberg` on a disk that is really full, and on one whose syncs fail: nothing is lost.

A full disk has to be recognized as one, since it uses no attempts of a message and makes no dead letter.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from consumerd.base.files import OsSystemCalls
from consumerd.handlers.disk_full import is_disk_full
from tests.support.small_disk import fill, small_disk
from tests.unit.spark.lake.test_sink import offsets, records, started

#: Bytes that are left on the disk.
SPARES = [0, 4 << 10, 8 << 10, 12 << 10, 20 << 10, 32 << 10, 48 << 10]


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return str(request.param)


async def test_a_full_disk_is_recognized_and_the_same_call_continues(tmp_path: Path, kind: str) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        handler = await started(disk, kind)
        await handler.handle(records(0, 10))
        failed = list[Exception]()
        for number, spare in enumerate(SPARES, 1):
            batch = records(10 * number, 10 * number + 10)
            ballast = fill(disk, spare)
            try:
                await handler.handle(batch)
            except Exception as error:
                failed.append(error)
            ballast.unlink()
            await handler.handle(batch)
        assert len(failed) >= 2
        assert [error for error in failed if not is_disk_full(error)] == []
        await handler.stop()
        assert offsets(disk, kind) == [*range(10 * len(SPARES) + 10)]


async def test_a_failed_sync_fails_the_batch_and_the_same_call_continues(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = await started(tmp_path, kind)
    await handler.handle(records(0, 10))
    failed = list[int | None]()
    for number in count(1):
        syncs = count(1)

        def sync(descriptor: int, syncs: Iterator[int] = syncs, at: int = number) -> None:
            if next(syncs) == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fsync(descriptor)

        batch = records(10 * number, 10 * number + 10)
        with monkeypatch.context() as patched:
            patched.setattr(OsSystemCalls, "sync", staticmethod(sync))
            patched.setattr(OsSystemCalls, "sync_data", staticmethod(sync))
            try:
                await handler.handle(batch)
            except OSError as error:  # some syncs are repeated, and do not fail the batch
                failed.append(error.errno)
        await handler.handle(batch)
        if next(syncs) <= number:
            break
    assert len(failed) >= 2
    assert set(failed) == {errno.EIO}
    await handler.stop()
    assert offsets(tmp_path, kind) == [*range(10 * number + 10)]
