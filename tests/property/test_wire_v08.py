"""Messages of the guide's protocol: any values of any schema there and back, and whatever else may come."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v08 import (
    APIS,
    Api,
    Direction,
    Field,
    FieldType,
    MessageLimits,
    RequestHeader,
    RequestMessage,
    ResponseHeader,
    ResponseMessage,
    decode_body,
    decode_request,
    decode_response,
    encode_body,
    encode_request_message,
    encode_response,
    request_header_version,
    response_header_version,
)
from consumerd.wire.v08.structures import UNKNOWN_TAGS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SIMPLE: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.BOOLEAN: st.booleans(),
    FieldType.INT8: st.integers(-(1 << 7), (1 << 7) - 1),
    FieldType.INT16: st.integers(-(1 << 15), (1 << 15) - 1),
    FieldType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldType.STRING: TEXT,
    FieldType.BYTES: st.binary(max_size=200),
    FieldType.RECORDS: st.binary(max_size=200),
    FieldType.UUID: st.binary(min_size=16, max_size=16),
}
#: Tags that no schema knows.
TAGS = st.dictionaries(st.integers(1000, (1 << 32) - 1), st.binary(max_size=200), max_size=2)

Message = tuple[Api[Any, Any], Direction, int]
MESSAGES: list[Message] = [
    (api, direction, version)
    for api in APIS.values()
    for direction in ("request", "response")
    for version in range(api.versions[0], api.versions[1] + 1)
]


@cache
def bodies(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of one message."""
    api, direction, version = message
    fields = api.request if direction == "request" else api.response
    return structures(fields, version, flexible=api.is_flexible(version))


def structures(fields: tuple[Field, ...], version: int, *, flexible: bool) -> st.SearchStrategy[dict[str, Any]]:
    own = {field.name: values(field, version, flexible=flexible) for field in fields if field.in_version(version)}
    plain = st.fixed_dictionaries(own)
    if not flexible:
        return plain
    return st.builds(lambda value, tags: {**value, UNKNOWN_TAGS: tags} if tags else value, plain, TAGS)


def values(field: Field, version: int, *, flexible: bool) -> st.SearchStrategy[Any]:
    found: st.SearchStrategy[Any]
    if isinstance(field.of, FieldType):
        found = st.lists(SIMPLE[field.of], max_size=3)
    elif field.type is FieldType.ARRAY:
        found = st.lists(structures(field.of, version, flexible=flexible), max_size=3)
    elif field.type is FieldType.STRUCT:
        found = structures(field.of, version, flexible=flexible)
    else:
        found = SIMPLE[field.type]
    # A tagged structure that is not there is None.
    absent = field.tag is not None and field.default is None
    return st.none() | found if field.null_in(version) or absent else found


def drawn(data: st.DataObject, messages: list[Message] = MESSAGES) -> tuple[Message, dict[str, Any]]:
    message = data.draw(st.sampled_from(messages))
    return message, data.draw(bodies(message))


def shorter(data: bytes) -> Iterator[bytes]:
    for size in sorted({0, 1, len(data) // 2, len(data) - 1}):
        if 0 <= size < len(data):
            yield data[:size]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=40)
@given(data=st.data())
def test_reads_the_bodies_it_wrote(api: Api[Any, Any], data: st.DataObject) -> None:
    message, body = drawn(data, [message for message in MESSAGES if message[0] is api])
    encoded = encode_body(*message, body)
    assert decode_body(*message, encoded) == body
    viewed = decode_body(*message, memoryview(encoded))
    assert viewed == body
    assert encode_body(*message, viewed) == encoded


@given(st.data(), SIMPLE[FieldType.INT32], st.none() | TEXT, TAGS)
def test_reads_the_messages_it_wrote(
    data: st.DataObject, correlation_id: int, client_id: str | None, tags: dict[int, bytes]
) -> None:
    (api, direction, version), body = drawn(data)
    if direction == "request":
        header_version = request_header_version(api, version)
        header = RequestHeader(
            api.key,
            version,
            correlation_id,
            client_id if header_version > 0 else None,
            tags if header_version > 1 else {},
        )
        frame = encode_request_message(api, RequestMessage(header, body))
        assert decode_request(api, frame[4:]) == (header, body)
    else:
        if api.key == 18:
            body["error_code"] = 0  # an error may change the version, see consumerd.wire.v08.messages
        answer = ResponseHeader(correlation_id, tags if response_header_version(api, version) > 0 else {})
        frame = encode_response(api, version, ResponseMessage(answer, body))
        assert decode_response(api, version, frame[4:]) == (answer, body)
    assert int.from_bytes(frame[:4]) == len(frame) - 4


@given(st.data(), st.binary(min_size=1, max_size=3))
def test_truncated_or_longer_body_is_a_frame_error(data: st.DataObject, junk: bytes) -> None:
    message, body = drawn(data)
    encoded = encode_body(*message, body)
    for wrong in (*shorter(encoded), encoded + junk):
        try:
            decode_body(*message, wrong)
        except FrameError:
            continue
        raise AssertionError(wrong)


@given(st.data())
def test_enforces_the_limit_of_elements(data: st.DataObject) -> None:
    message, body = drawn(data)
    encoded = encode_body(*message, body)
    wanted = elements(body)
    # Tagged fields count, too.
    assert decode_body(*message, encoded, limits=MessageLimits(max_elements=wanted + 10_000)) == body
    if wanted:
        try:
            decode_body(*message, encoded, limits=MessageLimits(max_elements=wanted - 1))
        except FrameError:
            return
        raise AssertionError(body)


def elements(value: Any) -> int:
    """Elements of arrays, and tagged fields that no schema knows."""
    if isinstance(value, dict):
        return len(value.get(UNKNOWN_TAGS, ())) + sum(
            elements(content) for name, content in value.items() if name != UNKNOWN_TAGS
        )
    return len(value) + sum(map(elements, value)) if isinstance(value, list) else 0


@given(st.data())
def test_any_values_are_a_message_or_an_encode_error(data: st.DataObject) -> None:
    message, body = drawn(data)
    names = [name for name in body if name != UNKNOWN_TAGS]
    if not names:
        return
    junk: st.SearchStrategy[Any] = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | TEXT
        | st.binary(max_size=5)
        | st.just([{}])
        | st.just({})
    )
    body[data.draw(st.sampled_from(names))] = data.draw(junk)
    try:
        encoded = encode_body(*message, body)
    except EncodeError:
        return
    decode_body(*message, encoded)
