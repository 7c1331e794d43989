"""Trees that nobody would archive: each command says what is wrong, and reads the rest."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.storage.archives.folders import LOCAL_FILES, ArchiveFolder
from consumerd.storage.archives.listing import list_partition
from consumerd.storage.log import archive_packed
from tests.support.archives import batch, write_segment

NAME = f"{0:020}.log"
NONSENSE = random.Random(1).randbytes(1 << 20)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["log", *arguments]) in {ExitCode.OK, ExitCode.CHECK_FAILED}
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def kinds(found: list[dict[str, Any]]) -> set[str]:
    """Of `log ls` and of `log verify`."""
    return {each["finding"] for line in found for each in line.get("findings", [line]) if "finding" in each}


def test_links_that_lead_nowhere_or_in_a_circle_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    write_segment(tree, "t-1", 0, batch(0, b"a"))
    folder = tree / "t-0"
    folder.mkdir()
    (folder / NAME).symlink_to(NAME)
    (folder / f"{5:020}.log").symlink_to("missing")
    (folder / "up").symlink_to("..")
    (folder / "here").symlink_to(".")
    (tree / "gone.tar").symlink_to("missing")
    *found, total = lines(capsys, "verify", "--json", "--workers", "1", str(tree))
    assert [each["finding"] for each in found] == ["no-plain-file"] * 3
    assert total["summary"]["messages"] == 1
    assert run(["log", "export", "--workers", "1", "-o", str(tmp_path / "out"), str(tree)]) == ExitCode.CHECK_FAILED
    assert [path.parent.name for path in (tmp_path / "out").rglob("*.ndjson")] == ["1"]
    assert kinds(lines(capsys, "ls", "--json", str(tree))) == {"no-plain-file", "unreadable-file", "unusable-index"}


def test_nonsense_in_every_file_is_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "t-0"
    write_segment(tmp_path, "t-0", 0, batch(0, b"a"), NONSENSE)
    for name in (f"{0:020}.index", "leader-epoch-checkpoint", "partition.metadata", "../meta.properties"):
        (folder / name).write_bytes(NONSENSE)
    write_segment(tmp_path, "__cluster_metadata-0", 0, NONSENSE)
    (tmp_path / "__cluster_metadata-0" / f"{7:020}-{1:010}.checkpoint").write_bytes(NONSENSE)
    for name in ("x.tar", "x.tar.gz", "x.tar.zst", f"t-0/{9:020}.log.gz", f"t-0/{9:020}.log.zst"):
        (tmp_path / name).write_bytes(NONSENSE)
    found = lines(capsys, "ls", "--json", str(tmp_path))
    expected = {"nonsense-block", "unusable-checkpoint", "incomplete-metadata", "damaged-archive", "duplicate-segment"}
    assert expected <= kinds(found)
    assert {each.get("topic") for each in found[:2]} == {"t", "__cluster_metadata"}
    *_, total = lines(capsys, "verify", "--json", "--workers", "1", str(tmp_path))
    assert total["summary"]["messages"] == 1


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_ends_at_the_limit(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_packed, "FREE_EXPANSION", 1 << 20)
    compress = gzip.compress if suffix == ".gz" else zstandard.compress
    member = tarfile.TarInfo(f"t-1/{NAME}")
    member.size = 64 << 20
    bomb = bytes(64 << 20)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{NAME}{suffix}").write_bytes(compress(batch(0, b"a") + bomb))
    (tmp_path / f"x.tar{suffix}").write_bytes(compress(member.tobuf() + bomb))
    found = lines(capsys, "ls", "--json", str(tmp_path))
    assert "damaged-archive" in kinds(found)
    assert found[-1]["summary"]["bytes"] < 40 << 20
    assert "damaged-archive" in kinds(lines(capsys, "verify", "--json", "--workers", "1", str(tmp_path)))


def test_a_folder_without_permission_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path, "t-0", 0, batch(0, b"a"))
    closed = write_segment(tmp_path, "t-1", 0, batch(0, b"b")).parent
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if os.fspath(path) == str(closed):  # root may read everything
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    one, refused, _ = lines(capsys, "ls", "--json", str(tmp_path))
    assert (one["topic"], refused["finding"]) == ("t", "unreadable-file")
    for command in (["verify"], ["export", "-o", str(tmp_path / "out")], ["offsets"], ["dump"]):
        assert run(["log", *command, str(tmp_path)]) == ExitCode.BROKER
        assert f"{closed} cannot be read: Permission denied" in capsys.readouterr().err


def test_names_that_are_not_utf_8_and_topics_that_differ_by_case_stay_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    odd = os.fsdecode(b"\xff")
    write_segment(tree, "events-0", 0, batch(0, b"a"))
    write_segment(tree, "Events-0", 0, batch(0, b"b"), batch(1, b"c"))
    write_segment(tree / odd, "t-0", 0, batch(0, b"d"))
    *found, _ = lines(capsys, "ls", "--json", str(tree))
    assert sorted((each["topic"], each["end"]) for each in found) == [("Events", 2), ("events", 1), ("t", 1)]
    assert all(each["read"] for each in found)
    assert lines(capsys, "verify", "--json", "--workers", "1", str(tree))[-1]["summary"]["messages"] == 4
    assert len(lines(capsys, "dump", "--json", str(tree))) == 4
    assert run(["log", "export", "--workers", "1", "-o", str(tmp_path / "out"), str(tree)]) == ExitCode.OK
    rows = {path.parts[-3]: path.read_text().count("\n") for path in (tmp_path / "out").rglob("*.ndjson")}
    assert rows == {"events": 1, "Events": 2, "t": 1}


@pytest.mark.parametrize("left", [0, 30, 75, 150])
def test_a_file_that_becomes_shorter_while_it_is_looked_at_has_no_end(left: int, tmp_path: Path) -> None:
    data = b"".join(batch(offset, b"value") for offset in range(4))

    class Shrinking:
        """The size is that before, the bytes are those after."""

        def __getattr__(self, name: str) -> Any:
            return getattr(LOCAL_FILES, name)

        def size(self, path: str) -> int | None:
            return len(data)

        def open(self, path: str) -> Any:
            return io.BytesIO(data[:left])

    listed = list_partition(ArchiveFolder(str(tmp_path / "t-0"), [NAME], Shrinking()))
    assert listed is not None
    assert listed.end is None
