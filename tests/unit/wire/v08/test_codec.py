"""The generic codec on made-up schemas and real ones: defaults, nulls, tagged fields, errors that name the place."""

from __future__ import annotations

import re
from typing import Any

import pytest

from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v08 import (
    APIS,
    Api,
    Field,
    FieldType,
    MessageLimits,
    UnsupportedVersionError,
    decode_body,
    encode_body,
)
from consumerd.wire.v08.schema import ARRAY, BYTES, INT8, INT16, INT32, INT64, RECORDS, STRING, STRUCT, UUID
from consumerd.wire.v08.structures import UNKNOWN_TAGS

FETCH = APIS[1]


def api(*fields: Field, flexible: int | None = None) -> Api[Any, Any]:
    return Api(key=99, name="Made", versions=(0, 3), request=fields, response=(), flexible=flexible)


def encoded(made: Api[Any, Any], body: dict[str, Any], version: int = 0) -> bytes:
    return encode_body(made, "request", version, body)


def decoded(made: Api[Any, Any], text: str, version: int = 0, **limits: int) -> dict[str, Any]:
    return decode_body(made, "request", version, bytes.fromhex(text), limits=MessageLimits(**limits))


def test_rejects_null_for_a_string_that_may_not_be_null() -> None:
    made = api(Field("name", STRING, "", nullable=1))
    assert decoded(made, "ffff", 1) == {"name": None}
    with pytest.raises(FrameError, match="name: a string of -1 bytes"):
        decoded(made, "ffff", 0)
    assert encoded(made, {"name": None}, 1).hex() == "ffff"
    with pytest.raises(EncodeError, match="request of version 0 cannot be made: name: must be a string, not None"):
        encoded(made, {"name": None}, 0)


def test_structure_that_may_be_null_has_a_byte_before_it() -> None:
    made = api(Field("part", STRUCT, "", of=(Field("number", INT8, ""),), nullable=1))
    assert decoded(made, "07", 0) == {"part": {"number": 7}}
    for text, part in (("ff", None), ("01 07", {"number": 7})):
        assert decoded(made, text, 1) == {"part": part}
        assert encoded(made, {"part": part}, 1) == bytes.fromhex(text)
    with pytest.raises(FrameError, match="part: a structure begins with the byte 2; expected 1, or 255 for null"):
        decoded(made, "02 07", 1)
    with pytest.raises(FrameError, match="part: the message ends before or within it"):
        decoded(made, "", 1)


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (STRING, "8000", "a string of -32768 bytes where 0 are left"),
        (STRING, "0003 6161", "a string of 3 bytes where 2 are left"),
        (STRING, "0001 ff", "a string is not UTF-8"),
        (BYTES, "ffffffff", "a byte string of -1 bytes"),
        (BYTES, "7fffffff 00", "a byte string of 2147483647 bytes where 1 are left"),
        (RECORDS, "fffffffe", "a record set of -2 bytes"),
        (UUID, "00112233", "an id of 16 bytes where 4 are left"),
        (INT64, "00", "the message ends before or within it"),
        (STRING, "00", "the message ends before or within it"),
    ],
)
def test_rejects_lengths_beyond_the_message(kind: FieldType, text: str, problem: str) -> None:
    with pytest.raises(FrameError, match=f"field: {problem}"):
        decoded(api(Field("field", kind, "")), text)


@pytest.mark.parametrize("of", [INT8, INT64, STRING, (Field("number", INT32, ""),), (Field("text", STRING, ""),)])
def test_rejects_counts_beyond_the_message(of: Any) -> None:
    """No memory is taken for elements that cannot be there."""
    made = api(Field("all", ARRAY, "", of=of))
    for text in ("7fffffff", "ffffffff", "80000000", "00000002 00"):
        with pytest.raises(FrameError, match=r"all: an array of -?[0-9]+ elements where [01] bytes are left"):
            decoded(made, text)


def test_reads_a_nullable_array() -> None:
    for of in (INT32, STRING, (Field("number", INT32, ""),)):
        made = api(Field("all", ARRAY, "", of=of, nullable=0), flexible=1)
        assert decoded(made, "ffffffff") == {"all": None}
        assert decoded(made, "00 00", 1) == {"all": None}
        assert decoded(made, "01 00", 1) == {"all": []}
        assert encoded(made, {"all": None}).hex() == "ffffffff"
        assert encoded(made, {"all": None}, 1).hex() == "0000"


