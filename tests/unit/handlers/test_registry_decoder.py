"""The decoder `schema_registry`: each format with references, ids and GUIDs, and a registry that fails."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumerd.base.errors import HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import RetryPolicy
from consumerd.handlers import Batch, DecodeError, HandlerContext, KeyedMessage, Letter, make_handler
from consumerd.handlers.decoding.api import Decoder, NotReadyError, load_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.net.schemas.frames import read_frame
from consumerd.testing import FakeClock
from consumerd.testing.records import MemoryDeadLetters
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.schema_registry import SchemaRegistryServer

USER: dict[str, Any] = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "by", "type": "User"}, {"name": "items", "type": {"type": "array", "items": "User"}}],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


def message(payload: bytes, topic: str = "t", headers: tuple[tuple[str, bytes | None], ...] = ()) -> Any:
    return KeyedMessage(TopicPartition.numbered(topic, 0), 0, 0, 1, payload, None, -1, -1, headers)


def framed(schema: int | str, value: bytes) -> bytes:
    return b"\x00" + int(schema).to_bytes(4) + value


def avro(schema: Any, value: Any, named: Any = None) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema, {} if named is None else named), value)
    return data.getvalue()


def decoded(decoder: Decoder, of: Any) -> Any:
    """The value, with the schema read as often as the decoder asks for one."""
    while True:
        try:
            return decoder.decode(of)
        except NotReadyError as missing:
            asyncio.run(missing.load(FakeClock(auto=True)))


def decoder_of(registry: SchemaRegistryServer, **options: Any) -> Decoder:
    return load_decoder("schema_registry", {"url": registry.url, **options})


def test_avro_is_decoded_with_the_schema_that_it_was_written_with(registry: SchemaRegistryServer) -> None:
    key = registry.add(USER)
    decoder = decoder_of(registry)
    for number in (1, 2, 3):
        assert decoded(decoder, message(framed(key, avro(USER, {"id": number})))) == {"id": number}
    assert registry.requests == ["/schemas/ids/1"]


def test_avro_schema_is_read_with_those_that_it_refers_to(registry: SchemaRegistryServer) -> None:
    registry.add(USER, subject="a/user", version=7)
    key = registry.add(ORDER, references=[("User", "a/user", 7)])
    named: dict[str, Any] = {}
    fastavro.parse_schema(USER, named)
    value = {"by": {"id": 1}, "items": [{"id": 2}, {"id": 3}]}
    assert decoded(decoder_of(registry), message(framed(key, avro(ORDER, value, named)))) == value
    assert registry.requests == ["/schemas/ids/2", "/subjects/a%2Fuser/versions/7"]


def test_avro_is_resolved_to_the_schema_of_the_reader(registry: SchemaRegistryServer, tmp_path: Path) -> None:
    newer = USER | {"fields": [*USER["fields"], {"name": "name", "type": "string", "default": "?"}]}
    (tmp_path / "newer.avsc").write_text(json.dumps(newer))
    key = registry.add(USER)
    decoder = decoder_of(registry, schema={"t": str(tmp_path / "newer.avsc")})
    payload = framed(key, avro(USER, {"id": 1}))
    assert decoded(decoder, message(payload)) == {"id": 1, "name": "?"}
    assert decoded(decoder, message(payload, "other")) == {"id": 1}


def proto(name: str, *messages: tuple[str, list[tuple[str, str]]], needs: tuple[str, ...] = ()) -> Any:
    """A file with message types, whose fields are of type int64, or of a message type that is named."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="p", syntax="proto3", dependency=needs)
    for made, fields in messages:
        kind = file.message_type.add(name=made)
        for number, (field, of) in enumerate(fields, 1):
            of_type: dict[str, Any] = {"type": 3} if of == "int64" else {"type": 11, "type_name": of}
            kind.field.add(name=field, number=number, label=1, **of_type)
    return file


