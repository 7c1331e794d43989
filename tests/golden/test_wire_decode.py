"""`consumerd wire decode` reads what was recorded, as it was recorded, and gives the same bytes again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.cli.wire_decoders import decode_form, v07_decoder, v08_decoder
from consumerd.wire import FrameError
from consumerd.wire.v07 import RequestType

#: Frames that the real broker refused, too, or answers that it broke.
BROKEN_07 = {
    "produce_topic_null",
    "produce_setsize_too_big",
    "multiproduce_negative_count",
    "fetch_truncated_body",
    "multifetch_truncated",
    "fetch_size_negative_100",
    "multifetch_size_negative",
}
#: Several frames in a row.
SEVERAL_07 = {"fetch_pipelined"}


def test_decodes_frames_of_0_7(golden: Path) -> None:
    done = 0
    for case in json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_text())["cases"]:
        if case["request_type"] not in RequestType.__members__:
            continue
        for name in ("request_hex", "response_hex"):
            if not case[name]:
                continue
            is_request = name == "request_hex"
            frame = bytes.fromhex(case[name])
            try:
                form, decoded = decode_form(
                    frame,
                    "auto",
                    v07_decoder(case["request_type"], is_request=is_request),
                    only_frames=not is_request,
                )
            except FrameError:
                assert case["name"] in BROKEN_07 | SEVERAL_07, case["name"]
            else:
                assert (form, decoded.encode()) == ("frame", frame), case["name"]
                done += 1
    assert done > 130


@pytest.mark.parametrize("name", ["kafka-0.8.2.2-single.json", "kafka-0.10.1.1-single.json"])
def test_decodes_frames_of_the_guide(golden: Path, name: str) -> None:
    done = 0
    for capture in json.loads((golden / "kafka-0.8-0.10" / name).read_text()):
        key, version = capture["api_key"], capture["api_version"]
        if 99 in (key, version):
            continue
        for which in ("request", "response"):
            if capture[f"{which}_hex"]:
                frame = bytes.fromhex(capture[f"{which}_hex"])
                decoder = v08_decoder(str(key), version, is_request=which == "request")
                for form, data in (("frame", frame), ("message", frame[4:])):
                    taken, decoded = decode_form(data, "auto", decoder)
                    assert (taken, decoded.encode()) == (form, data), capture["label"]
                    done += 1
    assert done > 200
