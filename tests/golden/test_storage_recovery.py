"""Damaged logs before and after a start of 0.7.2 without clean marker (golden logs/recovery*), started with our log."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumerd.storage import (
    CLEAN_MARKER,
    CorruptLogError,
    LogManager,
    LogSettings,
    OffsetOutOfLogError,
    OsFiles,
    TailDamage,
)


def _segments(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.kafka"))}


def _open(log_dir: Path) -> LogManager:
    logs = LogManager(log_dir, OsFiles(), lambda topic: LogSettings())
    logs.open(0.0)
    return logs


def _fetch(logs: LogManager, topic: str, offset: int) -> dict[str, int]:
    log = logs.get(topic, 0)
    assert log is not None
    try:
        return {"error": 0, "bytes": len(log.read(offset, 1 << 20))}
    except OffsetOutOfLogError:
        return {"error": 1, "bytes": 0}


def _compare(logs: LogManager, topic: str, expected: dict[str, Any]) -> None:
    log = logs.get(topic, 0)
    assert log is not None
    offsets = list(log.offsets_before(-1, 20, 1 << 50))
    assert offsets == expected["offsets_latest_max20"]
    assert log.offsets_before(-2, 1, 0) == (expected["earliest"],)
    assert _fetch(logs, topic, expected["earliest"]) == expected["fetch_earliest"]
    assert _fetch(logs, topic, log.segments[-1].start) == expected["fetch_last_segment"]
    assert _fetch(logs, topic, 0) == expected["fetch_offset_0"]


def test_recovers_as_recorded(golden: Path, tmp_path: Path) -> None:
    """Every case agrees in what is kept and served. What 0.7.2 destroys in the middle of a file is kept aside."""
    source = golden / "kafka-0.7.2" / "logs"
    cases = json.loads((source / "recovery.json").read_bytes())
    log_dir = tmp_path / "log"
    shutil.copytree(source / "recovery-before" / "log", log_dir)
    (log_dir / "emptytopic-0").mkdir(exist_ok=True)  # an empty folder does not survive every archive
    names = [name.removeprefix("rec/") for name in cases if name.startswith("rec/")]
    assert len(names) == 10
    for name in names:
        assert _segments(log_dir / f"{name}-0") == cases[f"rec/{name}"]["before"]
    logs = _open(log_dir)
    try:
        assert logs.topics() == sorted(names)
        for name in names:
            assert _segments(log_dir / f"{name}-0") == cases[f"rec/{name}"]["after"], name
            for path in (source / "recovery-after" / "log" / f"{name}-0").glob("*.kafka"):
                assert (log_dir / f"{name}-0" / path.name).read_bytes() == path.read_bytes()
            _compare(logs, name, cases[f"rec/{name}"])
    finally:
        logs.abandon()
    aside = {path.relative_to(log_dir).as_posix(): path.stat().st_size for path in log_dir.glob("*/*.cut-*")}
    assert aside == {"badcrc-mid-0/00000000000000008769.kafka.cut-173": 2400 - 173}


def test_distrusts_an_empty_clean_marker(golden: Path, tmp_path: Path) -> None:
    """Cut off the torn tail, which 0.7.2 keeps and serves: its marker also comes from failed starts."""
    source = golden / "kafka-0.7.2" / "logs"
    case = json.loads((source / "recovery.json").read_bytes())["rec3/torn-clean"]
    shutil.copytree(source / "recovery-clean-marker" / "log", tmp_path / "log")
    folder = tmp_path / "log" / "torn-clean-0"
    assert _segments(folder) == case["before"] == case["after"]
    (tmp_path / "log" / CLEAN_MARKER).touch()
    logs = _open(tmp_path / "log")
    logs.close(0.0)
    last = "00000000000000008769.kafka"
    assert _segments(folder) == {**case["after"], last: 2337}  # as without the marker: recovery.json, torn3


def test_rejects_logs_that_0_7_2_rejects_at_start(golden: Path, tmp_path: Path) -> None:
    """Torn in the middle: that log is out of service, untouched. An unknown magic: cut there, and kept beside it."""
    for name in ("recovery-torn-middle", "recovery-badmagic"):
        shutil.copytree(golden / "kafka-0.7.2" / "logs" / name / "log", tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.kafka")}
    (torn,) = (tmp_path / "recovery-torn-middle").iterdir()
    for _ in range(2):  # a clean stop leaves no marker that would let the next start serve it
        logs = LogManager(torn.parent, OsFiles(), lambda topic: LogSettings())
        report = logs.open(0.0)
        assert [damaged.name for damaged in report.damaged] == [torn.name]
        assert "should end at offset" in report.damaged[0].reason
        with pytest.raises(CorruptLogError, match="should end at offset"):
            logs.get(torn.name.removesuffix("-0"), 0)
        logs.close(0.0)
    logs = LogManager(tmp_path / "recovery-badmagic", OsFiles(), lambda topic: LogSettings())
    (truncation,) = logs.open(0.0).truncated
    logs.close(0.0)
    assert truncation.cut.damage is TailDamage.UNKNOWN_MAGIC
    assert truncation.cut.aside is not None
    cut = truncation.cut.aside.parent / truncation.cut.aside.name.split(".cut-")[0]
    for path, data in before.items():
        assert path.read_bytes() + (truncation.cut.aside.read_bytes() if path == cut else b"") == data


def test_reads_segments_of_the_real_producer(golden: Path, tmp_path: Path) -> None:
    """A broker killed with -9 left these behind: nothing is cut, and every segment follows the one before."""
    shutil.copytree(golden / "kafka-0.7.2" / "logs" / "producer-mix", tmp_path / "log")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.kafka")}
    logs = _open(tmp_path / "log")
    assert logs.topics() == ["gzip", "plain", "snappy"]
    logs.close(0.0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.kafka")} == before
