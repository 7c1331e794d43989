"""Archives: what is exported is what is decoded, whatever the log and however often the export dies."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
import zlib
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.base.files import OsSystemCalls, StrPath, SystemFiles
from consumerd.storage.archives.export import ArchiveExport
from consumerd.storage.archives.options import ExportFormat, ExportOptions
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import find_sources
from consumerd.storage.log.archive import read_runs
from consumerd.storage.log.archive_items import ArchivedRun, Flaw
from consumerd.wire.v07 import BatchEnd, Codec, DecodeLimits, decode_batch, encode_message_set

LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)


class NoSync(OsSystemCalls):
    """A disk without a loss of power."""

    def sync(self, fd: int) -> None: ...  # type: ignore[override]


def frame(payload: bytes, magic: int) -> bytes:
    body = bytes([magic, 0][: magic + 1]) + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">I", len(body)) + body


PLAIN = st.builds(frame, st.binary(max_size=40), st.sampled_from([0, 1, 1]))
WRAPPED = st.builds(
    lambda payloads, codec: encode_message_set(payloads, codec=codec),
    st.lists(st.binary(max_size=40), min_size=1, max_size=6),
    st.sampled_from([Codec.GZIP, Codec.SNAPPY]),
)
MESSAGES = st.lists(st.one_of(PLAIN, PLAIN, WRAPPED), max_size=20)


def write_log(folder: Path, messages: list[bytes], cuts: set[int], start: int) -> None:
    """The messages as one partition; after each message whose number is in `cuts` a segment ends."""
    folder.mkdir(parents=True)
    segment, begin, offset = b"", start, start
    for number, message in enumerate(messages):
        segment += message
        offset += len(message)
        if number in cuts:
            (folder / f"{begin:020d}.kafka").write_bytes(segment)
            segment, begin = b"", offset
    (folder / f"{begin:020d}.kafka").write_bytes(segment)


def export(source: Path, out: Path, system: OsSystemCalls | None = None, **options: Any) -> None:
    ArchiveExport(
        find_sources([str(source)]),
        out,
        ExportOptions(broker=2, **options),
        workers=1,
        progress=NoProgress(),
        stop=StopFlag(),
        monotonic=lambda: 0.0,
        files=SystemFiles(system or NoSync()),
    ).run()


def ndjson_rows(out: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(out.glob("*/*/*.ndjson")):
        for line in path.read_text().split("\n")[:-1]:
            row = json.loads(line)
            text = row.pop("payload", None)
            row["payload"] = base64.b64decode(row.pop("payload_base64")) if text is None else text.encode()
            found.append(row)
    return found


def parquet_rows(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(out.glob("*/*/*.parquet")):
        rows += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    return rows


@settings(max_examples=40)
@given(MESSAGES, st.sets(st.integers(0, 19)), st.integers(0, 1 << 60), st.sampled_from(list(ExportFormat)))
def test_exports_what_is_decoded(messages: list[bytes], cuts: set[int], start: int, form: ExportFormat) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_log(root / "log" / "top-ic-3", messages, cuts, start)
        export(root / "log", root / "out", format=form)
        rows = parquet_rows(root / "out") if form is ExportFormat.PARQUET else ndjson_rows(root / "out")
        batch = decode_batch(b"".join(messages), start)
        assert batch.end is BatchEnd.COMPLETE
        found = [(row["offset"], row["index"], row["next_offset"], row["payload"]) for row in rows]
        assert found == [tuple(message) for message in batch.messages()]
        for row in rows:
            assert (row["topic"], row["broker"], row["partition"], row["crc_ok"]) == ("top-ic", 2, 3, True)


class Killed(BaseException):
    """The process is killed."""


class Dying(OsSystemCalls):
    """Dies before its n-th step; what was not synced by then is lost in part, if its power goes, too."""

    def __init__(self, steps: int, power: bool) -> None:
        self.steps = steps
        self.power = power
        self.unsynced: set[StrPath] = set()
        self.paths: dict[int, StrPath] = {}

    def _step(self) -> None:
        self.steps -= 1
        if self.steps == -1 and self.power:
            for path in self.unsynced:
                with suppress(FileNotFoundError), Path(path).open("r+b") as file:
                    file.truncate(Path(path).stat().st_size // 2)
        if self.steps < 0:
            raise Killed

    def open(self, path: StrPath, flags: int) -> int:
        if flags & os.O_CREAT:
            self._step()
            self.unsynced.add(path)
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self._step()
        self.unsynced.discard(self.paths[fd])

    def replace(self, source: StrPath, target: StrPath) -> None:  # type: ignore[override]
        self._step()
        assert source not in self.unsynced, "renamed before it was synced"
        os.replace(source, target)

    def remove(self, path: StrPath) -> None:  # type: ignore[override]
        self._step()
        os.unlink(path)

    def make_directory(self, path: StrPath) -> None:  # type: ignore[override]
        self._step()
        os.mkdir(path)


def tree_with_a_tar(root: Path) -> None:
    messages = [frame(b"%d" % number, 1) for number in range(9)]
    write_log(root / "log" / "plain-0", messages, {2, 5}, 0)
    write_log(root / "packed-0", messages, {2, 5}, 0)
    with tarfile.open(root / "log" / "packed.tar.gz", "w:gz") as tar:
        tar.add(root / "packed-0", "packed-0")


def grow(root: Path) -> None:
    """The last segment gets another message, as on a broker that is alive."""
    last = max((root / "log" / "plain-0").iterdir())
    with last.open("ab") as file:
        file.write(frame(b"more", 1))


def everything(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def killed(root: Path, steps: int, power: bool) -> bool:
    """Whether an export died at its n-th step."""
    try:
        export(root / "log", root / "out", Dying(steps, power))
    except Killed:
        return True
    return False


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_export_killed_at_any_step_resumes_to_the_same_files(tmp_path: Path, power: bool, grows: bool) -> None:
    tree_with_a_tar(tmp_path)
    pristine = max((tmp_path / "log" / "plain-0").iterdir())
    data, times = pristine.read_bytes(), pristine.stat()
    steps = 0
    while killed(tmp_path, steps, power):
        if grows:
            grow(tmp_path)
        export(tmp_path / "log", tmp_path / "out")
        export(tmp_path / "log", tmp_path / "clean")
        assert everything(tmp_path / "out") == everything(tmp_path / "clean")
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(tmp_path / "clean")
        pristine.write_bytes(data)
        os.utime(pristine, ns=(times.st_atime_ns, times.st_mtime_ns))
        steps += 1
    assert steps > 30


@settings(max_examples=25)
@example(  # killed when the manifest listed the new file already, and the old one still existed
    [
        (17, False, False),
        (17, True, True),
        (27, True, True),
        (54, True, False),
        (17, True, True),
        (17, False, False),
    ]
)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=6))
def test_export_killed_repeatedly_resumes_to_the_same_files(deaths: list[tuple[int, bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tree_with_a_tar(root)
        for steps, power, grows in deaths:
            killed(root, steps, power)
            if grows:
                grow(root)
        export(root / "log", root / "out")
        export(root / "log", root / "clean")
        assert everything(root / "out") == everything(root / "clean")


@given(st.lists(st.one_of(PLAIN, PLAIN, WRAPPED), min_size=1, max_size=8), st.data(), st.booleans())
def test_verify_finds_every_flipped_byte_that_decode_finds(
    messages: list[bytes], data: st.DataObject, resync: bool
) -> None:
    whole = bytearray(b"".join(messages))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    batch = decode_batch(bytes(whole), 0)
    found = list(read_runs(io.BytesIO(whole), 0, resync=resync))
    assert any(isinstance(item, Flaw) for item in found) is (batch.end is not BatchEnd.COMPLETE)
    before = []
    for item in found:
        if isinstance(item, Flaw):
            assert item.offset == batch.next_offset
            break
        before += item.payloads
    assert before == batch.payloads


@given(st.lists(st.one_of(PLAIN, WRAPPED), max_size=8), st.data())
def test_reads_after_damage_only_what_was_written(messages: list[bytes], data: st.DataObject) -> None:
    """Bytes are changed, lost or added: every result was a message of the log, and most messages are found."""
    whole = b"".join(messages)
    at = data.draw(st.integers(0, len(whole)))
    lost = data.draw(st.integers(0, 30))
    junk = data.draw(st.one_of(st.binary(max_size=30), st.just(bytes(4096))))
    written = list(decode_batch(whole, 0))
    found = list(read_runs(io.BytesIO(whole[:at] + junk + whole[at + lost :]), 0, resync=True))
    ends = [0, *(item.next_offset for item in found)]
    assert [item.offset for item in found] == ends[:-1]
    read = [payload for item in found if isinstance(item, ArchivedRun) for payload in item.payloads]
    rest = iter(written)
    assert all(payload in rest for payload in read if payload), "neither in order nor written"
    boundaries = list(accumulate((len(message) for message in messages), initial=0))
    intact = [m for m, begin in zip(messages, boundaries, strict=False) if begin + len(m) <= at or begin >= at + lost]
    assert len(read) >= sum(len(decode_batch(m, 0)) for m in intact) - 14, "more was left out than can be in doubt"
