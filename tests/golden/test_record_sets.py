"""Message sets as real brokers of 0.8.2.2 and 0.10.1.1 sent and took them."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumerd.wire.v08.records import (
    BatchEnd,
    RecordSet,
    TimestampType,
    decode_records,
    encode_message_set,
)
from consumerd.wire.v08.records.message_set import read_message

pytestmark = pytest.mark.usefixtures("either_codec")

FILES = ("kafka-0.8.2.2-single.json", "kafka-0.10.1.1-single.json")
#: The time in all messages of magic 1 that the recording's client wrote.
STAMP = 1_480_000_000_000


@dataclass
class Asked:
    """The record data of one partition in a response, and the offset at which it was fetched."""

    label: str
    partition: tuple[str, int]
    offset: int
    end_of_log: int
    data: bytes


class Fields:
    """Reads the frames of these recordings: as little of the protocol as these tests need."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self.data, self.position)
        self.position += struct.calcsize(">" + form)
        return int(value)

    def bytes(self, form: str) -> bytes:
        size = self.take(form)
        self.position += size
        return self.data[self.position - size : self.position]


def fetched(golden: Path, name: str) -> list[Asked]:
    """Every partition of every FETCH in a recording."""
    found = []
    for entry in json.loads((golden / "kafka-0.8-0.10" / name).read_text()):
        if entry["api_key"] != 1 or entry["api_version"] > 3 or not entry["response_hex"]:
            continue
        request = Fields(bytes.fromhex(entry["request_hex"]), 12)
        request.bytes("h")
        request.position += 12 + (4 if entry["api_version"] == 3 else 0)
        offsets = {}
        for _ in range(request.take("i")):
            topic = request.bytes("h").decode()
            for _ in range(request.take("i")):
                partition, offsets[topic, partition], _ = request.take("i"), request.take("q"), request.take("i")
        response = Fields(bytes.fromhex(entry["response_hex"]), 8 + (4 if entry["api_version"] else 0))
        for _ in range(response.take("i")):
            topic = response.bytes("h").decode()
            for _ in range(response.take("i")):
                partition, error, end = response.take("i"), response.take("h"), response.take("q")
                place = topic, partition
                found.append(Asked(entry["label"], place, offsets[place], end, response.bytes("i")))
                assert error == 0 or not found[-1].data
    return found


def find(golden: Path, name: str, label: str) -> tuple[Asked, RecordSet]:
    (asked,) = (asked for asked in fetched(golden, name) if asked.label == label)
    return asked, decode_records(asked.data, asked.offset)


@pytest.mark.parametrize("name", FILES)
def test_reads_every_recorded_fetch(golden: Path, name: str) -> None:
    asked = fetched(golden, name)
    assert sum(bool(one.data) for one in asked) > 4
    for one in asked:
        found = decode_records(one.data, one.offset)
        assert found.end is not BatchEnd.CORRUPT, (one.label, found.problem)
        assert found.offsets == list(range(one.offset, one.offset + len(found))), one.label
        assert found.next_offset == one.offset + len(found)
        assert all(key in {None, b"k"} for key in found.keys)
        if "partial" not in one.label and one.data:
            assert found.next_offset == one.end_of_log, one.label


#: The messages of `wc.a`, partition 0: 0.8.2.2 stored one whose request asked for impossible acks.
PLAIN = {
    FILES[0]: ([b"v0 one", b"two", b"x", b"x"], [b"k", None, None, None]),
    FILES[1]: ([b"v0 one", b"two", b"x", b"v1 one", b"two", b"x", b"v2 one", b"two", b"x"], [b"k", None, None] * 3),
}
#: Three compressed messages and a plain one.
SQUEEZED = [b"gz0", b"gz1", b"gz2", b"x"]


@pytest.mark.parametrize(("name", "version"), [(FILES[0], 0), *((FILES[1], version) for version in range(4))])
def test_reads_and_writes_plain_messages_byte_for_byte(golden: Path, name: str, version: int) -> None:
    asked, found = find(golden, name, f"fetch-v{version}")
    values, keys = PLAIN[name]
    assert (found.payloads, found.keys) == (values, keys)
    magic = 1 if version >= 2 else 0
    stamps = [-1] * 6 + [STAMP] * 3 if magic else [-1] * len(values)
    assert found.timestamps == stamps
    kind = TimestampType.CREATE_TIME if magic else TimestampType.NONE
    assert {record.timestamp_type for record in found.messages()} == {kind}
    assert encode_message_set(values, magic=magic, keys=keys, timestamps=stamps) == asked.data


