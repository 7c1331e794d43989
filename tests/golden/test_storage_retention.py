"""Retention deletes the same segments as the recorded broker (golden behaviour/retention.json)."""

import json
import os
import time
from pathlib import Path

from consumerd.storage import CLEAN_MARKER, LogManager, LogSettings, MaxAge, MaxBytes, OffsetOutOfLogError, OsFiles


def test_deletes_as_recorded(golden: Path, tmp_path: Path) -> None:
    """168 hours and 5000 bytes, with some files touched nine days back. The contents do not matter, the sizes do."""
    topics = json.loads((golden / "kafka-0.7.2" / "behaviour" / "retention.json").read_bytes())["topics"]
    assert sorted(topics) == ["gzip", "mixed", "plain", "snappy"]
    now = time.time()
    ends = {}
    for topic, case in topics.items():
        folder = tmp_path / f"{topic}-0"
        folder.mkdir()
        old = case["old_mtime_segments"]
        for name, size in case["before"].items():
            (folder / name).write_bytes(bytes(size))
            start = int(name.removesuffix(".kafka"))
            ends[folder.name] = start + size
            if old == "all" or any(name.removesuffix(".kafka").endswith(tail.strip("\u2026")) for tail in old):
                os.utime(folder / name, (now - 9 * 86400, now - 9 * 86400))
    (tmp_path / CLEAN_MARKER).write_text(json.dumps({"ends": ends}))  # so that no reader looks for messages
    settings = LogSettings(segment_bytes=2000, delete_policies=(MaxAge(168 * 3600), MaxBytes(5000)))
    logs = LogManager(tmp_path, OsFiles(), lambda topic: settings)
    logs.open(0.0)
    try:
        for topic, case in topics.items():
            log = logs.get(topic, 0)
            assert log is not None
            held = log.slice(0, 10)
            assert held.segment.retain()
            gone = sorted(set(case["before"]) - set(case["after"]))
            assert log.clean(0.0, int(now * 1000)) == gone
            assert log.clean(0.0, int(now * 1000)) == []
            after = {path.name: path.stat().st_size for path in (tmp_path / f"{topic}-0").iterdir()}
            assert after == case["after"]
            assert log.offsets_before(-2, 1, 0) == (case["earliest"],)
            assert log.offsets_before(-1, 1, 0) == (case["latest"],)
            try:
                log.slice(0, 10)
                error = 0
            except OffsetOutOfLogError:
                error = 1
            assert error == case["fetch_offset_0_error"] == 1
            assert held.segment.file.read_at(0, 10) == bytes(10)  # a fetch that had begun continues
            held.segment.release()
    finally:
        logs.abandon()