def test_protobuf_names_its_message_type_by_a_path(registry: SchemaRegistryServer) -> None:
    file = proto("orders.proto", ("First", [("id", "int64")]), ("Second", [("n", "int64")]))
    inner = file.message_type[1].nested_type.add(name="Inner")
    inner.field.add(name="deep", number=1, label=1, type=3)
    key = registry.add(file.SerializeToString(), kind="PROTOBUF")
    decoder = decoder_of(registry)
    # The path [0] has a short form; numbers are in zigzag encoding.
    for path, name in [(b"\x00", "id"), (b"\x02\x00", "id"), (b"\x02\x02", "n"), (b"\x04\x02\x00", "deep")]:
        assert decoded(decoder, message(framed(key, path + b"\x08\x05"))) == {name: "5"}
    with pytest.raises(DecodeError, match=r"the schema has no message type \[7\] \(schema 1\)"):
        decoded(decoder, message(framed(key, b"\x02\x0e\x08\x05")))
    with pytest.raises(DecodeError, match=r"it does not fit p\.First"):
        decoded(decoder, message(framed(key, b"\x00\x08")))


@pytest.mark.parametrize("as_registered", [False, True])
def test_protobuf_schema_is_read_with_its_references_and_the_well_known_types(
    registry: SchemaRegistryServer, as_registered: bool
) -> None:
    user = proto("user.proto", ("User", [("id", "int64")])).SerializeToString()
    registry.add(user, kind="PROTOBUF", subject="user", as_registered=as_registered)
    main = proto(
        "",
        ("Order", [("by", ".p.User"), ("at", ".google.protobuf.Timestamp")]),
        needs=("user.proto", "google/protobuf/timestamp.proto"),
    )
    needed = [("user.proto", "user", 1)]
    key = registry.add(main.SerializeToString(), kind="PROTOBUF", references=needed, as_registered=as_registered)
    at = timestamp_pb2.Timestamp(seconds=5).SerializeToString()
    value = b"\x0a\x02\x08\x09" + b"\x12" + bytes([len(at)]) + at
    assert decoded(decoder_of(registry), message(framed(key, b"\x00" + value))) == {
        "by": {"id": "9"},
        "at": "1970-01-01T00:00:05Z",
    }


def test_json_is_checked_against_its_schema_where_that_is_asked_for(registry: SchemaRegistryServer) -> None:
    registry.add({"type": "integer"}, kind="JSON", subject="number")
    schema = {"type": "object", "properties": {"n": {"$ref": "number.json"}}}
    key = registry.add(schema, kind="JSON", references=[("number.json", "number", 1)])
    wrong = message(framed(key, b'{"n": "secret"}'))
    assert decoded(decoder_of(registry), wrong) == {"n": "secret"}
    checking = decoder_of(registry, validate=True)
    assert decoded(checking, message(framed(key, b'{"n": 1}'))) == {"n": 1}
    with pytest.raises(DecodeError, match=r"^it does not fit the schema at \$\.n: type \(schema 2\)$"):
        decoded(checking, wrong)
    with pytest.raises(DecodeError, match="it is not JSON"):
        decoded(checking, message(framed(key, b"{")))


def test_decodes_the_bytes_of_confluents_serializers(registry: SchemaRegistryServer) -> None:
    """Written by hand by their documented format: a zero byte, the id in four bytes, of Protobuf a path, the value."""
    tag = {"name": "tag", "type": ["null", "string"]}
    registry.add({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, tag]})
    registry.add({"type": "object"}, kind="JSON")
    file = proto("r.proto", ("R", [("id", "int64"), ("n", "int64")]))
    registry.add(file.SerializeToString(), kind="PROTOBUF")
    vectors = [
        ("00 00000001 02 02 02 78", {"id": 1, "tag": "x"}),
        ("00 00000002" + b'{"id": 1}'.hex(), {"id": 1}),
        ("00 00000003 00 08 05 10 07", {"id": "5", "n": "7"}),
    ]
    decoder = decoder_of(registry)
    for text, value in vectors:
        assert decoded(decoder, message(bytes.fromhex(text))) == value


