"""Messages of a schema registry in `refine`: each by its writer's schema, and none given up for a registry."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from consumerd.base.errors import ExitCode
from consumerd.net.schemas.registry import RegistryUnavailableError
from consumerd.service.config.validation import table_of
from consumerd.spark.lake.decode import MessageDecoder, MessageFormat
from consumerd.spark.lake.refine import RefineTarget
from consumerd.spark.lake.refine_step import refine
from consumerd.spark.lake.registered import open_schemas
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.spec_model import RefineSpec
from tests.support.schema_registry import SchemaRegistryServer
from tests.unit.spark.lake.test_land import InlinePool
from tests.unit.spark.lake.test_refine_step import SCHEMA, land, rows

USER: dict[str, Any] = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
RAW: dict[str, Any] = {"name": "r", "type": "bytes"}
NAMED: dict[str, Any] = USER | {"fields": [*USER["fields"], {"name": "name", "type": ["null", "string"]}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    open_schemas.cache_clear()
    with SchemaRegistryServer() as server:
        yield server


def spec(registry: SchemaRegistryServer, fields: dict[str, Any], **others: Any) -> RefineSpec:
    given = {"parse": "schema_registry", "registry_url": registry.url, "fields": fields, **others}
    return table_of(RefineSpec, given)


def framed(schema: int | str, value: bytes) -> bytes:
    return b"\x00" + int(schema).to_bytes(4) + value


def avro(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema, {}), value)
    return data.getvalue()


def decoded(of: RefineSpec, *messages: bytes | None, **columns: pa.Array) -> tuple[list[Any], list[str]]:
    found = MessageDecoder(of).decode(pa.record_batch({"value": pa.array(messages, pa.binary()), **columns}))
    return found.columns.to_pylist(), found.reasons.to_pylist()


def user_proto() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(
        name="u.proto", package="p", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    user, inner = file.message_type.add(name="User"), file.message_type.add(name="Inner")
    user.field.add(name="id", number=1, label=1, type=3)
    user.field.add(name="name", number=2, label=1, type=9, proto3_optional=True, oneof_index=0)
    user.oneof_decl.add(name="_name")
    user.field.add(name="at", number=3, label=1, type=11, type_name=".google.protobuf.Timestamp")
    user.field.add(name="more", number=4, label=3, type=11, type_name=".p.Inner")
    user.field.add(name="raw", number=5, label=1, type=12)
    inner.field.add(name="n", number=1, label=1, type=3)
    return bytes(file.SerializeToString())


def test_each_message_is_read_with_the_schema_that_it_was_written_with(registry: SchemaRegistryServer) -> None:
    first, second = registry.add(USER), registry.add(NAMED)
    proto = registry.add(user_proto(), kind="PROTOBUF")
    document = registry.add({"type": "object"}, kind="JSON")
    of = spec(registry, {"id": "bigint not null", "who": {"type": "string", "from": "name"}})
    for _ in range(2):  # two tasks
        values, reasons = decoded(
            of,
            framed(document, b'{"id": "4", "name": "json"}'),
            framed(first, avro(USER, {"id": 1})),
            framed(second, avro(NAMED, {"id": 2, "name": "two"})),
            framed(proto, b"\x00"),  # nothing but defaults
            framed(document, b'{"name": "x"}'),
            None,
            framed(proto, b"\x00\x08\x05\x12\x01p"),
        )
        assert values == [
            {"id": 4, "who": "json"}, {"id": 1, "who": None}, {"id": 2, "who": "two"}, {"id": 0, "who": None},
            {"id": 5, "who": "p"},
        ]  # fmt: skip
        assert reasons == ["id is missing", "the message has no value"]
    paths = [f"/schemas/ids/{key}" for key in (document, first, second, proto)]
    assert registry.requests == [*paths, f"/schemas/ids/{proto}?format=serialized"]


def test_values_of_avro_fit_the_types_of_columns(registry: SchemaRegistryServer) -> None:
    kinds = {
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "cost": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "key": {"type": "string", "logicalType": "uuid"},
        "raw": RAW["type"],
        "ms": "long",
        "tags": {"type": "map", "values": "long"},
        "inner": {"type": "record", "name": "I", "fields": [{"name": "n", "type": "double"}, RAW]},
        "text": {"type": "array", "items": "int"},
        "kind": {"type": "enum", "name": "K", "symbols": ["A", "B"]},
    }  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    at, key = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), UUID(int=7)
    value = {
        "at": at, "day": date(2026, 1, 2), "cost": Decimal("12.30"), "key": key, "raw": b"\xff\x00", "ms": 1500,
        "tags": {"a": 1}, "inner": {"n": 1.5, "r": b"\xfe"}, "text": [1, 2], "kind": "B",
    }  # fmt: skip
    of = spec(
        registry,
        {
            "at": "timestamp", "day": "date", "cost": "decimal(6,2)", "key": "string", "raw": "binary",
            "ms": "timestamp_ms", "tags": "map<string,bigint>", "inner": "struct<n:double,r:binary>", "text": "string",
            "kind": "string",
        },
    )  # fmt: skip
    values, reasons = decoded(of, framed(registry.add(schema), avro(schema, value)))
    assert reasons == []
    assert values == [
        value | {"key": str(key), "ms": datetime(1970, 1, 1, 0, 0, 1, 500000, UTC), "tags": [("a", 1)], "text": "[1,2]"}
    ]


def test_nested_values_of_protobuf_fit_the_types_of_columns(registry: SchemaRegistryServer) -> None:
    key = registry.add(user_proto(), kind="PROTOBUF")
    at = timestamp_pb2.Timestamp(seconds=5).SerializeToString()
    message = b"\x1a" + bytes([len(at)]) + at + b"\x22\x02\x08\x07\x22\x00" + b"\x2a\x01\xff"
    of = spec(registry, {"at": "timestamp", "more": "array<struct<n:bigint>>", "raw": "binary"})
    values, reasons = decoded(of, framed(key, b"\x00" + message), framed(key, b"\x00"))
    assert reasons == []
    assert decoded(spec(registry, {"id": "int"}), framed(key, b"\x00\x08\x05")) == ([{"id": 5}], [])
    assert values == [
        {"at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "more": [{"n": 7}, {"n": 0}], "raw": b"\xff"},
        {"at": None, "more": [], "raw": b""},
    ]


def test_avro_is_resolved_to_the_schema_of_the_reader(registry: SchemaRegistryServer, tmp_path: Path) -> None:
    newer = {**USER, "fields": [*USER["fields"], {"name": "name", "type": "string", "default": "?"}]}
    (tmp_path / "newer.avsc").write_text(json.dumps(newer))
    of = spec(registry, {"id": "bigint", "name": "string"}, avro_schema=str(tmp_path / "newer.avsc"))
    assert decoded(of, framed(registry.add(USER), avro(USER, {"id": 1}))) == ([{"id": 1, "name": "?"}], [])


def test_a_header_may_name_the_schema(registry: SchemaRegistryServer) -> None:
    guid = UUID(int=9)
    registry.add(USER, key=str(guid))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    named = [{"key": "__value_schema_id", "value": b"\x01" + guid.bytes}]
    found = decoded(spec(registry, {"id": "int"}), avro(USER, {"id": 6}), b"", headers=pa.array([named, None], kind))
    assert found == ([{"id": 6}], ["the message does not begin with the id of a schema"])


def test_the_reason_names_the_schema(registry: SchemaRegistryServer) -> None:
    key = registry.add(USER)
    invalid = registry.add({"type": "record"})
    number = registry.add("long")
    other = registry.add({}, kind="XML")
    values, reasons = decoded(
        spec(registry, {"id": "tinyint"}),
        b"{}", framed(99, b""), framed(99, b"x"), framed(key, b""), framed(key, avro(USER, {"id": 128})),
        framed(invalid, b""), framed(number, b"\x02"), framed(other, b""),
    )  # fmt: skip
    assert values == []
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "the message does not begin with the id of a schema", "unknown schema 99", "unknown schema 99",
        "the message does not fit schema 1", "id is not a tinyint", "schema 2 cannot be used",
        "schema 3 is not that of a record", "schema 4 cannot be used",
    ]  # fmt: skip
    assert registry.requests.count("/schemas/ids/99") == 1


def test_a_registry_that_does_not_answer_gives_up_no_message(
    registry: SchemaRegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.spark.lake.refine_step.WorkerPool", InlinePool)
    pipeline = PipelineSpec("p", str(tmp_path), {}, refine=spec(registry, {"id": "bigint"}))
    land(pipeline, framed(registry.add(USER), avro(USER, {"id": 1})), framed(50, b""), batch=0)
    for answer in ((503, b""), (401, b""), (200, b"<html>")):
        registry.script.append(answer)
        with pytest.raises(
            RegistryUnavailableError, match="no message was given up for it: run the step again"
        ) as away:
            refine(pipeline)
        assert away.value.exit_code is ExitCode.BROKER
    result = refine(pipeline)
    assert (result.rows_silver, list(result.reasons)) == (
        1,
        [f"unknown schema 50: the registry {registry.url} does not have it"],
    )
    assert rows(pipeline.silver, "offset", "id") == [(0, 1)]
    assert rows(pipeline.quarantine, "offset") == [(1,)]


def test_tasks_read_secrets_from_files(registry: SchemaRegistryServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    of = spec(registry, {"id": "int"}, registry_user="me", registry_password_file=str(tmp_path / "secret"))
    sent = pickle.dumps(RefineTarget.of(MessageFormat.of(of), SCHEMA, ("a", "b"), "UTC"))
    assert b"hunter2" not in sent
    found = MessageDecoder(pickle.loads(sent).messages).decode(
        pa.record_batch({"value": [framed(registry.add(USER), b"\x02")]})
    )
    assert found.columns.to_pylist() == [{"id": 1}]
    assert registry.headers[-1]["Authorization"] == "Basic bWU6aHVudGVyMg=="
