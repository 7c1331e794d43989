"""Several copies of a partition in one archive: what is read, and what is reported of the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.wire.v08.records import encode_record_batch

DAY = 1_700_000_000_000
ELECTED = "an election left out 4 offsets of it, which are not read"
GUESSED = "the copy that is read (a guess: it has the latest time)"
ID, OTHER_ID = "MkTsQ5zXQ2uVGZ0p3Zy4ag", "ZkTsQ5zXQ2uVGZ0p3Zy4ag"


def copy(
    folder: Path,
    *epochs: int,
    checkpoint: bool = True,
    topic_id: str | None = None,
    rolls: Sequence[int] = (0,),
    without: Sequence[int] = (),
    day: int = DAY,
) -> Path:
    """A partition's folder: an offset of each epoch in turn, in segments from `rolls` on, without some of these."""
    folder.mkdir(parents=True)
    segments: dict[int, bytes] = dict.fromkeys(rolls, b"")
    for offset, epoch in enumerate(epochs):
        start = max(each for each in rolls if each <= offset)
        value = f"{epoch} at {offset}".encode()
        segments[start] += encode_record_batch([value], base_offset=offset, leader_epoch=epoch, timestamps=[day])
    for start, data in segments.items():
        if start not in without:
            (folder / f"{start:020}.log").write_bytes(data)
            (folder / f"{start:020}.index").write_bytes(b"")
    if checkpoint:
        starts = {epoch: epochs.index(epoch) for epoch in epochs}
        lines = "".join(f"{epoch} {start}\n" for epoch, start in starts.items())
        (folder / "leader-epoch-checkpoint").write_text(f"0\n{len(starts)}\n{lines}")
    if topic_id is not None:
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return folder


def listed(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, Any]:
    assert run(["log", "ls", "--json", *map(str, paths)]) == ExitCode.OK
    *partitions, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {each["folder"]: each for each in partitions}


def differences(partition: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["finding"], each["problem"].partition(": ")[2]) for each in partition["findings"]]