def test_counts_the_elements_of_all_arrays_against_the_limit() -> None:
    made = api(Field("all", ARRAY, "", of=(Field("numbers", ARRAY, "", of=INT8),)))
    text = "00000002 00000001 05 00000002 0607"
    assert decoded(made, text, max_elements=5) == {"all": [{"numbers": [5]}, {"numbers": [6, 7]}]}
    with pytest.raises(FrameError, match="all: numbers: the arrays of a message have more elements than the limit"):
        decoded(made, text, max_elements=4)


def test_rejects_bytes_after_a_message() -> None:
    with pytest.raises(FrameError, match="3 bytes are not a valid Made request of version 0: it ends after 2 bytes"):
        decoded(api(Field("number", INT16, "")), "000100")


def test_returns_views_for_record_sets_of_a_view() -> None:
    made = api(Field("records", RECORDS, ""), Field("bytes", BYTES, ""))
    data = encoded(made, {"records": b"abc", "bytes": bytearray(b"de")})
    found = decode_body(made, "request", 0, memoryview(data))
    assert isinstance(found["records"], memoryview)
    assert found["records"].obj is data
    assert isinstance(found["bytes"], bytes)
    assert encoded(made, found) == data


def test_missing_fields_take_their_default_or_raise() -> None:
    made = api(
        Field("first", INT8, "", default=-1),
        Field("second", STRING, ""),
        Field("third", ARRAY, "", of=INT8, default=()),
    )
    assert encoded(made, {"second": ""}).hex() == "ff" + "0000" + "00000000"
    with pytest.raises(EncodeError, match="second: is required"):
        encoded(made, {"first": 1})


def test_rejects_a_field_of_another_version() -> None:
    made = api(
        Field("kept", INT8, ""),
        Field("hint", INT8, "", since=1, default=0, ignorable=True),
        Field("meaning", INT8, "", since=1, default=0),
    )
    assert encoded(made, {"kept": 1, "hint": 5, "meaning": 0}).hex() == "01"
    with pytest.raises(EncodeError, match="meaning: version 0 does not have this field, and 5 cannot be left out"):
        encoded(made, {"kept": 1, "meaning": 5})
    with pytest.raises(EncodeError, match="meanign: no version has a field of this name"):
        encoded(made, {"kept": 1, "meanign": 0}, 1)


def test_encodes_one_message_in_every_version() -> None:
    body = {
        "max_wait_ms": 1,
        "min_bytes": 1,
        "max_bytes": 100,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "topic_id": bytes(15) + b"1", "partitions": []}],
        "forgotten_topics_data": [],
        "rack_id": "r",
    }
    sizes = [len(encode_body(FETCH, "request", version, body)) for version in range(FETCH.versions[1] + 1)]
    assert len(set(sizes)) > 5
    assert decode_body(FETCH, "request", 13, encode_body(FETCH, "request", 13, body))["topics"] == [
        {"topic_id": bytes(15) + b"1", "partitions": []}
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"a": 128, "b": 0, "c": []}, "a: 128 is not an integer of 8 bits"),
        ({"a": 0, "b": "1", "c": []}, "b: '1' is not an integer of 32 bits"),
        ({"a": 0, "b": 0, "c": [{"d": "x" * 32768}]}, "c: d: a string of 32768 is too long"),
        ({"a": 0, "b": 0, "c": [{"d": "\ud800"}]}, r"c: d: the string '\\ud800' cannot be sent"),
        ({"a": 0, "b": 0, "c": [{"d": b"x"}]}, "c: d: must be a string, not b'x'"),
        ({"a": 0, "b": 0, "c": ["x"]}, "c: must be a dict of fields, not 'x'"),
        ({"a": 0, "b": 0, "c": "x"}, "c: must be an array, not 'x'"),
        ({"a": 0, "b": 0, "c": None}, "c: must be an array, not None"),
    ],
)
def test_rejects_values_that_do_not_fit(body: dict[str, Any], problem: str) -> None:
    made = api(Field("a", INT8, ""), Field("b", INT32, ""), Field("c", ARRAY, "", of=(Field("d", STRING, ""),)))
    with pytest.raises(EncodeError, match=problem):
        encoded(made, body)


