"""The decoders: what they make of good messages, and which errors they raise for others and for wrong options."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from consumerd.base.errors import HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import DecodeError, Message
from consumerd.handlers.decoding.api import load_decoder, make_decoder

FIELDS = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
USER: dict[str, Any] = {"type": "record", "name": "User", "fields": FIELDS}


class Event(msgspec.Struct):
    """Named in an option below."""

    id: int


def message(payload: bytes, topic: str = "t") -> Message:
    return Message(TopicPartition(topic, 0, 0), 0, 0, len(payload) + 10, payload)


def encoded(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


@pytest.fixture
def schema_file(tmp_path: Path) -> Any:
    def write(schema: Any, name: str = "schema.avsc") -> str:
        (tmp_path / name).write_text(schema if isinstance(schema, str) else json.dumps(schema))
        return str(tmp_path / name)

    return write


def test_bytes_are_the_payload() -> None:
    assert load_decoder("bytes").decode(message(b"\xff")) == b"\xff"


def test_text_has_an_encoding() -> None:
    assert load_decoder("text").decode(message("ä".encode())) == "ä"
    assert load_decoder("text", {"encoding": "latin-1"}).decode(message(b"\xe4")) == "ä"
    with pytest.raises(DecodeError, match=r"^invalid utf-8 at byte 1: invalid start byte$"):
        load_decoder("text").decode(message(b"a\xff"))


def test_json_makes_python_values() -> None:
    assert load_decoder("json").decode(message(b'{"a": [1, 2.5, null, true, "\\u00e4"]}')) == {
        "a": [1, 2.5, None, True, "ä"]
    }


def test_json_makes_values_of_a_type() -> None:
    decoder = load_decoder("json", {"type": f"{__name__}:Event"})
    assert decoder.decode(message(b'{"id": 7, "more": 1}')) == Event(7)
    with pytest.raises(DecodeError, match=r"Expected `int`, got `str` - at `\$.id`"):
        decoder.decode(message(b'{"id": "7"}'))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1e400", "out of range"),
        (b"9" * 5000, "out of range"),
        (b'"\xff"', "invalid UTF-8"),
        (b'"\xed\xa0\x80"', "invalid UTF-8"),
        (b"", "truncated"),
        (b"1 2", "trailing"),
        (b"NaN", "malformed"),
    ],
)
def test_json_rejects_hostile_text(payload: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        load_decoder("json").decode(message(payload))


def test_avro_reads_bare_values(schema_file: Any) -> None:
    decoder = load_decoder("avro", {"schema": schema_file(USER)})
    user = {"id": -5, "name": "ä"}
    assert decoder.decode(message(encoded(USER, user))) == user


def test_avro_has_a_schema_for_each_topic(schema_file: Any) -> None:
    files = {"users": schema_file(USER), "counts": schema_file('"long"', "long.avsc")}
    decoder = load_decoder("avro", {"schema": files})
    assert decoder.decode(message(encoded("long", 5), "counts")) == 5
    assert decoder.decode(message(encoded(USER, {"id": 1, "name": ""}), "users"))["id"] == 1
    with pytest.raises(DecodeError, match="no schema of topic other"):
        decoder.decode(message(b"", "other"))


def test_avro_resolves_single_objects_to_the_schema(schema_file: Any) -> None:
    newer = {**USER, "fields": [*FIELDS, {"name": "age", "type": "int", "default": -1}]}
    options = {"schema": schema_file(newer), "encoding": "single_object"}
    header = b"\xc3\x01" + bytes.fromhex(
        fingerprint(to_parsing_canonical_form(fastavro.parse_schema(USER)), "CRC-64-AVRO")
    )
    old = message(header + encoded(USER, {"id": 1, "name": "x"}))
    with pytest.raises(DecodeError, match=f"unknown schema with the fingerprint {header[2:].hex()}"):
        load_decoder("avro", options).decode(old)
    decoder = load_decoder("avro", {**options, "writer_schemas": [schema_file(USER, "old.avsc")]})
    assert decoder.decode(old) == {"id": 1, "name": "x", "age": -1}
    for wrong in (b"", header[:5], b"\xc3\x02" + header[2:] + b"\2\0"):
        with pytest.raises(DecodeError, match="does not begin with the marker"):
            decoder.decode(message(wrong))


def test_fingerprint_is_that_of_the_specification(schema_file: Any) -> None:
    """CRC-64-AVRO of "null" is 63dd24e7cc258f8a in Java's documentation; messages have it in little-endian order."""
    decoder = load_decoder("avro", {"schema": schema_file('"null"'), "encoding": "single_object"})
    header = b"\xc3\x01" + (0x63DD24E7CC258F8A).to_bytes(8, "little")
    assert decoder.decode(message(header)) is None
    with pytest.raises(DecodeError, match="1 bytes are left"):
        decoder.decode(message(header + b"x"))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (encoded(USER, {"id": 1, "name": "abc"})[:-1], "truncated"),
        (b"", "truncated"),
        (b"\xff" * 40, "does not fit the schema"),
        (b"\x02\x04\xff\xff", "does not fit the schema: UnicodeDecodeError"),
        (b"\x02\x09abc", "truncated"),  # a negative length
        (b"\x02\xfe\xff\xff\xff\xff\xff\xff\x7fabc", "truncated"),  # one beyond any memory
        (encoded(USER, {"id": 1, "name": "abc"}) + b"x", "1 bytes are left"),
    ],
)
def test_avro_rejects_hostile_bytes(payload: bytes, reason: str, schema_file: Any) -> None:
    decoder = load_decoder("avro", {"schema": schema_file(USER)})
    with pytest.raises(DecodeError, match=reason):
        decoder.decode(message(payload))


