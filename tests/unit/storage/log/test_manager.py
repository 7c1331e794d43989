import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumerd.storage import (
    CLEAN_MARKER,
    CorruptLogError,
    DirectoryInUseError,
    LoadReport,
    LogManager,
    LogSettings,
    LogTruncation,
    OsFiles,
    StorageError,
    SystemCalls,
    TailCut,
    TailDamage,
)
from tests.unit.storage.log.test_files import Counted

Message = Callable[..., bytes]
SEGMENT = f"{0:020d}.kafka"


def manager(directory: Path, system: SystemCalls | None = None) -> LogManager:
    return LogManager(
        directory, OsFiles(system), lambda topic: LogSettings(segment_bytes=50 if topic == "small" else 1 << 30)
    )


@contextmanager
def opened(directory: Path) -> Iterator[LogManager]:
    logs = manager(directory)
    logs.open(0.0)
    try:
        yield logs
    finally:
        logs.abandon()


def test_creates_a_log_once_and_finds_it_again(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path / "log") as logs:
        assert logs.get("words", 0) is None
        log, new = logs.get_or_create("words", 0, 0.0)
        assert new
        assert logs.get_or_create("words", 0, 0.0) == (log, False)
        assert logs.get("words", 0) is log
        assert not logs.get_or_create("words", 1, 0.0)[1]
        assert logs.get_or_create("a-b-0", 3, 0.0)[1]
        assert logs.get_or_create("small", 0, 0.0)[0].settings.segment_bytes == 50
        assert logs.topics() == ["a-b-0", "small", "words"]
        log.append(message(b"a"), 1, 0.0)
        logs.close(1.0)
    with opened(tmp_path / "log") as logs:
        assert logs.topics() == ["a-b-0", "small", "words"]
        assert sorted(logs.partitions()) == [("a-b-0", 3), ("small", 0), ("words", 0), ("words", 1)]
        found = logs.get("words", 0)
        assert found is not None
        assert found.read(0, 100) == message(b"a")


def test_clean_stop_writes_the_marker_and_a_start_removes_it(tmp_path: Path, message: Message) -> None:
    marker = tmp_path / CLEAN_MARKER
    with opened(tmp_path) as logs:
        logs.get_or_create("t", 0, 0.0)[0].append(message(b"a"), 1, 0.0)
        logs.close(0.0)
    assert json.loads(marker.read_bytes()) == {"version": 1, "ends": {"t-0": 11}}
    with opened(tmp_path):
        assert not marker.exists()
    assert not marker.exists()


def test_recovers_logs_whose_end_the_marker_does_not_name(tmp_path: Path, message: Message) -> None:
    """0.7.2 leaves an empty marker even after a failed start, and then serves the torn tail (golden notes, 3)."""
    path = tmp_path / "t-0" / SEGMENT
    path.parent.mkdir()
    torn = message(b"a") + b"torn"
    for note in (
        b"",
        b'{"ends": {"t-0": 11}}',
        b"[",
        b"[]",
        b'{"ends": 1}',
        b'{"ends": {"t-0": "x"}}',
        b'{"ends": {"t-0": Infinity}}',
        b'{"x": 1}',
        b"\xff",
    ):
        path.write_bytes(torn)
        (tmp_path / CLEAN_MARKER).write_bytes(note)
        with opened(tmp_path) as logs:
            log = logs.get("t", 0)
            assert log is not None
            assert log.end_offset == 11
        assert path.read_bytes() == message(b"a")


def test_does_not_check_a_log_whose_end_the_marker_names(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / SEGMENT).write_bytes(b"no message at all")
    (tmp_path / CLEAN_MARKER).write_bytes(b'{"ends": {"t-0": 17}}')
    logs = manager(tmp_path)
    assert logs.open(0.0) == LoadReport()
    log = logs.get("t", 0)
    assert log is not None
    assert log.end_offset == 17
    logs.abandon()