def test_header_with_a_guid_names_the_schema(registry: SchemaRegistryServer) -> None:
    guid = str(uuid.UUID(int=7))
    registry.add(USER, key=guid)
    headers = (("__value_schema_id", b"\x01" + uuid.UUID(guid).bytes),)
    assert decoded(decoder_of(registry), message(avro(USER, {"id": 5}), headers=headers)) == {"id": 5}
    assert registry.requests == [f"/schemas/guids/{guid}"]


def test_header_with_a_guid_has_the_path_to_a_message_type(registry: SchemaRegistryServer) -> None:
    guid = str(uuid.UUID(int=8))
    file = proto("", ("First", [("id", "int64")]), ("Second", [("n", "int64")]))
    registry.add(file.SerializeToString(), kind="PROTOBUF", key=guid)
    headers = (("__value_schema_id", b"\x01" + uuid.UUID(guid).bytes + b"\x02\x02"),)
    assert decoded(decoder_of(registry), message(b"\x08\x05", headers=headers)) == {"n": "5"}


@pytest.mark.parametrize("payload", [b"", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01x", b'{"id": 1}'])
def test_payload_without_an_id_is_an_error_of_its_message(registry: SchemaRegistryServer, payload: bytes) -> None:
    with pytest.raises(DecodeError, match="it does not begin with a zero byte and the id of a schema"):
        decoder_of(registry).decode(message(payload))


def test_unknown_id_is_an_error_of_its_message_and_not_asked_for_again(registry: SchemaRegistryServer) -> None:
    decoder = decoder_of(registry)
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"unknown schema 99: the registry http.* does not have it"):
            decoded(decoder, message(framed(99, b"")))
    assert registry.requests == ["/schemas/ids/99"]


@pytest.mark.parametrize(
    ("schema", "kind", "problem"),
    [
        (b"nonsense", "PROTOBUF", "schema 1: the schema is invalid"),
        ({"type": "nonsense"}, "AVRO", "schema 1: the schema is invalid"),
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}, "AVRO", "contains itself"),
        ({}, "XML", "schema 1: unknown type 'XML': it must be AVRO, PROTOBUF or JSON"),
    ],
)
def test_schema_that_cannot_be_used_is_an_error_of_its_messages(
    registry: SchemaRegistryServer, schema: Any, kind: str, problem: str
) -> None:
    key = registry.add(schema, kind=kind)
    with pytest.raises(DecodeError, match=problem):
        decoded(decoder_of(registry), message(framed(key, b"\x00\x00")))


def test_registry_without_the_binary_form_is_named(registry: SchemaRegistryServer) -> None:
    document = json.dumps({"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}).encode()
    registry.script.extend([(200, document)] * 2)
    with pytest.raises(DecodeError, match="the registry does not return the schema in its binary form"):
        decoded(decoder_of(registry), message(framed(1, b"\x00\x00")))


def test_references_in_a_circle_end(registry: SchemaRegistryServer) -> None:
    key = registry.add(USER, subject="a", references=[("b", "b", 1)])
    registry.add(USER | {"name": "Other"}, subject="b", references=[("a", "a", 1)])
    assert decoded(decoder_of(registry), message(framed(key, b"\x02"))) == {"id": 1}
    assert len(registry.requests) == 3


def test_login_is_sent_and_read_again_from_its_file(registry: SchemaRegistryServer, tmp_path: Path) -> None:
    for key in (1, 2):
        registry.add(USER, key=key)
    file = tmp_path / "password"
    file.write_text("first\n")
    decoder = decoder_of(registry, user="me", password_file=str(file))
    decoded(decoder, message(framed(1, b"\x02")))
    file.write_text("second!\n")
    decoded(decoder, message(framed(2, b"\x02")))
    sent = [base64.b64decode(each["Authorization"].removeprefix("Basic ")) for each in registry.headers]
    assert sent == [b"me:first", b"me:second!"]
    decoded(decoder_of(registry, token="abc"), message(framed(1, b"\x02")))
    assert registry.headers[-1]["Authorization"] == "Bearer abc"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "registry:8081"}, "url must have the form https://host:port/path"),
        ({"url": "http://me:pw@host"}, "url must not have a user or password: give user, and password or"),
        ({"user": "me"}, "give user and password"),
        ({"password": "x"}, "give user and password"),
        ({"user": "me", "password": "x", "token": "y"}, "give user and password"),
        ({"token": "y", "token_file": "z"}, "give exactly one of token and token_file"),
        ({"schema": "/no/such.avsc"}, "the schema /no/such.avsc cannot be read"),
        ({"timeout": 0}, "timeout must be a positive number of seconds"),
        ({"uri": "http://host"}, "did you mean 'url'"),
    ],
)
def test_wrong_options_have_a_sentence(options: dict[str, Any], sentence: str) -> None:
    given = options if "uri" in options else {"url": "http://127.0.0.1:1"} | options
    with pytest.raises(HandlerLoadError, match=sentence):
        load_decoder("schema_registry", given)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_have_a_frame_or_a_decode_error(payload: bytes, header: bytes) -> None:
    try:
        frame = read_frame(message(payload, headers=(("__value_schema_id", header),)))
    except DecodeError:
        return
    assert isinstance(frame.schema, str) == (header[:1] == b"\x01")