LIST = {"type": "record", "name": "a.List", "fields": [{"name": "next", "type": ["null", "List"]}]}
EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (LIST, r"contains itself \(a.List\)"),
        ({"type": "map", "values": LIST}, r"contains itself \(a.List\)"),
        ({"type": "array", "items": "null"}, "items take no bytes"),
        ({"type": "array", "items": EMPTY}, "items take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "items take no bytes"),
        (
            {
                "type": "record", "name": "R",
                "fields": [{"name": "e", "type": EMPTY}, {"name": "l", "type": {"type": "array", "items": "Empty"}}],
            },
            "items take no bytes",
        ),
        ({"type": "nonsense"}, "is invalid: UnknownType"),
        ("{", "is not JSON"),
    ],
)  # fmt: skip
def test_avro_rejects_schemas_that_hostile_bytes_could_abuse(schema: Any, reason: str, schema_file: Any) -> None:
    with pytest.raises(HandlerLoadError, match=reason):
        load_decoder("avro", {"schema": schema_file(schema)})


def test_avro_accepts_schemas_that_use_a_name_twice(schema_file: Any) -> None:
    pair = {
        "type": "record", "name": "Pair",
        "fields": [{"name": "a", "type": USER}, {"name": "b", "type": {"type": "array", "items": "User"}}],
    }  # fmt: skip
    value = {"a": {"id": 1, "name": "x"}, "b": [{"id": 2, "name": "y"}] * 3}
    assert load_decoder("avro", {"schema": schema_file(pair)}).decode(message(encoded(pair, value))) == value


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (
            "jsn",
            {},
            "^unknown decoder 'jsn', did you mean 'json'.* There are avro, bytes, json, schema_registry, text.$",
        ),
        ("text", {"encoding": "utf-9"}, "^decoder 'text' refused its options: unknown encoding 'utf-9'.$"),
        ("text", {"encoding": "hex"}, "refused its options"),
        ("text", {"encodin": "x"}, "^decoder 'text' has no option 'encodin', did you mean 'encoding'"),
        ("bytes", {"a": 1}, "decoder 'bytes'"),
        ("json", {"type": "Event"}, "must have the form module:attribute"),
        ("json", {"type": "nowhere_at_all:Event"}, "^type 'nowhere_at_all:Event': no module named"),
        ("avro", {}, "^decoder 'avro' requires the option 'schema'.$"),
        ("avro", {"schema": "/nowhere/x.avsc"}, "the schema /nowhere/x.avsc cannot be read: No such file"),
        ("avro", {"schema": "x", "encoding": "file"}, "encoding must be schemaless or single_object"),
        ("avro", {"schema": "x", "writer_schemas": ["y"]}, "writer_schemas need encoding"),
        (f"{__name__}:USER", {}, "is of type dict: it should be a function of one message"),
        (f"{__name__}:waits", {}, "must be a `def`"),
    ],
)
def test_rejects_wrong_configuration_in_one_sentence(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(HandlerLoadError, match=reason) as caught:
        load_decoder(name, options)
    assert "\n" not in str(caught.value)


async def waits(_: Message) -> None:
    """An async decoder, which would not be awaited."""


@pytest.mark.parametrize(("name", "package"), [("json", "msgspec"), ("avro", "fastavro")])
def test_missing_extra_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HandlerLoadError) as caught:
        load_decoder(name, {"schema": "x"} if name == "avro" else {})
    assert str(caught.value) == f"the decoder '{name}' needs the extra `{name}`: pip install 'consumerd[{name}]'."


def test_plugins_are_functions_classes_and_factories() -> None:
    class Prefixed:
        def __init__(self, prefix: str = "") -> None:
            self._prefix = prefix

        def decode(self, message: Message) -> str:
            return self._prefix + message.payload.decode()

    assert make_decoder(lambda m: len(m.payload)).decode(message(b"abc")) == 3
    assert make_decoder(Prefixed).decode(message(b"a")) == "a"
    assert make_decoder(Prefixed, {"prefix": "p"}).decode(message(b"a")) == "pa"
    assert make_decoder(Prefixed("q")).decode(message(b"a")) == "qa"
    with pytest.raises(HandlerLoadError, match="takes no options"):
        make_decoder(Prefixed("q"), {"prefix": "p"})
