"""`log transactions`: records as the coordinators of 3.9.1 (version 0) and 4.1.0 (version 1) wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.storage.segments.fields import UnreadableRecordError
from consumerd.storage.segments.transaction_log import read_transaction
from consumerd.wire.v08.records import encode_record_batch

COPY_1, COPY_2, COPY_3 = ("00000006636f70792d3" + digit for digit in "123")
#: (key, value) in the order of the log.
OLD = [
    (
        COPY_1,
        "0000000000000000000000000000ea60020000000100066576656e74730000000100000000" + "000001a22559d855" * 2,
    ),
    (COPY_2, "0000000000000000000100000000ea6000ffffffff000001a22559d867ffffffffffffffff"),
    (COPY_1, "0000000000000000000000000000ea600400000000000001a22559d858000001a22559d82b"),
    (
        COPY_3,
        "0000000000000000000200000000ea60010000000100066576656e74730000000100000001" + "000001a22559d875" * 2,
    ),
]
NEW = [
    (COPY_1, "0001000000000000000000010000ea600401000001a22565ddd4000001a22565ddbf0102020002"),
    (COPY_2, "0001000000000000000100000000ea600000000001a22565dde0ffffffffffffffff00"),
    (
        COPY_3,
        "0001000000000000000200000000ea600102076576656e7473020000000100" + "000001a22565ddf5" * 2 + "0102020002",
    ),
]
DAY = 1_700_000_000_000


def archive(root: Path, *log: tuple[str, str | None]) -> Path:
    folder = root / "__transaction_state-7"
    folder.mkdir(parents=True)
    batches = (
        encode_record_batch(
            [None if value is None else bytes.fromhex(value)],
            keys=[bytes.fromhex(key)],
            base_offset=offset,
            timestamps=DAY + offset * 1000,
        )
        for offset, (key, value) in enumerate(log)
    )
    (folder / f"{0:020}.log").write_bytes(b"".join(batches))
    return root


def rows(capsys: pytest.CaptureFixture[str], root: Path, *options: str) -> list[list[str]]:
    assert run(["log", "transactions", *options, str(root)]) == ExitCode.OK
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("log", "epoch"), [(OLD, "0"), (NEW, "1")])
def test_shows_the_last_transaction_of_each_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: list[tuple[str, str]], epoch: str
) -> None:
    found = rows(capsys, archive(tmp_path, *log))
    assert [(row[0], row[1], row[2], row[3], row[6]) for row in found] == [
        ("copy-1", "CompleteCommit", "0", epoch, ""),
        ("copy-2", "Empty", "1", "0", ""),
        ("copy-3", "Ongoing", "2", "0", "events/1"),
    ]


def test_shows_open_ones_and_those_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive(tmp_path, *OLD)
    assert [row[0] for row in rows(capsys, tmp_path, "--open")] == ["copy-3"]
    (row,) = rows(capsys, tmp_path, "--open", "--at-time", str(DAY + 1000))
    assert row[:2] == ["copy-1", "PrepareCommit"]
    assert run(["log", "transactions", "--open", "--json", str(tmp_path)]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {
        "transactional_id": "copy-3",
        "producer_id": 2,
        "producer_epoch": 0,
        "timeout_ms": 60000,
        "state": "Ongoing",
        "open": True,
        "partitions": ["events/1"],
        "updated": 0x1A22559D875,
        "started": 0x1A22559D875,
    }


def test_an_id_that_expired_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[0] for row in rows(capsys, archive(tmp_path, *OLD, (COPY_2, None)))] == ["copy-1", "copy-3"]


def test_damage_and_unknown_records_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive(tmp_path, *OLD, (COPY_2, "0007"), ("0009", "0000"))
    file = tmp_path / "__transaction_state-7" / f"{0:020}.log"
    file.write_bytes(file.read_bytes() + b"\0\0")
    assert run(["log", "transactions", str(tmp_path)]) == ExitCode.CHECK_FAILED
    captured = capsys.readouterr()
    assert "finding\ttorn-tail" in captured.out
    assert captured.err == (
        "consumerd: unreadable parts of the archive: 1; states may be too old\n"
        "consumerd: records that are not transactions of a known version: 2\n"
    )
    assert run(["log", "transactions", str(tmp_path / "__transaction_state-7" / "none")]) == ExitCode.NOT_FOUND


@pytest.mark.parametrize("size", range(52))
def test_values_that_are_cut_off_are_unreadable(size: int) -> None:
    for _, value in (OLD[0], NEW[2]):
        with pytest.raises(UnreadableRecordError):
            read_transaction(bytes.fromhex(value)[: min(size, 45)])
