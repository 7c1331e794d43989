from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.storage.archives import dumped
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.segments.finding import SegmentFile
from consumerd.wire.v07 import Codec, encode_message_set
from consumerd.wire.v08.records import encode_message_set as encode_message_set_v08
from consumerd.wire.v08.records import encode_record_batch
from tests.support.archives import batch, marker, write_segment

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
BAD = bytes.fromhex("0000000b 01 00 00000000") + b"hello"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "events-0"
    folder.mkdir()
    first = HELLO + encode_message_set([b"", b"\xff\x00"], codec=Codec.SNAPPY)
    (folder / "00000000000000000000.kafka").write_bytes(first)
    (folder / f"{len(first):020}.kafka").write_bytes(BAD + HELLO + HELLO[:5])
    return folder


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_prints_one_json_line_per_outer_message(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "--json", str(log)]) == ExitCode.OK
    first, second, *_ = found = lines(capsys.readouterr().out)
    assert first == {
        "file": str(log / "00000000000000000000.kafka"),
        "offset": 0,
        "next_offset": 15,
        "valid": True,
        "magic": 1,
        "codec": "none",
        "size": 11,
        "payloads_base64": [base64.b64encode(b"hello").decode()],
    }
    assert (second["codec"], second["payloads_base64"]) == ("snappy", ["", "/wA="])
    assert len(found) == 5
    assert [line["offset"] for line in found][1:] == [line["next_offset"] for line in found][:-1]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_shows_the_rest_when_a_running_broker_deletes_a_segment(
    log_v08: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, packed: bool, isolation: str
) -> None:
    folder = log_v08 if log_v08.is_dir() else log_v08.parent
    gone = folder / f"{9_000_000:020}.log"
    gone.write_bytes(b"")
    if packed:
        gone.unlink()
        gone = gone.with_name(f"{gone.name}.gz")
        gone.write_bytes(gzip.compress(b""))
    found = dumped.find_dumped

    def deleting(paths: tuple[str, ...]) -> list[SegmentFile | SegmentSource]:
        result = found(paths)
        assert [each for each in result if str(gone) in str(each)]
        gone.unlink()
        return result

    monkeypatch.setattr(dumped, "find_dumped", deleting)
    assert run(["log", "dump", "--json", "--isolation", isolation, str(folder)]) == ExitCode.OK
    captured = capsys.readouterr()
    assert {Path(line["file"]).parent for line in lines(captured.out)} == {log_v08}
    _torn, says, count = captured.err.splitlines()
    assert says == f"consumerd: {gone} was deleted since it was found, as a running broker does; it is not shown"
    assert count == "consumerd: 2 of 4 entries in 2 files are not valid"


def test_shows_and_counts_damage_without_failing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "--json", str(log)]) == ExitCode.OK
    captured = capsys.readouterr()
    _, _, bad, good, torn = lines(captured.out)
    assert (bad["valid"], bad["magic"], bad["codec"], bad["size"], bad["payloads_base64"]) == (False, 1, "none", 11, [])
    assert good["valid"]
    assert (torn["valid"], torn["magic"], torn["codec"], torn["size"]) == (False, None, None, 11)
    assert "where its header says 00000000" in bad["problem"]
    assert f"{bad['file']}: {bad['problem']}" in captured.err
    assert "is torn: it has 5 of its 15 bytes" in captured.err
    assert captured.err.endswith("consumerd: 2 of 5 entries in 2 files are not valid\n")


def test_counts_problems_beyond_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(BAD * 50)
    assert run(["log", "dump", "--json", str(path)]) == ExitCode.OK
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 21
    assert errors[-1] == "consumerd: 50 of 50 entries in 1 files are not valid"


def test_table_shows_the_same_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(log)]) == ExitCode.OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == [str(log / "00000000000000000000.kafka")]
    assert rows[1] == [
        "offset",
        "next",
        "size",
        "valid",
        "magic",
        "codec",
        "messages",
        "first",
        "payload,",
        "or",
        "problem",
    ]
    assert rows[2] == ["0", "15", "11", "yes", "1", "none", "1", "'hello'"]
    assert rows[3][3:] == ["yes", "1", "snappy", "2", "''"]
    assert rows[6][3:7] == ["NO", "1", "none", "0"]
    assert rows[8][3:5] == ["NO", "0"]


def test_table_of_many_rows_has_one_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(HELLO * 2500)
    assert run(["log", "dump", str(path)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.count("payload, or problem") == 1
    assert len(out.splitlines()) == 2502


def test_rejects_a_missing_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(tmp_path / "nowhere")]) == ExitCode.NOT_FOUND
    captured = capsys.readouterr()
    assert captured.out == ""
    expected = f"consumerd: {tmp_path}/nowhere does not exist; name segment files or directories that hold some\n"
    assert captured.err == expected