def test_rejects_arrays_of_numbers_that_do_not_fit() -> None:
    made = api(Field("all", ARRAY, "", of=INT32))
    with pytest.raises(EncodeError, match="all: an array of numbers holds what does not fit"):
        encoded(made, {"all": [1, 1 << 31]})


def test_rejects_ids_of_other_lengths() -> None:
    with pytest.raises(EncodeError, match="field: must be an id of 16 bytes"):
        encoded(api(Field("field", UUID, "")), {"field": bytes(15)})


TAGGED = api(
    Field("plain", INT8, ""),
    Field("number", INT16, "", tag=2, default=7),
    Field("inner", STRUCT, "", of=(Field("text", STRING, ""),), tag=0, default=None),
    Field("all", ARRAY, "", of=INT8, tag=1, default=()),
    flexible=0,
)


def test_omits_tagged_fields_at_their_default() -> None:
    at_default: dict[str, Any] = {"plain": 1, "number": 7, "inner": None, "all": []}
    assert encoded(TAGGED, {"plain": 1}).hex() == "0100"
    assert encoded(TAGGED, at_default).hex() == "0100"
    assert decoded(TAGGED, "0100") == at_default


def test_writes_tagged_fields_in_order_of_their_tags() -> None:
    body = {"plain": 1, "number": 8, "inner": {"text": "a"}, "all": [9]}
    text = "01 03 00 03 0261 00 01 02 0209 02 02 0008"
    assert encoded(TAGGED, body) == bytes.fromhex(text)
    assert decoded(TAGGED, text) == body


def test_messages_do_not_share_default_lists() -> None:
    first = decoded(TAGGED, "0100")
    first["all"].append(5)
    assert decoded(TAGGED, "0100")["all"] == []


def test_keeps_unknown_tagged_fields() -> None:
    text = "01 02 02 02 0008 b201 01 ff"
    found = decoded(TAGGED, text)
    assert found[UNKNOWN_TAGS] == {178: b"\xff"}
    assert encoded(TAGGED, found) == bytes.fromhex(text)
    for wrong in ({2: b""}, {"x": b""}, {5: "x"}, [1]):
        with pytest.raises(EncodeError, match=UNKNOWN_TAGS):
            encoded(TAGGED, {"plain": 1, UNKNOWN_TAGS: wrong})
    plain = api(Field("plain", INT8, ""))
    assert encoded(plain, {"plain": 1, UNKNOWN_TAGS: {}}) == b"\x01"
    with pytest.raises(EncodeError, match=r"version 0 has no tagged fields$"):
        encoded(plain, {"plain": 1, UNKNOWN_TAGS: {178: b""}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("01", "the message ends before its tagged fields"),
        ("01 01", "1 tagged fields where 0 bytes are left"),
        ("01 01 02 03 0008", "tagged field 2 of 3 bytes where 2 are left"),
        ("01 02 02 02 0008 02 02 0008", "tagged field 2 after 2; tags ascend"),
        ("01 01 02 03 000800", "number: it ends after 2 of its 3 bytes"),
        ("01 01 02 01 00", "number: its 1 bytes end within it"),
        ("01 01 00 01 05", "inner: text: a string of 4 bytes where 0 are left"),
        ("01 ffffffff7f", "a varint has more than 32 bits"),
        ("01 ffffffffffff", "a varint has more than 32 bits"),
    ],
)
def test_rejects_inconsistent_tagged_fields(text: str, problem: str) -> None:
    with pytest.raises(FrameError, match=re.escape(problem)):
        decoded(TAGGED, text)


def test_counts_unknown_tagged_fields_against_the_limit() -> None:
    text = "01 02 05 00 06 00"
    assert decoded(TAGGED, text, max_elements=2)[UNKNOWN_TAGS] == {5: b"", 6: b""}
    with pytest.raises(FrameError, match="more elements than the limit"):
        decoded(TAGGED, text, max_elements=1)


def test_rejects_a_version_without_a_schema() -> None:
    for version in (-1, 19):
        with pytest.raises(UnsupportedVersionError, match=f"version {version} of Fetch .* 0 to 18 are"):
            encode_body(FETCH, "request", version, {})


def test_rejects_a_message_that_is_not_a_dict() -> None:
    with pytest.raises(EncodeError, match="must be a dict of fields"):
        encoded(api(Field("a", INT8, "")), [])  # type: ignore[arg-type]
