"""`consumerd wire decode`: hex in, JSON out, and hex again."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


def spaceless(text: str) -> str:
    return text.replace(" ", "")


def test_decodes_and_encodes_a_frame(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = encoded_heartbeat()
    given(frame)
    assert run(["wire", "decode", "--api-key", "12", "--api-version", "0", "--request", "--roundtrip"]) == ExitCode.OK
    text, again = capsys.readouterr().out.splitlines()
    assert json.loads(text) == {
        "form": "frame",
        "api": "Heartbeat",
        "api_key": 12,
        "api_version": 0,
        "header": {"api_key": 12, "api_version": 0, "correlation_id": 7, "client_id": "me", "tags": {}},
        "body": {"group_id": "g", "generation_id": 3, "member_id": "m"},
    }
    assert again == spaceless(frame)


def encoded_heartbeat() -> str:
    body = "000c 0000 00000007 0002 6d65 0001 67 00000003 0001 6d"
    return f"{len(bytes.fromhex(body)):08x} {body}"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("frame", "00000006 00000007 001b"),
        ("message", "00000007 001b"),
        ("body", "001b"),
    ],
)
@pytest.mark.parametrize("said", [True, False])
def test_recognises_the_form_of_a_response(
    given: Any, capsys: pytest.CaptureFixture[str], form: str, text: str, said: bool
) -> None:
    given("\n\t".join(text.upper().split()) + "\n")
    options = ["--form", form] if said else []
    command = ["wire", "decode", "--api-key", "heartbeat", "--api-version", "0", "--response", "--roundtrip"]
    assert run([*command, *options]) == ExitCode.OK
    shown, again = capsys.readouterr().out.splitlines()
    assert json.loads(shown)["form"] == form
    assert json.loads(shown)["body"] == {"error_code": 27}
    assert again == spaceless(text)


def test_recognises_the_form_of_a_request(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = bytes.fromhex(encoded_heartbeat())
    for form, cut in (("frame", 0), ("message", 4), ("body", 4 + 8 + 4)):
        given(frame[cut:].hex())
        command = ["wire", "decode", "--api-key", "12", "--api-version", "0", "--request", "--roundtrip"]
        assert run(command) == ExitCode.OK
        shown, again = capsys.readouterr().out.splitlines()
        assert json.loads(shown)["form"] == form
        assert again == frame[cut:].hex()


def test_prints_byte_strings_as_hex(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given("00000000 0003 706c61")
    assert (
        run(["wire", "decode", "--api-key", "36", "--api-version", "2", "--request", "--form", "body"]) != ExitCode.OK
    )
    capsys.readouterr()
    given("04 616263 00")
    assert run(["wire", "decode", "--api-key", "sasl-authenticate", "--api-version", "2", "--request"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["body"] == {"auth_bytes": "616263"}


def test_decodes_a_refused_version_of_api_versions(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given("0000000a 00000002 0023 00000000")
    command = ["wire", "decode", "--api-key", "18", "--api-version", "99", "--response", "--roundtrip"]
    assert run(command) == ExitCode.OK
    shown, again = capsys.readouterr().out.splitlines()
    assert json.loads(shown)["api_version"] == 0
    assert again == "0000000a00000002002300000000"


def test_decodes_a_request_of_0_7(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("1", "FETCH"):
        given("00000016" + "0001 0002 7431 00000000 0000000000000005 00000100")
        assert run(["wire", "decode", "--v07", "--type", kind, "--request", "--roundtrip"]) == ExitCode.OK
        shown, again = capsys.readouterr().out.splitlines()
        assert json.loads(shown) == {
            "form": "frame",
            "type": "FETCH",
            "body": {"topic": "t1", "partition": 0, "offset": 5, "max_size": 256},
        }
        assert again == "00000016000100027431000000000000000000000005" + "00000100"


def test_keeps_bytes_after_a_request_of_0_7(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = "00000018" + "0001 0002 7431 00000000 0000000000000005 00000100 abcd"
    given(text)
    assert run(["wire", "decode", "--v07", "--type", "1", "--request", "--roundtrip"]) == ExitCode.OK
    shown, again = capsys.readouterr().out.splitlines()
    assert json.loads(shown)["ignored"] == "abcd"
    assert again == spaceless(text)


@pytest.mark.parametrize(
    ("kind", "text", "body"),
    [
        ("4", "0000000e 0000 00000001 0000000000000009", {"error": 0, "offsets": [9]}),
        ("1", "00000004 0000 6162", {"error": 0, "data": "6162"}),
        (
            "2",
            "0000000f 0000 00000003 0000 61 00000002 0001",
            {"error": 0, "entries": [{"error": 0, "data": "61"}, {"error": 1, "data": ""}]},
        ),
        ("2", "00000002 0000", {"error": 0, "entries": []}),
    ],
)
def test_decodes_responses_of_0_7(
    given: Any, capsys: pytest.CaptureFixture[str], kind: str, text: str, body: dict[str, Any]
) -> None:
    given(text)
    assert run(["wire", "decode", "--v07", "--type", kind, "--response", "--roundtrip"]) == ExitCode.OK
    shown, again = capsys.readouterr().out.splitlines()
    assert json.loads(shown)["body"] == body
    assert again == spaceless(text)


def test_decodes_responses_of_0_7_that_begin_with_the_error(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given("0001 6162")
    assert run(["wire", "decode", "--v07", "--type", "1", "--response", "--form", "message", "--roundtrip"]) == 0
    shown, again = capsys.readouterr().out.splitlines()
    assert json.loads(shown)["body"] == {"error": 1, "data": "6162"}
    assert again == "00016162"


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ("00", "--api-key 12 --api-version 0 --request", ExitCode.BROKER, "has no room for its header"),
        ("00000001 00", "--api-key 12 --api-version 0 --request", ExitCode.BROKER, "has no room for its header"),
        (
            "00000006 00000007 001b",
            "--api-key 0 --api-version 0 --response",
            ExitCode.BROKER,
            "are not a valid Produce response",
        ),
        ("00000007 001b", "--api-key 12 --api-version 0 --response --form frame", ExitCode.BROKER, "are not a frame"),
        (
            encoded_heartbeat(),
            "--api-key 12 --api-version 1 --request",
            ExitCode.BROKER,
            "API key 12 and version 0, not",
        ),
        ("", "--v07 --type 1 --request", ExitCode.BROKER, "ends within a field"),
        ("00000002 0000 00000002 0000", "--v07 --type 1 --response", ExitCode.BROKER, "are not a frame"),
        ("00000003 0007 61", "--v07 --type 1 --response", ExitCode.BROKER, "their error code is unknown to 0.7"),
        ("00000003 0001 61", "--v07 --type 2 --response", ExitCode.BROKER, "further bytes follow it"),
        (
            "0001 0000 00000000 0000000000000005 00000100 ff",
            "--v07 --type 1 --request",
            ExitCode.BROKER,
            "last 1 bytes",
        ),
        ("0000", "--v07 --type 1 --request --form message", ExitCode.BROKER, "the request is of type 0, not 1 (FETCH)"),
        ("0", "--api-key 12 --api-version 0 --request", ExitCode.USAGE, "must be hex"),
        ("0g", "--api-key 12 --api-version 0 --request", ExitCode.USAGE, "must be hex"),
        ("é", "--api-key 12 --api-version 0 --request", ExitCode.USAGE, "must be hex"),
        ("", "--api-key 12 --api-version 0", ExitCode.USAGE, "give --request or --response"),
        ("", "--api-key 12 --request", ExitCode.USAGE, "give --api-key and --api-version"),
        ("", "--type 1 --request", ExitCode.USAGE, "give --api-key and --api-version"),
        ("", "--v07 --type 1 --api-key 1 --request", ExitCode.USAGE, "--v07 goes with --type"),
        ("", "--v07 --request", ExitCode.USAGE, "--v07 goes with --type"),
        (
            "",
            "--api-key 21 --api-version 0 --request",
            ExitCode.USAGE,
            "--api-key 21 is not known; these are: 0 produce",
        ),
        ("", "--api-key fech --api-version 0 --request", ExitCode.USAGE, "--api-key fech is not known"),
        ("00000000", "--api-key 12 --api-version 9 --response", ExitCode.USAGE, "version 9 of Heartbeat"),
        ("", "--v07 --type 5 --request", ExitCode.USAGE, "--type 5 is not known"),
        ("", "--v07 --type 0 --response", ExitCode.USAGE, "do not answer PRODUCE"),
    ],
)
def test_rejects_input_that_cannot_be_decoded(
    given: Any, capsys: pytest.CaptureFixture[str], text: str, arguments: str, code: ExitCode, said: str
) -> None:
    given(text)
    assert run(["wire", "decode", *arguments.split()]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in " ".join(err.split())