def test_requires_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump"]) == ExitCode.USAGE
    assert "Missing argument 'PATH...'" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 5000])
def test_exits_quietly_when_the_reader_closes_the_pipe(count: int, tmp_path: Path) -> None:
    """With little output the pipe breaks at the last flush, with much of it in the middle."""
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(HELLO * count)
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "consumerd", "log", "dump", "--json", str(path)]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.PIPE, b"")


def test_rejects_files_that_are_not_regular(log: Path) -> None:
    """In a process of its own, because opening a FIFO would wait for ever for a writer."""
    pipe = log / f"{99:020}.kafka"
    os.mkfifo(pipe)
    for path in (pipe, log):
        argv = [sys.executable, "-m", "consumerd", "log", "dump", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == ExitCode.NOT_FOUND
        assert f"{pipe} is not a regular file" in done.stderr


def test_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "their\u202edrow\x1b[2J-0"
    folder.mkdir()
    (folder / f"{0:020}.kafka").write_bytes(HELLO + BAD)
    assert run(["log", "dump", str(folder)]) == ExitCode.OK
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert r"their\u202edrow\x1b[2J-0" in text
        assert "\u202e" not in text
        assert "\x1b" not in text


@pytest.fixture
def log_v08(tmp_path: Path) -> Path:
    folder = tmp_path / "events-1"
    folder.mkdir()
    batch = encode_record_batch(
        [b"hello", None],
        keys=[b"k", None],
        headers={0: (("h", b"v"), ("n", None))},
        timestamps=[1700000000000, 1700000000001],
        base_offset=7,
        leader_epoch=2,
        producer_id=9,
        producer_epoch=0,
        base_sequence=3,
    )
    old = encode_message_set_v08([b"old"], magic=0, base_offset=6)
    (folder / f"{6:020}.log").write_bytes(old + batch + batch[:30])
    return folder


def test_prints_batches_of_08_and_later(log_v08: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "--json", str(log_v08)]) == ExitCode.OK
    captured = capsys.readouterr()
    old, batch, torn = lines(captured.out)
    assert (old["offset"], old["magic"], old["max_timestamp"], old["leader_epoch"]) == (6, 0, None, None)
    assert [record["value_base64"] for record in old["records"]] == [base64.b64encode(b"old").decode()]
    assert batch["position"] == old["size"]
    assert {key: batch[key] for key in ("offset", "last_offset", "next_offset", "valid", "codec")} == {
        "offset": 7,
        "last_offset": 8,
        "next_offset": 9,
        "valid": True,
        "codec": "none",
    }
    assert (batch["producer_id"], batch["base_sequence"], batch["leader_epoch"]) == (9, 3, 2)
    assert batch["records"] == [
        {
            "offset": 7,
            "timestamp": 1700000000000,
            "key_base64": "aw==",
            "value_base64": "aGVsbG8=",
            "headers": [["h", "dg=="], ["n", None]],
        },
        {"offset": 8, "timestamp": 1700000000001, "key_base64": None, "value_base64": None, "headers": []},
    ]
    assert (torn["valid"], torn["offset"], torn["size"]) == (False, 9, 30)
    assert captured.err.endswith("consumerd: 1 of 3 entries in 1 files are not valid\n")


def test_table_of_batches_shows_the_same(log_v08: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(log_v08)]) == ExitCode.OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:5] == ["offset", "last", "position", "size", "valid"]
    assert rows[3][:2] == ["7", "8"]
    assert rows[3][4:10] == ["yes", "2", "none", "2", "2023-11-14T22:13:20.001Z", "2"]
    assert rows[3][10] == "'hello'"
    assert rows[4][:2] == ["9", str(len((log_v08 / f"{6:020}.log").read_bytes()) - 30)]


def test_leaves_out_batches_of_aborted_transactions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The control batch is in a later segment."""
    write_segment(tmp_path, "events-0", 0, batch(0, b"plain"), batch(1, b"aborted", producer=7))
    write_segment(tmp_path, "events-0", 2, marker(2, 7, commit=False), batch(3, b"committed", producer=7))
    write_segment(tmp_path, "events-0", 4, marker(4, 7, commit=True))
    for isolation, offsets in (("read_committed", [0, 2, 3, 4]), ("read_uncommitted", [0, 1, 2, 3, 4])):
        assert run(["log", "dump", "--json", "--isolation", isolation, str(tmp_path)]) == ExitCode.OK
        assert [line["offset"] for line in lines(capsys.readouterr().out)] == offsets
