from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.archive_work import Lines, worker_count
from consumerd.cli.main import run
from consumerd.wire.v07 import Codec, encode_message, encode_message_set
from consumerd.wire.v08.records import encode_record_batch

HELLO = encode_message(b"hello")
BAD = HELLO[:6] + b"\0\0\0\0" + HELLO[10:]


def write(folder: Path, *segments: bytes) -> Path:
    folder.mkdir(parents=True)
    start = 0
    for data in segments:
        (folder / f"{start:020d}.kafka").write_bytes(data)
        start += len(data)
    return folder


@contextlib.contextmanager
def refused_to_wait() -> Iterator[None]:
    """Fail instead of waiting for ever for a writer of a FIFO."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits")

    former = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def imported(*arguments: str) -> set[str]:
    """The modules that a command has imported at its end."""
    code = "import sys; from consumerd.cli.main import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write(tmp_path / "events-0", HELLO * 2, encode_message_set([b"a", b"b"], codec=Codec.GZIP))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return write(tmp_path / "events-1", HELLO + BAD + HELLO, HELLO + HELLO[:4])


class TestVerify:
    def test_starts_without_what_one_worker_and_one_copy_do_not_need(self, sound: Path) -> None:
        found = imported("log", "verify", "--workers", "1", str(sound))
        assert found.isdisjoint(
            {"asyncio", "multiprocessing", "consumerd.storage.archives.listing", "consumerd.storage.log.log"}
        )

    def test_verifies_a_sound_archive(self, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["log", "verify", str(sound)]) == ExitCode.OK
        size = 30 + (sound / f"{30:020}.kafka").stat().st_size
        assert capsys.readouterr().out.splitlines() == [
            f"partition\t{sound}\t2\t{size}\t4\t0\t{size}\t0\t0\t0\t0",
            f"total\t1\t2\t{size}\t4\t0",
        ]

    def test_reports_files_that_are_not_regular(self, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pipe = sound / f"{99:020}.kafka"
        os.mkfifo(pipe)
        with refused_to_wait():
            assert run(["log", "verify", str(sound)]) == ExitCode.CHECK_FAILED
            found = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
            assert [
                "finding",
                "no-plain-file",
                str(pipe),
                "",
                "",
                f"{pipe} is not a regular file; it was not read",
            ] in found
            assert run(["log", "verify", str(pipe)]) == ExitCode.NOT_FOUND
            assert f"{pipe} is not a regular file" in capsys.readouterr().err

    def test_escapes_names(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write(tmp_path / "their\u202edrow\x1b[2J-0", HELLO + BAD)
        assert run(["log", "verify", str(tmp_path)]) == ExitCode.CHECK_FAILED
        assert run(["log", "verify", "--json", str(tmp_path)]) == ExitCode.CHECK_FAILED
        out = capsys.readouterr().out
        assert r"their\u202edrow\x1b[2J-0" in out
        assert "\u202e" not in out
        assert "\x1b" not in out

    def test_reports_damage(self, damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["log", "verify", str(damaged)]) == ExitCode.CHECK_FAILED
        _, first, second, total = (line.split("\t") for line in capsys.readouterr().out.splitlines())
        assert first == [
            "finding",
            "bad-crc",
            f"{damaged}/{0:020}.kafka",
            "15",
            "30",
            "the message at offset 15 has a CRC of 3610a686 where its header says 00000000",
        ]
        assert second[1:5] == ["torn-tail", f"{damaged}/{45:020}.kafka", "60", "64"]
        assert total == ["total", "1", "2", "64", "3", "2"]

    def test_json(self, damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["log", "verify", "--json", str(damaged)]) == ExitCode.CHECK_FAILED
        *findings, last = map(json.loads, capsys.readouterr().out.splitlines())
        assert [(found["finding"], found["offset"], found["end"]) for found in findings] == [
            ("bad-crc", 15, 30),
            ("torn-tail", 60, 64),
        ]
        assert set(findings[0]) == {"finding", "source", "partition", "offset", "end", "problem"}
        summary = last["summary"]
        assert {key: summary[key] for key in summary if key != "partitions"} == {
            "segments": 2, "bytes": 64, "messages": 3, "corrupt": 1, "torn": 1, "gaps": 0, "findings": 2
        }  # fmt: skip
        assert summary["partitions"][0]["partition"] == str(damaged)

    def test_allows_torn_tails(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "events-0", HELLO + HELLO[:4])
        assert run(["log", "verify", str(folder)]) == ExitCode.CHECK_FAILED
        assert run(["log", "verify", "--allow-torn-tail", str(folder)]) == ExitCode.OK

    def test_allowing_torn_tails_allows_nothing_else(self, damaged: Path) -> None:
        assert run(["log", "verify", "--allow-torn-tail", str(damaged)]) == ExitCode.CHECK_FAILED

    def test_prints_a_table_on_a_terminal(
        self, damaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", "250")
        assert run(["log", "verify", str(damaged)]) == ExitCode.CHECK_FAILED
        out = capsys.readouterr().out
        headers = [line.split() for line in out.splitlines()]
        assert [
            "partition",
            "segments",
            "bytes",
            "messages",
            "start",
            "end",
            "corrupt",
            "torn",
            "gaps",
            "findings",
        ] in headers
        assert ["finding", "source", "offset", "end", "problem"] in headers

    @pytest.mark.parametrize(
        ("arguments", "code", "sentence"),
        [
            ([], ExitCode.USAGE, "Missing argument 'PATH...'"),
            (["missing"], ExitCode.NOT_FOUND, "missing does not exist; name files, folders or URLs that hold segments"),
            (["--layout", "{topic}", "."], ExitCode.USAGE, "must name {topic} and {partition}"),
            (["--workers", "0", "."], ExitCode.USAGE, "must be a positive whole number up to 1024, not 0"),
            (["no-such-store://x/y"], ExitCode.BROKER, "cannot be read"),
        ],
    )
    def test_mistakes(
        self,
        sound: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[str],
        code: ExitCode,
        sentence: str,
    ) -> None:
        monkeypatch.chdir(sound)
        assert run(["log", "verify", *arguments]) == code
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert captured.out == ""


class TestExport:
    @pytest.mark.parametrize("name", ["kafka", "log"])
    def test_to_parquet_does_without_pandas_and_asyncio(self, tmp_path: Path, name: str) -> None:
        """Both take longer than the export of a small archive; pyarrow imports the first one for a single value."""
        pytest.importorskip("pandas")
        folder = tmp_path / "events-0"
        folder.mkdir()
        data = HELLO if name == "kafka" else encode_record_batch([b"hello"], leader_epoch=1)
        (folder / f"{0:020d}.{name}").write_bytes(data)
        command = ["log", "export", "--format", "parquet", "--broker-id", "0", "--workers", "1"]
        found = imported(*command, "-o", str(tmp_path / "out"), str(folder))
        assert list((tmp_path / "out").rglob("*.parquet"))
        assert found.isdisjoint({"pandas", "asyncio"})

    def test_exports_files_and_a_report(self, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out"
        assert run(["log", "export", "-o", str(out), "--broker-id", "3", str(sound)]) == ExitCode.OK
        first, total = (line.split("\t") for line in capsys.readouterr().out.splitlines())
        assert first[:3] == ["partition", "events/3-0", "2"]
        size = sum(path.stat().st_size for path in out.glob("events/3-0/*.ndjson"))
        assert total == ["total", "2", "2", "0", "0", "2", "4", str(size), "0", "0", "0", "0"]
        lines = (out / "events" / "3-0" / f"{0:020}-{30:020}.ndjson").read_text().splitlines()
        assert json.loads(lines[1]) == {
            "topic": "events",
            "broker": 3,
            "partition": 0,
            "offset": 15,
            "index": 0,
            "next_offset": 30,
            "codec": "none",
            "magic": 1,
            "crc_ok": True,
            "payload": "hello",
            "source": f"{sound}/{0:020}.kafka",
        }

    def test_json(self, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["log", "export", "--json", "--on-corrupt", "skip", "-o", str(tmp_path / "out"), str(damaged)]
        assert run(arguments) == ExitCode.CHECK_FAILED
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert [problem["finding"] for problem in report.pop("problems")] == ["bad-crc", "torn-tail"]
        assert report.pop("partitions")[0]["messages"] == 3
        assert report.pop("bytes") > 0
        assert report == {
            "segments": 2, "exported": 2, "kept": 0, "changed": 0, "files": 2, "rows": 3,
            "corrupt": 1, "torn": 1, "gaps": 0, "findings": 2,
        }  # fmt: skip
        assert run(arguments) == ExitCode.CHECK_FAILED
        assert json.loads(capsys.readouterr().out)["kept"] == 2

    def test_corruption_ends_an_export(self, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["log", "export", "-o", str(tmp_path / "out"), str(damaged)]) == ExitCode.CORRUPT
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"consumerd: {damaged}/{0:020}.kafka: the message at offset 15 has a CRC")

    @pytest.mark.parametrize(
        ("options", "ending"),
        [
            (["--format", "parquet"], "parquet"),
            (["--format", "parquet", "--compress", "snappy"], "parquet"),
            (["--compress", "gzip"], "ndjson.gz"),
            (["--compress", "zstd", "--payload", "base64"], "ndjson.zst"),
        ],
    )
    def test_exports_every_format(self, sound: Path, tmp_path: Path, options: list[str], ending: str) -> None:
        out = tmp_path / "out"
        assert run(["log", "export", "-o", str(out), *options, str(sound)]) == ExitCode.OK
        assert len(list(out.glob(f"events/0/*.{ending}"))) == 2

    def test_exports_ranges_and_topics(self, sound: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        options = ["--topic", "events", "--from-offset", "10", "--to-offset", "20"]
        assert run(["log", "export", "-o", str(out), *options, str(sound.parent)]) == ExitCode.OK
        assert [path.name for path in out.glob("*/*/*")] == [f"{15:020}-{30:020}.ndjson"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--compress", "snappy"], "snappy is for Parquet"),
            (["--format", "csv"], "'csv' is not one of 'ndjson', 'parquet'"),
            (["--from-offset", "-1"], "-1 is not in the range"),
        ],
    )
    def test_mistakes(
        self, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
    ) -> None:
        assert run(["log", "export", "-o", str(tmp_path / "out"), *arguments, str(sound)]) == ExitCode.USAGE
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_shows_a_progress_bar_on_a_terminal(
        self, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        assert run(["log", "export", "-o", str(tmp_path / "out"), str(sound)]) == ExitCode.OK
        assert "2/2 segments, 4 messages" in capsys.readouterr().err

    def test_restores_signal_handlers(self, sound: Path, tmp_path: Path) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert run(["log", "export", "-o", str(tmp_path / "out"), str(sound)]) == ExitCode.OK
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def test_stops_on_ctrl_c(
        self, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Lines, "segment", lambda self, rows: signal.raise_signal(signal.SIGINT))
        assert run(["log", "export", "-o", str(tmp_path / "out"), str(sound)]) == ExitCode.INTERRUPTED
        assert "interrupted with 1 segments done; run the same command to resume" in capsys.readouterr().err


def test_writes_progress_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines("exporting", lambda: now)
    lines.begin(1000, 4)
    lines.advance(100)
    lines.segment(7)
    assert capsys.readouterr().err == ""
    now = 10.5
    lines.advance(100)
    lines.segment(3)
    assert capsys.readouterr().err == "consumerd: exporting: 1 of 4 segments, 200 of 1000 bytes, 7 messages\n"
    now = 25.0
    lines.begin(1000, None)
    lines.segment(3)
    assert capsys.readouterr().err == "consumerd: exporting: 3 segments, 200 of 1000 bytes, 13 messages\n"


def test_starts_processes_for_large_archives_only() -> None:
    assert worker_count(None, []) == 1
    assert worker_count(7, []) == 7
