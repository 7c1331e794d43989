import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumerd.storage import (
    CorruptLogError,
    FlushFailedError,
    Log,
    LogSettings,
    MaxAge,
    MaxBytes,
    OffsetOutOfLogError,
    OsFiles,
    OsSegmentFile,
    SegmentFacts,
    StorageError,
)
from tests.unit.storage.log.test_files import Counted

Message = Callable[..., bytes]


@contextmanager
def opened(directory: Path, settings: LogSettings | None = None, trusted_end: int | None = None) -> Iterator[Log]:
    directory.mkdir(exist_ok=True)
    log, _ = Log.open(directory, OsFiles(), settings or LogSettings(), now=0.0, trusted_end=trusted_end)
    try:
        yield log
    finally:
        log.close()


def sizes(directory: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in sorted(directory.glob("*.kafka"))}


def test_new_log_begins_with_an_empty_segment(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        assert (log.start_offset, log.end_offset, log.flushed_offset) == (0, 0, 0)
        assert log.read(0, 100) == b""
    assert sizes(tmp_path / "t-0") == {0: 0}


def test_readers_see_flushed_bytes_only(tmp_path: Path, message: Message) -> None:
    """behaviour/flush_gating.json: 3 of 5 messages, then a flush by time, then 4 and a set that counts as 3."""
    one = message(b"x")
    with opened(tmp_path / "t-0", LogSettings(flush_messages=5, flush_seconds=3.0)) as log:
        assert log.append(one * 3, 3, 0.1) == 0
        assert not log.flush_due()
        assert (log.end_offset, log.flushed_offset, log.read(0, 100)) == (3 * len(one), 0, b"")
        with pytest.raises(OffsetOutOfLogError):
            log.slice(3 * len(one), 100)
        assert log.offsets_before(-1, 10, 0) == (0,)
        assert not log.flush_overdue(2.9)
        assert log.flush_overdue(3.0)
        log.flush(3.0)
        assert log.read(0, 1000) == one * 3
        assert log.read(3 * len(one), 1000) == b""
        assert not log.flush_overdue(100.0)
        log.append(one * 4, 4, 3.5)
        assert not log.flush_due()
        log.append(one, 3, 3.6)
        assert log.flush_due()
        log.flush(3.6)
        assert log.flushed_offset == 8 * len(one)
        assert not log.flush_due()


def test_flushes_an_empty_wrapper_by_time(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0", LogSettings(flush_messages=1)) as log:
        log.append(message(b""), 0, 0.0)
        assert not log.flush_due()
        assert log.flush_overdue(3.0)
        log.flush(3.0)
        assert log.flushed_offset == log.end_offset


def test_rolls_before_an_append_once_strictly_larger(tmp_path: Path, message: Message) -> None:
    one = message(b"x" * 90)
    with opened(tmp_path / "t-0", LogSettings(segment_bytes=3 * len(one))) as log:
        for i in range(9):
            if log.roll_due(float(i)):
                log.roll(float(i))
            log.append(one, 1, float(i))
        assert sizes(tmp_path / "t-0") == {0: 4 * len(one), 4 * len(one): 4 * len(one), 8 * len(one): len(one)}
        assert log.flushed_offset == 8 * len(one)  # what was rolled is flushed
        log.flush(9.0)
        assert log.read(0, 1 << 20) == one * 4  # never across a segment
        assert log.read(3 * len(one), 1 << 20) == one
        assert log.read(4 * len(one), 1 << 20) == one * 4
        assert log.read(4 * len(one) - 1, 1 << 20) == one[-1:]
        assert log.read(9 * len(one), 10) == b""
        for outside in (-1, 9 * len(one) + 1):
            with pytest.raises(OffsetOutOfLogError, match="outside 0 to"):
                log.read(outside, 1)


def test_rolls_by_the_age_of_the_first_append(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0", LogSettings(roll_seconds=3600)) as log:
        assert not log.roll_due(1e9)  # empty: nothing to roll
        log.append(b"", 0, 10.0)
        assert not log.roll_due(1e9)  # still empty
        log.append(message(b"a"), 1, 100.0)
        log.append(message(b"b"), 1, 3000.0)
        assert not log.roll_due(3700.0)
        assert log.roll_due(3700.1)
        log.roll(3700.1)
        log.roll(3700.2)
        assert len(log.segments) == 2
    with opened(tmp_path / "t-0", LogSettings(roll_seconds=3600)) as log:
        assert not log.roll_due(1e9)  # counted again since the opening, like 0.7.2


def test_slice_of_a_negative_size_keeps_the_number(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0") as log:
        log.append(message(b"a"), 1, 0.0)
        log.flush(0.0)
        assert log.slice(0, -100).length == -100
        assert log.slice(0, (1 << 31) - 1).length == len(message(b"a"))
        with pytest.raises(ValueError, match="-1 bytes"):
            log.read(0, -1)


def test_finds_offsets_by_time(tmp_path: Path, message: Message) -> None:
    one = message(b"x")
    size = len(one)
    with opened(tmp_path / "t-0", LogSettings(segment_bytes=1)) as log:
        assert log.offsets_before(-1, 10, 5000) == (0,)
        assert log.offsets_before(-2, 10, 5000) == (0,)
        for _ in range(4):
            if log.roll_due(0.0):
                log.roll(0.0)
            log.append(one, 1, 0.0)
        log.flush(0.0)
        for i, path in enumerate(sorted((tmp_path / "t-0").glob("*.kafka"))):
            os.utime(path, ns=(0, (1000 * i + 1000) * 1_000_000 + 999_999))
        assert log.offsets_before(-1, 10, 9000) == (4 * size, 3 * size, 2 * size, size, 0)
        assert log.offsets_before(-1, 2, 9000) == (4 * size, 3 * size)
        assert log.offsets_before(-1, 0, 9000) == ()
        assert log.offsets_before(-2, 10, 9000) == (0,)
        assert log.offsets_before(-2, 0, 9000) == ()
        assert log.offsets_before(9000, 10, 9000) == (4 * size, 3 * size, 2 * size, size, 0)
        assert log.offsets_before(8999, 2, 9000) == (3 * size, 2 * size)
        assert log.offsets_before(2000, 10, 9000) == (size, 0)
        assert log.offsets_before(1999, 10, 9000) == (0,)
        assert log.offsets_before(999, 10, 9000) == ()
        assert log.offsets_before(0, 10, 9000) == ()
        assert log.offsets_before(-3, 10, 9000) == ()
        with pytest.raises(ValueError, match="-1 offsets"):
            log.offsets_before(-2, -1, 9000)
        log.roll(0.0)
        assert log.offsets_before(-1, 2, 9000) == (4 * size, 3 * size)  # the empty last segment counts once


def test_reopening_finds_the_segments_again(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0", LogSettings(segment_bytes=1)) as log:
        for payload in (b"a", b"bb", b"ccc"):
            if log.roll_due(0.0):
                log.roll(0.0)
            log.append(message(payload), 1, 0.0)
    with opened(tmp_path / "t-0") as log:
        assert log.flushed_offset == log.end_offset == len(message(b"a") + message(b"bb") + message(b"ccc"))
        assert log.append(message(b"d"), 1, 0.0) == log.end_offset - len(message(b"d"))
    (tmp_path / "t-0" / f"{0:020d}.kafka").unlink()
    with opened(tmp_path / "t-0") as log:
        assert log.start_offset == len(message(b"a"))


def test_does_not_recover_a_log_that_ends_at_its_marker(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{100:020d}.kafka").write_bytes(b"no message at all")
    with opened(directory, trusted_end=117) as log:
        assert log.end_offset == 117
    with opened(directory, trusted_end=116) as log:
        assert log.end_offset == 100


def test_rejects_gaps_and_overlaps(tmp_path: Path, message: Message) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.kafka").write_bytes(message(b"a"))
    for start in (10, 12):
        (directory / f"{start:020d}.kafka").write_bytes(message(b"b"))
        with (
            pytest.raises(CorruptLogError, match=rf"should end at offset {start}, .* but ends at 11"),
            opened(directory),
        ):
            pass
        (directory / f"{start:020d}.kafka").unlink()
    (directory / "abc.kafka").touch()
    with (
        pytest.raises(CorruptLogError, match=r"abc\.kafka is named like a segment, but not by an offset"),
        opened(directory),
    ):
        pass
    (directory / "abc.kafka").rename(directory / "index.tmp")
    with opened(directory) as log:
        assert log.end_offset == 11


def test_retention_keeps_the_end_offset_of_a_log_deleted_whole(tmp_path: Path, message: Message) -> None:
    one = message(b"x" * 90)
    with opened(tmp_path / "t-0", LogSettings(segment_bytes=1, delete_policies=(MaxBytes(0),))) as log:
        assert log.clean(0.0, 0) == []  # an empty log is already as small as it can be
        fill(log, one, 3)
        assert len(log.clean(0.0, 0)) == 3
        assert sizes(tmp_path / "t-0") == {3 * len(one): 0}
        assert (log.start_offset, log.flushed_offset) == (3 * len(one), 3 * len(one))
        assert log.append(one, 1, 0.0) == 3 * len(one)
    with opened(tmp_path / "t-0", LogSettings(delete_policies=(MaxAge(100),))) as log:
        modified = log.segments[0].file.modified_ms()
        assert log.clean(0.0, modified + 100_000) == []
        assert log.clean(0.0, modified + 100_001) == [f"{3 * len(one):020d}.kafka"]
        assert log.read(4 * len(one), 10) == b""


def fill(log: Log, one: bytes, count: int) -> None:
    """Append `count` messages, each to a segment of its own if the settings say so."""
    for _ in range(count):
        if log.roll_due(0.0):
            log.roll(0.0)
        log.append(one, 1, 0.0)


class Scripted:
    """A delete policy with scripted answers, which records its calls."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.seen: list[list[int]] = []

    def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        self.seen.append([segment.start for segment in segments])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def __repr__(self) -> str:
        return "Scripted"


def test_each_policy_sees_what_the_former_ones_keep(tmp_path: Path, message: Message) -> None:
    one = message(b"x" * 90)
    first, second = Scripted(1, -5, ValueError("no idea"), "many"), Scripted(2, 100, 0, 0)
    with opened(tmp_path / "t-0", LogSettings(segment_bytes=1, delete_policies=(first, second))) as log:
        fill(log, one, 5)
        assert log.clean(0.0, 7) == [f"{i * len(one):020d}.kafka" for i in range(3)]
        assert first.seen == [[i * len(one) for i in range(5)]]
        assert second.seen == [[i * len(one) for i in range(1, 5)]]
        assert log.clean(0.0, 7) == [f"{i * len(one):020d}.kafka" for i in (3, 4)]  # more than there are: all
        assert log.end_offset == 5 * len(one)
        with pytest.raises(StorageError, match="the delete policy Scripted failed with ValueError: no idea; nothing"):
            log.clean(0.0, 7)
        with pytest.raises(StorageError, match="failed with ValueError: invalid literal"):
            log.clean(0.0, 7)


def test_segment_that_cannot_be_deleted_stays_in_the_log(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = message(b"x" * 90)
    remove = OsFiles.remove

    def stubborn(files: OsFiles, path: Path) -> None:
        if path.name == f"{len(one):020d}.kafka":
            raise StorageError("cannot remove it")
        remove(files, path)

    with opened(tmp_path / "t-0", LogSettings(segment_bytes=1, delete_policies=(MaxBytes(0),))) as log:
        fill(log, one, 3)
        with monkeypatch.context() as patch:
            patch.setattr(OsFiles, "remove", stubborn)
            with pytest.raises(StorageError, match="cannot remove it"):
                log.clean(0.0, 0)
        assert log.start_offset == len(one)
        assert log.read(len(one), 1000) == one
        assert len(log.clean(0.0, 0)) == 2  # and is tried again
        assert log.start_offset == 3 * len(one)


def test_reads_while_segments_are_added_and_deleted(tmp_path: Path, message: Message) -> None:
    """Each read takes the list of segments once: it finds the segment, or gets the error that it was deleted."""
    one = message(b"x" * 90)
    size = len(one)
    done = threading.Event()
    reads = [0, 0]
    wrong: list[object] = []

    def reader(number: int, log: Log) -> None:
        rng = random.Random(number)
        while not done.is_set() or not reads[number]:
            offset = rng.randrange(log.start_offset, log.end_offset + 1, size)
            try:
                found = log.slice(offset, 10 * size)
                if not found.segment.retain():
                    continue
            except OffsetOutOfLogError:
                continue
            data = found.segment.file.read_at(found.position, found.length)
            found.segment.release()
            if found.segment.start + found.position != offset or data != one * (found.length // size):
                wrong.append((offset, found, data))
            reads[number] += 1

    settings = LogSettings(segment_bytes=size, delete_policies=(MaxBytes(20 * size),))
    with opened(tmp_path / "t-0", settings) as log:
        threads = [threading.Thread(target=reader, args=(number, log)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(60):
                fill(log, one, 3)
                log.flush(0.0)
                log.clean(0.0, 0)
        finally:
            done.set()
            for thread in threads:
                thread.join(20)
    assert not wrong
    assert min(reads) > 0


def test_rejects_appends_after_a_failed_sync(tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: OsSegmentFile) -> None:
        raise StorageError("cannot sync it: Input/output error")

    with opened(tmp_path / "t-0") as log:
        log.append(message(b"a"), 1, 0.0)
        log.flush(0.0)
        log.append(message(b"b"), 1, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(OsSegmentFile, "sync", fail)
            with pytest.raises(FlushFailedError, match=r"Input/output error; .* restart the broker"):
                log.flush(0.0)
        for work in (lambda: log.flush(0.0), lambda: log.append(b"", 0, 0.0), lambda: log.roll(0.0)):
            with pytest.raises(FlushFailedError):
                work()
        assert log.read(0, 100) == message(b"a")


def test_appends_during_a_flush(tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    def slow(file: OsSegmentFile) -> None:
        syncing.set()
        assert go_on.wait(10)

    monkeypatch.setattr(OsSegmentFile, "sync", slow)
    with opened(tmp_path / "t-0", LogSettings(flush_messages=1)) as log:
        log.append(message(b"a"), 1, 0.0)
        flusher = threading.Thread(target=log.flush, args=(0.0,))
        flusher.start()
        assert syncing.wait(10)
        log.append(message(b"b"), 1, 0.0)
        go_on.set()
        flusher.join(10)
        assert log.read(0, 100) == message(b"a")
        assert log.flush_due()


def test_settings_are_those_of_0_7_2_by_default() -> None:
    """Golden notes, 8; but nothing is deleted unless it is configured."""
    assert LogSettings() == LogSettings(
        segment_bytes=1024**3, roll_seconds=7 * 24 * 3600, flush_messages=500, flush_seconds=3, delete_policies=()
    )


def test_syncs_only_what_is_not_flushed_and_closes_all_files(tmp_path: Path, message: Message) -> None:
    system = Counted()
    log, _ = Log.open(tmp_path, OsFiles(system), LogSettings(), now=0.0)
    log.append(message(b"a"), 1, 0.0)
    system.synced.clear()
    log.flush(0.0)
    log.flush(0.0)
    assert system.synced == [log.segments[0].path]
    log.roll(0.0)
    assert system.synced == [log.segments[0].path, tmp_path]
    log.close()
    assert system.paths == {}


def test_flush_by_time_counts_from_the_last_flush(tmp_path: Path, message: Message) -> None:
    (tmp_path / "t-0").mkdir()
    log, _ = Log.open(tmp_path / "t-0", OsFiles(), LogSettings(flush_seconds=3.0), now=100.0)
    log.append(message(b"x"), 1, 101.0)
    assert [log.flush_overdue(now) for now in (102.9, 103.0, 200.0)] == [False, True, True]
    log.flush(110.0)
    log.append(message(b"x"), 1, 111.0)
    assert [log.flush_overdue(now) for now in (112.9, 113.0)] == [False, True]
    log.close()


def test_flush_by_count_counts_messages_since_the_last_flush(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0", LogSettings(flush_messages=3)) as log:
        for _ in range(2):
            log.append(message(b"x"), 2, 0.0)
            assert not log.flush_due()
            log.append(message(b"x"), 1, 0.0)
            assert log.flush_due()
            log.flush(0.0)
            assert not log.flush_due()


def test_rejects_sizes_and_limits_below_zero(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        assert log.read(0, 0) == b""
        with pytest.raises(ValueError, match="cannot read -1 bytes"):
            log.read(0, -1)
        assert log.offsets_before(-1, 0, 0) == ()
        with pytest.raises(ValueError, match="cannot list -1 offsets"):
            log.offsets_before(-1, -1, 0)


@pytest.mark.parametrize(("answer", "kept"), [(-1, [0, 11]), (1, [11]), (99, [22]), (1.9, [11])])
def test_takes_any_number_from_a_policy_of_others(
    tmp_path: Path, message: Message, answer: float, kept: list[int]
) -> None:
    class Odd:
        def deletable(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
            return answer  # type: ignore[return-value]

    with opened(tmp_path / "t-0", LogSettings(delete_policies=(Odd(),))) as log:
        log.append(message(b"a"), 1, 0.0)
        log.roll(0.0)
        log.append(message(b"b"), 1, 0.0)
        log.flush(0.0)
        log.clean(0.0, 0)
        assert [segment.start for segment in log.segments] == kept
        assert list(sizes(tmp_path / "t-0")) == kept


def test_append_during_a_roll_is_an_error_of_the_caller(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "t-0") as log:
        log.append(message(b"a"), 1, 0.0)
        sync = OsSegmentFile.sync

        def append_meanwhile(file: OsSegmentFile) -> None:
            log.append(message(b"b"), 1, 0.0)
            sync(file)

        monkeypatch.setattr(OsSegmentFile, "sync", append_meanwhile)
        with pytest.raises(RuntimeError, match="t-0 was appended to during a roll"):
            log.roll(0.0)
        monkeypatch.undo()
        log.roll(0.0)
        assert [segment.start for segment in log.segments] == [0, 22]


def test_failed_flush_is_final(tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets what it could not write, so that a later sync would succeed."""
    with opened(tmp_path / "t-0") as log:
        log.append(message(b"a"), 1, 0.0)
        synced = []

        def fail(file: OsSegmentFile) -> None:
            synced.append(file)
            if len(synced) == 1:
                raise StorageError("the disk is gone")

        monkeypatch.setattr(OsSegmentFile, "sync", fail)
        for _ in range(2):
            with pytest.raises(FlushFailedError, match="the disk is gone; the log t-0 must be checked"):
                log.flush(1.0)
        assert len(synced) == 1
        assert log.flushed_offset == 0


def test_deleted_segments_are_closed(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "t-0", LogSettings(delete_policies=(MaxBytes(0),))) as log:
        log.append(message(b"a"), 1, 0.0)
        log.roll(0.0)
        first = log.segments[0]
        assert first.retain()
        first.release()
        log.clean(0.0, 0)
        assert not first.retain()


def test_files_rest_except_during_a_flush(tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[bool] = []
    monkeypatch.setattr(OsSegmentFile, "rest", lambda file, *, at_once: rested.append(at_once))
    with opened(tmp_path / "t-0") as log:
        log.rest()
        log.rest(at_once=True)
        assert rested == [False, True]
        log.append(message(b"a"), 1, 0.0)
        monkeypatch.setattr(OsSegmentFile, "sync", lambda file: log.rest(at_once=True))
        log.flush(0.0)
        assert rested == [False, True]
        log.rest()
        assert rested == [False, True, False]
