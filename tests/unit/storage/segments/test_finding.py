from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.finding import SegmentFile, find_segment_files
from consumerd.wire.v07 import encode_message_set
from consumerd.wire.v08.records import encode_record_batch

OLD, NEW = encode_message_set([b"a"]), encode_record_batch([b"a"], base_offset=70)


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_folders_lead_to_segments_of_both_dialects(tmp_path: Path) -> None:
    old = written(tmp_path / "a-0" / f"{5:020d}.kafka", OLD)
    new = written(tmp_path / "a-1" / f"{70:020d}.log", NEW)
    empty = written(tmp_path / "a-1" / f"{71:020d}.log", b"")
    for name in (f"{0:020d}.log.deleted", f"{70:020d}.index", "server.log", "leader-epoch-checkpoint"):
        written(tmp_path / "a-1" / name, NEW)
    assert find_segment_files([tmp_path]) == [
        SegmentFile(old, 5, SegmentDialect.V07),
        SegmentFile(new, 70, SegmentDialect.V08),
        SegmentFile(empty, 71, SegmentDialect.V08),
    ]


def test_bytes_decide_and_not_the_suffix(tmp_path: Path) -> None:
    renamed = written(tmp_path / f"{70:020d}.kafka", NEW)
    assert find_segment_files([renamed]) == [SegmentFile(renamed, 70, SegmentDialect.V08)]
    renamed = written(tmp_path / f"{5:020d}.log", OLD)
    assert find_segment_files([renamed]) == [SegmentFile(renamed, 5, SegmentDialect.V07)]


@pytest.mark.parametrize("name", [f"{0:020d}.log.deleted", "copy"])
def test_segment_since_08_needs_no_name(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, NEW)
    (found,) = find_segment_files([file])
    assert found.start == (0 if name[0] == "0" else 70)
    assert found.dialect is SegmentDialect.V08


def test_other_paths_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist; name segment files or directories that hold some"):
        find_segment_files([tmp_path / "missing"])
    with pytest.raises(NotFoundError, match="holds no segments; name a broker's log directory or a partition's"):
        find_segment_files([tmp_path])
    with pytest.raises(NotFoundError, match=r"a segment of Kafka 0.7 and before, but is not named by the offset"):
        find_segment_files([written(tmp_path / "copy", OLD)])
    with pytest.raises(NotFoundError, match="notes holds no messages that can be recognised, and is not named by"):
        find_segment_files([written(tmp_path / "notes", b"text\n" * 100)])
    os.mkfifo(tmp_path / f"{0:020d}.log")
    for given in (tmp_path / f"{0:020d}.log", tmp_path):
        with pytest.raises(NotFoundError, match="is not a regular file"):
            find_segment_files([given])


def test_passes_over_what_a_running_broker_deletes_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = (written(tmp_path / "a-0" / f"{start:020d}.log", NEW) for start in (70, 71))
    folder = written(tmp_path / "b-0" / f"{70:020d}.log", NEW).parent
    walk, opened = os.walk, Path.open

    def listed(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for where, folders, files in walk(path):
            yield where, folders, files
            shutil.rmtree(folder, ignore_errors=True)

    def deleted(path: Path, *args: Any, **options: Any) -> Any:
        gone.unlink(missing_ok=True)
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "walk", listed)
    monkeypatch.setattr(Path, "open", deleted)
    assert [found.path for found in find_segment_files([tmp_path])] == [stays]