@pytest.mark.parametrize("version", range(4))
def test_opens_wrappers(golden: Path, version: int) -> None:
    """One for each version of PRODUCE; for FETCH before version 2 the broker made a single one of magic 0 of all."""
    asked, found = find(golden, FILES[1], f"fetch-v{version}-gzip")
    assert found.end is BatchEnd.COMPLETE
    assert found.payloads == [*SQUEEZED * 3, b"x", b"old", b"new"]
    assert found.keys == [b"k", b"k", b"k", None] * 3 + [None] * 3
    stamps = [-1] * 8 + [STAMP] * 4 + [-5, -1, STAMP]
    assert found.timestamps == (stamps if version >= 2 else [-1] * 15)
    inside = decode_records(asked.data, 1)
    assert (inside.payloads, inside.offsets) == (found.payloads[1:], list(range(1, 15)))


def test_writes_inner_sets_byte_for_byte(golden: Path) -> None:
    """The compressed bytes themselves are the JVM's deflate."""
    relative, found = find(golden, FILES[1], "fetch-v2-gzip")
    wrapper = read_message(relative.data, 0)
    assert wrapper.value is not None
    assert (wrapper.offset, wrapper.magic) == (2, 1)
    assert gzip.decompress(wrapper.value) == encode_message_set(SQUEEZED[:3], keys=[b"k"] * 3)
    absolute, found = find(golden, FILES[1], "fetch-v0-gzip")
    wrapper = read_message(absolute.data, 0)
    assert wrapper.value is not None
    assert (wrapper.offset, wrapper.magic) == (14, 0)
    assert gzip.decompress(wrapper.value) == encode_message_set(found.payloads, keys=found.keys, magic=0)


@pytest.mark.parametrize(
    ("name", "label", "end", "needed"),
    [
        # Cut in the header of the next message, or behind its size.
        (FILES[0], "fetch-v0-partial", BatchEnd.PARTIAL, 29),
        (FILES[1], "fetch-v2-partial", BatchEnd.PARTIAL, None),
        # A broker that converts drops what is cut: a short answer does not mean the end.
        (FILES[1], "fetch-v0-partial", BatchEnd.COMPLETE, None),
    ],
)
def test_reads_truncated_responses(golden: Path, name: str, label: str, end: BatchEnd, needed: int | None) -> None:
    _, found = find(golden, name, label)
    assert (found.end, found.needed, found.payloads) == (end, needed, [b"v0 one"])
    assert found.next_offset == 1


def test_reads_a_wrapper_from_an_offset_inside(golden: Path) -> None:
    asked, found = find(golden, FILES[1], "fetch-v3-mid")
    assert asked.offset == 1
    assert (found.start_offset, found.offsets[0]) == (1, 1)


@pytest.mark.parametrize("name", FILES)
def test_writes_what_brokers_accepted(golden: Path, name: str) -> None:
    """Every plain set in a PRODUCE is written byte for byte; those that the broker refused are found bad."""
    count = 0
    for entry in json.loads((golden / "kafka-0.8-0.10" / name).read_text()):
        if entry["api_key"] != 0 or entry["api_version"] > 2 or "two-topics" in entry["label"]:
            continue
        request = Fields(bytes.fromhex(entry["request_hex"]), 12)
        request.bytes("h")
        request.position += 6
        if request.take("i") == 0:
            continue
        request.bytes("h")
        request.position += 8
        data = request.bytes("i")
        if "gzip" in entry["label"]:
            continue
        found = decode_records(data, 0)
        if "corrupt" in entry["label"]:
            assert found.problem is not None
            assert "CRC" in found.problem
            continue
        magic = data[16] if data else 0
        again = encode_message_set(found.payloads, magic=magic, keys=found.keys, timestamps=found.timestamps)
        if found.offsets == list(range(len(found))):
            assert again == data, entry["label"]
            count += 1
    assert count >= 5