def test_start_syncs_folders_before_their_files_and_opens_no_log_for_long(tmp_path: Path, message: Message) -> None:
    """A killed broker may not have synced the folder. A start has one descriptor for all logs: that of the lock."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / SEGMENT).write_bytes(message(b"a"))
    system = Counted()
    logs = manager(tmp_path, system)
    logs.open(0.0)
    assert system.synced == [tmp_path.parent, tmp_path, folder, folder / SEGMENT, tmp_path]
    assert list(system.paths.values()) == [tmp_path]
    logs.get_or_create("t", 0, 0.0)[0].append(message(b"b"), 1, 0.0)
    logs.abandon()
    assert system.paths == {}


def test_failed_start_keeps_the_marker(tmp_path: Path, message: Message) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / SEGMENT).write_bytes(message(b"a"))
    (tmp_path / "nonsense").mkdir()
    marker = tmp_path / CLEAN_MARKER
    for note in (None, b"", b'{"ends": {}}'):
        if note is not None:
            marker.write_bytes(note)
        system = Counted()
        logs = manager(tmp_path, system)
        with pytest.raises(CorruptLogError, match="not a topic-partition"):
            logs.open(0.0)
        assert (marker.read_bytes() if marker.exists() else None) == note
        assert system.paths == {}  # the logs are closed, the directory is unlocked
    with pytest.raises(CorruptLogError, match="not a topic-partition"):
        manager(tmp_path).open(0.0)


def test_loads_the_others_beside_a_log_with_a_gap(tmp_path: Path, message: Message) -> None:
    """0.7.2 does not start over it (golden logs/recovery-torn-middle). Here that log alone is out of service."""
    for topic in ("whole", "gap"):
        (tmp_path / f"{topic}-0").mkdir()
        (tmp_path / f"{topic}-0" / SEGMENT).write_bytes(message(b"a"))
    after = tmp_path / "gap-0" / f"{12:020d}.kafka"
    after.write_bytes(message(b"b") + b"torn")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.kafka")}
    for _ in range(2):
        logs = manager(tmp_path)
        report = logs.open(0.0)
        assert [name for name, _ in report.damaged] == ["gap-0"]
        assert "should end at offset 12" in report.damaged[0].reason
        assert logs.partitions() == [("whole", 0)]
        assert logs.topics() == ["whole"]
        with pytest.raises(CorruptLogError, match=r"should end at offset 12, where .* begins, but ends at 11"):
            logs.get("gap", 0)
        with pytest.raises(CorruptLogError, match="should end at offset 12"):
            logs.get_or_create("gap", 0, 0.0)
        assert logs.get("gap", 1) is None
        logs.close(0.0)  # cleanly: but the marker does not list a log that was added later
        assert json.loads((tmp_path / CLEAN_MARKER).read_bytes())["ends"] == {"whole-0": 11}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.kafka")} == before
    after.unlink()
    with opened(tmp_path) as logs:
        assert logs.topics() == ["gap", "whole"]


def test_ignores_known_files_that_are_not_logs(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / f"{CLEAN_MARKER}.tmp").write_bytes(b"half")
    logs = manager(tmp_path)
    assert logs.open(0.0) == LoadReport([], [], [], marker_unreadable=False)
    logs.close(0.0)


@pytest.mark.parametrize("name", ["plain", "t-", "-0", "t-x", "t-00", "t--1x", "t-\u0661"])
def test_rejects_directories_that_are_not_partitions(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(CorruptLogError, match="is not a topic-partition folder"), opened(tmp_path):
        pass


def test_reports_truncations_and_damage(tmp_path: Path, message: Message) -> None:
    (tmp_path / "stray.txt").write_text("x")
    (tmp_path / CLEAN_MARKER).write_bytes(b"[")
    for topic in ("whole", "torn"):
        (tmp_path / f"{topic}-0").mkdir()
        (tmp_path / f"{topic}-0" / SEGMENT).write_bytes(message(b"a"))
    with (tmp_path / "torn-0" / SEGMENT).open("ab") as file:
        file.write(b"\0\0\0\x09")
    logs = manager(tmp_path)
    report = logs.open(0.0)
    logs.abandon()
    assert report == LoadReport(
        [LogTruncation("torn-0", 11, TailCut(TailDamage.PARTIAL, 4, None))], [], ["stray.txt"], marker_unreadable=True
    )
    other = manager(tmp_path / "other")
    assert other.open(0.0) == LoadReport()
    other.abandon()
    assert (tmp_path / "stray.txt").exists()


def test_allows_one_process_per_directory(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(DirectoryInUseError, match="in use by another broker"), opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


def test_reports_a_name_that_the_file_system_rejects(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        with pytest.raises(StorageError, match="File name too long"):
            logs.get_or_create("n" * 255, 0, 0.0)
        assert logs.topics() == []


def test_damaged_log_is_out_of_service_and_still_known(tmp_path: Path, message: Message) -> None:
    for topic in ("whole", "gap"):
        (tmp_path / f"{topic}-0").mkdir()
        (tmp_path / f"{topic}-0" / SEGMENT).write_bytes(message(b"a"))
    (tmp_path / "gap-0" / f"{12:020d}.kafka").write_bytes(b"")
    with opened(tmp_path) as logs:
        assert [logs.in_service(topic, 0) for topic in ("whole", "gap", "none")] == [True, False, True]
        assert [logs.has_topic(topic) for topic in ("whole", "gap", "none")] == [True, True, False]
        assert logs.damaged == 1
        assert len(logs) == 1
        assert [(topic, partition, log.name) for topic, partition, log in logs.in_use()] == [("whole", 0, "whole-0")]
        assert [log.name for log in logs] == ["whole-0"]
        logs.close(0.0)
        assert logs.damaged == 0
        assert (len(logs), logs.topics(), logs.has_topic("whole")) == (0, [], False)


def test_marker_names_logs_in_order(tmp_path: Path) -> None:
    """So that equal logs have equal markers."""
    with opened(tmp_path) as logs:
        for topic in ("b", "a", "c"):
            logs.get_or_create(topic, 0, 0.0)
        logs.close(0.0)
    assert (tmp_path / CLEAN_MARKER).read_bytes() == b'{"ends": {"a-0": 0, "b-0": 0, "c-0": 0}, "version": 1}'


def test_stop_flushes_every_log(tmp_path: Path, message: Message) -> None:
    with opened(tmp_path) as logs:
        log, _ = logs.get_or_create("t", 0, 0.0)
        log.append(message(b"a"), 1, 0.0)
        assert log.flushed_offset == 0
        logs.close(1.0)
        assert log.flushed_offset == 11
