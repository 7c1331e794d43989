"""`consumerd handlers list` and `test`, with files in place of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.storage.archives import dumped
from consumerd.storage.archives.sources import SegmentSource
from consumerd.storage.segments.finding import SegmentFile
from consumerd.wire.v07 import Codec, encode_message_set
from consumerd.wire.v08.records import Headers, RecordCodec, encode_record_batch
from consumerd.wire.v08.records import encode_message_set as encode_message_set_v08
from tests.support.archives import batch, marker, write_segment


def test_lists_installed_handlers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["handlers", "list"]) == ExitCode.OK
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"print", "null", "files", "exec", "postgres", "forward"} <= set(names)
    assert run(["handlers", "list", "--json"]) == ExitCode.OK
    assert {"name": "null", "value": "consumerd.handlers.builtin.null:NullHandler"}.items() <= json.loads(
        next(line for line in capsys.readouterr().out.splitlines() if '"null"' in line)
    ).items()


def printed(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_delivers_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n\n\xff\nlast")
    assert run(["handlers", "test", "print", str(path)]) == ExitCode.OK
    captured = capfd.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [(each["offset"], each.get("payload", each.get("payload_base64"))) for each in records] == [
        (0, "a"), (2, ""), (3, "/w=="), (5, "last"),
    ]  # fmt: skip
    assert captured.err.endswith("4 messages in 1 batch handled.\n")


def test_delivers_what_print_has_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records"
    lines = [
        '{"topic":"t","broker":0,"partition":1,"offset":71,"index":2,"payload":"text"}',
        '{"topic":"k","broker":null,"partition":3,"offset":7,"index":0,"payload":null,"key":"k","headers":[["h","/w=="]]}',
    ]
    path.write_text("\n".join(lines))
    assert run(["handlers", "test", "print", str(path), "--ndjson"]) == ExitCode.OK
    assert printed(capfd) == [json.loads(line) for line in lines]


def test_delivers_to_the_handler_of_one_subscription(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config, path = tmp_path / "c.toml", tmp_path / "lines.txt"
    further = '[[subscriptions]]\nname = "audit"\ntopics = { u = 1 }\nhandler = { name = "null", max_batch = 1 }\n'
    config.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n' + further)
    path.write_text("a\nb\n")
    assert run(["handlers", "test", "-c", str(config), "--subscription", "audit", str(path)]) == ExitCode.OK
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "2 messages in 2 batches handled." in captured.err
    assert run(["handlers", "test", "-c", str(config), "--subscription", "adit", str(path)]) == ExitCode.CONFIG
    assert "unknown subscription 'adit': the configuration has main, audit." in capfd.readouterr().err
    assert run(["handlers", "test", "print", "--subscription", "audit", str(path)]) == ExitCode.USAGE
    assert "--subscription needs -c" in capfd.readouterr().err


def test_delivers_a_recorded_partition_in_batches_of_the_configuration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-topic-3"
    folder.mkdir()
    data = encode_message_set([b"a"]) + encode_message_set([b"b", b"c"], codec=Codec.GZIP) + encode_message_set([b"d"])
    (folder / "00000000000000000100.kafka").write_bytes(data)
    config = tmp_path / "c.toml"
    config.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\nmax_batch = 2\n')
    assert run(["handlers", "test", "-c", str(config), str(folder)]) == ExitCode.OK
    captured = capfd.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [(each["topic"], each["partition"], each["index"], each["payload"]) for each in records] == [
        ("my-topic", 3, 0, "a"), ("my-topic", 3, 0, "b"), ("my-topic", 3, 1, "c"), ("my-topic", 3, 0, "d"),
    ]  # fmt: skip
    assert records[0]["offset"] == 100
    assert "4 messages in 3 batches handled." in captured.err


def test_delivers_keys_times_and_headers_of_a_disk_since_08(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    headers: dict[int, Headers] = {0: (("h", b"1"),), 1: (("h", None), ("h", b"2"))}
    first = encode_record_batch(
        [b"a", None], keys=[b"k", b"gone"], timestamps=[7, 8], headers=headers, base_offset=5, codec=RecordCodec.GZIP
    )
    write_segment(tmp_path, "events-3", 0, encode_message_set_v08([b"old"], magic=1, base_offset=4), first)
    write_segment(tmp_path, "events-3", 7, batch(7, b"aborted", producer=9), marker(8, 9, commit=False), batch(9)[:-1])
    assert run(["handlers", "test", "print", str(tmp_path / "events-3")]) == ExitCode.OK
    captured = capfd.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [(each["offset"], each["partition"], each["payload"], each.get("key")) for each in records] == [
        (4, 3, "old", None), (5, 3, "a", "k"), (6, 3, None, "gone"), (7, 3, "aborted", None),
    ]  # fmt: skip
    assert [(each["timestamp"], each["headers"]) for each in records[1:3]] == [
        (7, [["h", "MQ=="]]), (8, [["h", None], ["h", "Mg=="]]),
    ]  # fmt: skip
    config = tmp_path / "c.toml"
    config.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[fetch]\nisolation = "read_committed"\n')
    assert run(["handlers", "test", "-c", str(config), str(tmp_path / "events-3")]) == ExitCode.OK
    assert "3 messages in 1 batch handled." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ([0, 1], "from offset 0 to 3"),
        ([4], "from offset 4 to 5"),
        ([4, 6], "from offset 4 on"),
    ],
)
def test_goes_on_behind_segments_that_a_running_broker_deletes(
    tmp_path: Path, gone: list[int], says: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    files = {start: write_segment(tmp_path, "events-0", start, batch(start, b"a")) for start in (0, 1, 4, 6)}
    find = dumped.find_dumped

    def deleting(paths: list[str]) -> list[SegmentFile | SegmentSource]:
        found = find(paths)
        for start in gone:
            files[start].unlink()
        return found

    monkeypatch.setattr("consumerd.handlers.recorded.find_dumped", deleting)
    assert run(["handlers", "test", "print", str(tmp_path / "events-0")]) == ExitCode.OK
    captured = capfd.readouterr()
    assert [json.loads(line)["offset"] for line in captured.out.splitlines()] == [
        start for start in files if start not in gone
    ]
    deleted = f"consumerd: the segments {says} were deleted since they were found, as a running broker does"
    assert captured.err.splitlines()[0] == f"{deleted}; they are left out."


def test_damage_on_a_disk_ends_the_test(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path, "events-0", 0, batch(0, b"a"), batch(1, b"b")[:-1])
    write_segment(tmp_path, "events-0", 2, batch(2, b"c"))
    write_segment(tmp_path, "events-1", 0, batch(0, b"a"), b"nonsense" * 9, batch(1, b"b"))
    for folder, problem in (("events-0", "is torn"), ("events-1", "position 69")):
        assert run(["handlers", "test", "print", str(tmp_path / folder)]) == ExitCode.CORRUPT
        assert problem in capfd.readouterr().err


def test_a_sink_that_has_the_messages_gets_them_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "lines", tmp_path / "out"
    path.write_bytes(b"a\nb\n")
    command = ["handlers", "test", "files", str(path), "--option", f'directory="{out}"']
    for count in (2, 0):
        assert run(command) == ExitCode.OK
        assert f"{count} messages in" in capfd.readouterr().err
    assert len(list(out.rglob("*.ndjson"))) == 1


def test_a_handler_that_fails_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n")
    assert run(["handlers", "test", "print", str(path), "--option", "descriptor=9999"]) == ExitCode.HANDLER_FAILED
    assert "Bad file descriptor" in capfd.readouterr().err


def test_ends_where_the_disk_of_the_output_is_full(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n")
    with Path("/dev/full").open("wb", buffering=0) as full:
        command = ["handlers", "test", "print", str(path), "--option", f"descriptor={full.fileno()}"]
        assert run(command) == ExitCode.HANDLER_FAILED
    assert "No space left on device" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["print"], ExitCode.USAGE, "give HANDLER and INPUT"),
        (["-c", "x", "y", "z"], ExitCode.USAGE, "give HANDLER and INPUT"),
        (["-c", "x", "y", "--option", "a=1"], ExitCode.USAGE, "--option belongs to HANDLER"),
        (["print", "f", "--option", "a"], ExitCode.USAGE, "must have the form KEY=VALUE"),
        (["print", "f", "--option", "a=b"], ExitCode.USAGE, "the value of a must be TOML"),
        pytest.param(["print", "f", "--option", "a=" + "[" * 9000], ExitCode.USAGE, "the value of a must", id="nested"),
        (["print", "{tmp}/none"], ExitCode.NOT_FOUND, "/none cannot be read"),
        (["print", "/"], ExitCode.USAGE, "the folder of a partition"),
        (["prnt", "/dev/null"], ExitCode.HANDLER, "did you mean 'print'"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], code: ExitCode, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["handlers", "test", *(each.replace("{tmp}", str(tmp_path)) for each in arguments)]) == code
    assert words in " ".join(capsys.readouterr().err.split())


RECORD = '{"topic":"t","broker":0,"partition":0,'


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "{}",
        '{"topic":1}',
        RECORD + '"offset":-1,"index":0,"payload":""}',
        RECORD + '"offset":1,"index":0,"payload":null}',
        RECORD + '"offset":1,"index":0,"payload_base64":"?"}',
    ],
)
def test_rejects_lines_that_are_not_records(tmp_path: Path, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records"
    path.write_text(line)
    assert run(["handlers", "test", "print", str(path), "--ndjson"]) == ExitCode.CORRUPT
    assert "line 1 is not a record" in capfd.readouterr().err


def test_lists_decoders(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["handlers", "list", "--json"]) == ExitCode.OK
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["name"] for each in found if each["kind"] == "decoder"} >= {"bytes", "text", "json", "avro"}
    assert {each["kind"] for each in found if each["name"] == "print"} == {"handler"}
    assert "slow_calls" in {each["name"] for each in found if each["kind"] == "middleware"}


def test_decodes_what_it_delivers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"a"\n{"a":2}\n')
    assert run(["handlers", "test", "print", str(path), "--decoder", "json"]) == ExitCode.HANDLER_FAILED
    captured = capfd.readouterr()
    assert [json.loads(line)["payload"] for line in captured.out.splitlines()] == ['{"a":1}']
    assert "decoder 'json' failed at offset 8 of lines/0-0 (DecodeError: Input data was truncated)" in captured.err
    config = tmp_path / "c.toml"
    config.write_text(
        '[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\ndecoder = "text"\ndecoder_options = { encoding = "ascii" }\n'
        'on_failure = "skip"\n'
    )
    path.write_bytes(b"a\n\xff\nb\n")
    assert run(["handlers", "test", "-c", str(config), str(path)]) == ExitCode.OK
    assert [json.loads(line)["payload"] for line in capfd.readouterr().out.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--decoder", "jsn"], ExitCode.HANDLER, "unknown decoder 'jsn', did you mean 'json'"),
        (["--decoder", "text", "--decoder-option", "encoding"], ExitCode.USAGE, "must have the form KEY=VALUE"),
        (["--decoder-option", "encoding='ascii'"], ExitCode.USAGE, "--decoder-option needs --decoder"),
        (["--decoder", "avro"], ExitCode.HANDLER, "decoder 'avro' requires the option 'schema'"),
    ],
)
def test_wrong_decoders_are_one_sentence(
    arguments: list[str], code: ExitCode, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n")
    assert run(["handlers", "test", "null", str(path), *arguments]) == code
    assert words in capsys.readouterr().err


def test_calls_middleware(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, config = tmp_path / "lines", tmp_path / "c.toml"
    path.write_bytes(b"a\n")
    text = '[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\nname = "null"\nmiddleware = ["slow_calls"]\n'
    config.write_text(f"{text}middleware_options = {{ slow_calls = {{ threshold = 1e-9 }} }}\n")
    assert run(["handlers", "test", "-c", str(config), str(path)]) == ExitCode.OK
    assert "handler_call_slow" in capfd.readouterr().err
    config.write_text(f"{text}middleware_options = {{ slow = {{ threshold = 1 }} }}\n")
    assert run(["handlers", "test", "-c", str(config), str(path)]) == ExitCode.CONFIG
    assert "middleware_options are given for 'slow', which middleware does not name" in capfd.readouterr().err