def verified(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    run(["log", "verify", "--json", str(path)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()][:-1]


def test_reads_the_longest_copy_and_names_the_shorter_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = copy(tmp_path / "one" / "events-0", 0, 0, 2), copy(tmp_path / "two" / "events-0", 0, 0, 2, 2)
    found = listed(capsys, tmp_path)
    assert (found[str(short)]["read"], found[str(long)]["read"]) == (False, True)
    assert differences(found[str(short)]) == [("shorter-copy", f"it ends at offset 3, and {long} at 4")]
    assert differences(found[str(long)]) == []
    assert found[str(long)]["leader_epoch"] == 2
    (finding,) = verified(capsys, tmp_path)
    assert (finding["finding"], finding["source"], finding["partition"]) == ("shorter-copy", str(short), "events/0")
    assert (finding["offset"], finding["end"]) == (3, 4)


def test_copies_that_are_the_same_are_not_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        copy(tmp_path / name / "events-0", 0, 1, 1)
    assert run(["log", "verify", str(tmp_path)]) == ExitCode.OK
    capsys.readouterr()
    assert [each["read"] for each in listed(capsys, tmp_path).values()] == [True, False]


def test_an_unclean_election_leaves_a_longer_copy_that_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = copy(tmp_path / "one" / "events-0", 0, 0, 0, 0, 0, 0)
    leader = copy(tmp_path / "two" / "events-0", 0, 0, 3, 3)
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.CHECK_FAILED
    rows = [json.loads(line) for file in (tmp_path / "out").rglob("*.ndjson") for line in file.read_text().splitlines()]
    assert [row["payload"] for row in rows] == ["0 at 0", "0 at 1", "3 at 2", "3 at 3"]
    assert {row["source"] for row in rows} == {f"{leader}/{0:020}.log"}
    capsys.readouterr()
    assert differences(listed(capsys, tmp_path / "one", tmp_path / "two")[str(former)]) == [
        (
            "diverged-copy",
            f"from offset 2 on it has leader epoch 0, where {leader} has leader epoch 3: {ELECTED}",
        )
    ]


def test_batches_show_epochs_where_the_checkpoint_is_missing_or_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = copy(tmp_path / "two" / "events-0", 0, 0, 3, 3, checkpoint=False)
    former = copy(tmp_path / "one" / "events-0", 0, 0, 0, 0, 0)
    (former / "leader-epoch-checkpoint").write_text("0\n1\n5 0\n")
    found = listed(capsys, tmp_path)
    (checkpoint, _), (kind, problem) = differences(found[str(former)])
    assert (checkpoint, kind) == ("unusable-checkpoint", "diverged-copy")
    assert problem.startswith("from offset 3 or before (a guess: only some batches were looked at) on it has")
    assert found[str(leader)]["read"]
    for text in ("nonsense", "0\n2\n1 0\n", "0\n2\n3 5\n2 9\n", "0\n1\n" + "9" * (1 << 20)):
        (former / "leader-epoch-checkpoint").write_text(text)
        assert differences(listed(capsys, tmp_path)[str(former)])[0][0] == "unusable-checkpoint"


def test_a_copy_without_a_segment_is_read_only_if_no_other_has_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holed = copy(tmp_path / "one" / "events-0", *[0] * 9, rolls=(0, 3, 6), without=[3])
    whole = copy(tmp_path / "two" / "events-0", *[0] * 8, rolls=(0, 3, 6))
    found = listed(capsys, tmp_path)
    assert (found[str(holed)]["read"], found[str(whole)]["read"]) == (False, True)
    assert differences(found[str(holed)])[-1] == (
        "incomplete-copy",
        f"it has no segments with the offsets 3 to 5, which {whole} has",
    )
    assert differences(found[str(whole)]) == [
        ("shorter-copy", f"it is read, and ends at offset 8, and {holed} at 9: that copy has gaps")
    ]


def test_a_topic_that_was_created_again_is_not_mixed_with_the_former(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = copy(tmp_path / "one" / "events-0", 0, 0, 5, 5, topic_id=OTHER_ID, day=DAY - 1000)
    present = copy(tmp_path / "two" / "events-0", 0, topic_id=ID)
    found = listed(capsys, tmp_path)
    assert (found[str(former)]["read"], found[str(present)]["read"]) == (False, True)
    assert differences(found[str(former)]) == [
        (
            "other-topic-id",
            f"it is of another topic of this name: its topic id is {OTHER_ID}, and {GUESSED} has {ID}",
        )
    ]


def test_parts_of_a_log_in_several_directories_are_read_together(tmp_path: Path) -> None:
    copy(tmp_path / "one" / "events-0", *[0] * 6, rolls=(0, 3), without=[3])
    copy(tmp_path / "two" / "events-0", *[0] * 6, rolls=(0, 3), without=[0])
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.OK
    assert sum(file.read_text().count("\n") for file in (tmp_path / "out").rglob("*.ndjson")) == 6


def test_copies_by_broker_in_the_layout_are_all_exported(tmp_path: Path) -> None:
    for name in ("broker-1", "broker-2"):
        copy(tmp_path / name / "events-0", 0, 1)
    layout = "broker-{broker}/{topic}-{partition}"
    assert run(["log", "export", "-o", str(tmp_path / "out"), "--layout", layout, str(tmp_path)]) == ExitCode.OK
    assert sum(file.read_text().count("\n") for file in (tmp_path / "out").rglob("*.ndjson")) == 4


def test_the_end_of_a_copy_is_read_where_its_index_does_not_lead_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = copy(tmp_path / "one" / "events-0", *[0] * 5)
    with (torn / f"{0:020}.log").open("ab") as file:
        file.write(b"nonsense" * 20)
    whole = copy(tmp_path / "two" / "events-0", *[0] * 4)
    found = listed(capsys, tmp_path)
    assert found[str(torn)]["end"] is None
    assert differences(found[str(whole)]) == [("shorter-copy", f"it ends at offset 4, and {torn} at 5")]