def batch_of(*payloads: bytes) -> Batch:
    return Batch(TopicPartition.numbered("t", 0), decode_records(encode_record_batch(list(payloads)), 0))


async def test_unavailable_registry_holds_messages_back_and_ends_nothing(registry: SchemaRegistryServer) -> None:
    known, later = registry.add(USER), registry.add(USER)
    letters: list[Letter] = []
    seen: list[Any] = []

    async def handle(batch: Batch) -> None:
        seen.append(batch.values)

    clock = FakeClock(auto=True)
    handler = Stages(decoder=decoder_of(registry)).around(
        make_handler(handle),
        RetryPolicy(max_attempts=1, on_failure="dead_letter"),
        clock=clock,
        rng=random.Random(1),
        dead_letters=MemoryDeadLetters(letters),
    )
    await handler.start(HandlerContext("g", "g_1", clock))
    value = avro(USER, {"id": 1})
    await handler.handle(batch_of(framed(known, value)))
    registry.script.extend([(500, b""), (401, b"{}"), (200, b"<html>"), (200, b"[]")])
    batch = batch_of(framed(known, value), framed(later, value), framed(77, b""), framed(known, value))
    with capture_logs() as logs:
        await handler.handle(batch)
    assert seen == [[{"id": 1}], [{"id": 1}], [{"id": 1}], [{"id": 1}]]
    assert batch.handled == 4
    assert [(letter.message.offset, str(letter.error)[:17]) for letter in letters] == [(2, "unknown schema 77")]
    away = [each["reason"] for each in logs if each["event"] == "schema_registry_unavailable"]
    assert [reason.partition(registry.url)[2] for reason in away] == [
        " answers with status 500",
        " answers with status 401",
        " answers with something that is not schema 2; is it the URL of its API?",
        " answers with something that is not schema 2; is it the URL of its API?",
    ]
    assert sum(each["event"] == "schema_registry_available" for each in logs) == 1


async def test_registry_that_refuses_connections_is_asked_with_longer_pauses() -> None:
    decoder: Any = load_decoder("schema_registry", {"url": "http://127.0.0.1:1"})
    clock = FakeClock(auto=True)
    with pytest.raises(NotReadyError) as missing, capture_logs() as logs:
        decoder.decode(message(framed(1, b"")))
    with capture_logs() as logs:
        loading = asyncio.create_task(missing.value.load(clock))
        while len(clock.sleeps) < 12:
            await asyncio.sleep(0.001)
        loading.cancel()
        await asyncio.wait([loading])
    assert 15.0 <= clock.sleeps[-1] <= 30.0
    assert "cannot be asked" in logs[0]["reason"]
