"""The endless log is what the broker would serve, and its comparison finds what is missing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from tests.soak.full_speed import BLOCKS, PARTITIONS, TOPIC, EndlessLog, Kind, compare


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EndlessLog:
    """Two kinds, one of which has a set per segment."""
    kept = {name: BLOCKS[name] for name in ("100 kB", "snappy of 1 kB")}
    monkeypatch.setattr("tests.soak.full_speed.BLOCKS", kept)
    monkeypatch.setattr("tests.soak.full_speed._ONCE", {"snappy of 1 kB"})
    return EndlessLog(tmp_path, 5 << 20, segment=2 << 20)


def test_counts_are_those_of_the_segments(small: EndlessLog, tmp_path: Path) -> None:
    small.link(tmp_path / "data")
    messages = at = 0
    for path, start in segments_of(tmp_path / "data" / f"{TOPIC}-{PARTITIONS - 1}"):
        assert start == at
        for entry in read_segment(path, start):
            assert entry.valid
            assert small.before(entry.offset) == messages
            messages += len(entry.payloads)
            at = entry.next_offset
    assert (at, messages) == (small.end, small.before(small.end))
    assert small.cycles >= 2


def test_an_offset_within_a_message_has_no_count(tmp_path: Path) -> None:
    kind = Kind(tmp_path / "kind", BLOCKS["100 kB"](), 3 << 20)
    [first, second] = islice(read_segment(kind.path, 0), 2)
    assert [kind.before(0), kind.before(first.next_offset), kind.before(second.next_offset)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no message ends at 17"):
        kind.before(17)


def test_comparison_finds_what_is_missing_or_not_committed(small: EndlessLog) -> None:
    whole, half = small.end // small.cycles, small.before(small.end // small.cycles)
    names = [f"0-{number}" for number in range(PARTITIONS)]
    found: dict[str, Any] = {
        "gaps": 0,
        "partitions": {name: {"messages": half, "next_offset": whole} for name in names},
    }
    committed = dict.fromkeys(names, whole)
    assert compare(small, found, committed) == []
    assert "1 batches did not begin" in compare(small, {**found, "gaps": 1}, committed)[0]
    assert "is committed" in compare(small, found, {**committed, "0-2": 0})[0]
    found["partitions"]["0-1"] = {"messages": half - 1, "next_offset": whole}
    assert f"{half - 1} messages of 0-1 were handled" in compare(small, found, committed)[0]
    found["partitions"]["0-1"] = {"messages": half, "next_offset": whole + 3}
    assert "where no message ends" in compare(small, found, committed)[0]
    del found["partitions"]["0-1"]
    assert "of 4 partitions 3" in compare(small, found, committed)[0]
