"""The decoder `schema_registry` with Apicurio, a registry that nobody here wrote, by its API that is like Confluent's.

Payloads are those of Confluent's serializers for Python (2.16.1), and what these register: Protobuf in its binary form.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import pytest
from google.protobuf import descriptor_pb2

from consumerd.base.clock import SystemClock
from consumerd.base.java import MissingRuntimeError, find_java
from consumerd.base.partition import TopicPartition
from consumerd.demo.children import Child
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment
from consumerd.handlers import DecodeError, KeyedMessage
from consumerd.handlers.decoding.api import Decoder, NotReadyError, load_decoder
from tests.support.maven import fetch_jars
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(600)]

SERVER: Final = "io.apicurio:apicurio-registry-app:3.3.3:all:tar.gz"
#: Java's number for the classes of this release.
JAVA: Final = 21


class Apicurio:
    """A running server. `url`: that of the API."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self._client = client

    async def serves(self) -> bool:
        try:
            async with self._client.get(f"{self.url}/subjects") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def register(self, subject: str, kind: str, schema: str, *needs: tuple[str, str]) -> int:
        """Register a schema, which refers to the first version of others as (name, subject); returns its id."""
        references = [{"name": name, "subject": of, "version": 1} for name, of in needs]
        document = {"schemaType": kind, "schema": schema, "references": references}
        async with self._client.post(f"{self.url}/subjects/{subject}/versions", json=document) as answer:
            assert answer.status == 200, await answer.text()
            return int((await answer.json())["id"])


@pytest.fixture
async def apicurio(tmp_path: Path, missing: Callable[[str], NoReturn]) -> AsyncIterator[Apicurio]:
    try:
        java = find_java(minimum=JAVA)
        (archive,) = await asyncio.to_thread(fetch_jars, [SERVER])
    except MissingRuntimeError as error:
        missing(str(error))
    with tarfile.open(archive) as opened:
        await asyncio.to_thread(opened.extractall, tmp_path / "server", filter="data")
    port, management = free_port(), free_port()
    settings = {"http.host": "127.0.0.1", "http.port": port}
    settings |= {"management.host": "127.0.0.1", "management.port": management}
    command = [str(java.executable), "-Xmx512m", *(f"-Dquarkus.{key}={value}" for key, value in settings.items())]
    command += ["-jar", str(tmp_path / "server" / "quarkus-run.jar")]
    child = Child(command, log=tmp_path / "server.log", env=clean_environment(), name="Apicurio")
    async with child, aiohttp.ClientSession() as client:
        server = Apicurio(f"http://127.0.0.1:{port}/apis/ccompat/v7", client)

        async def serves() -> bool:
            assert child.running, child.tail()
            return await server.serves()

        await until(serves)
        yield server


async def decoded(decoder: Decoder, schema: int, value: str) -> Any:
    """The value that a decoder makes of hexadecimal text behind the frame of a schema."""
    payload = b"\0" + schema.to_bytes(4) + bytes.fromhex(value)
    message: Any = KeyedMessage(TopicPartition.numbered("t", 0), 0, 0, 1, payload, None, -1, -1, ())
    async with asyncio.timeout(30):
        while True:
            try:
                return decoder.decode(message)
            except NotReadyError as wanted:
                await wanted.load(SystemClock())


def record(name: str, *fields: tuple[str, Any]) -> str:
    described = [{"name": field, "type": kind} for field, kind in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": described})


def binary(name: str, types: dict[str, dict[str, str]], needs: Sequence[str] = ()) -> str:
    """A file of Protobuf in its binary form. `types`: of messages, the fields, int64 or another message type."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=needs)
    for message, fields in types.items():
        made = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), 1):
            of: dict[str, Any] = {"type": 3} if kind == "int64" else {"type": 11, "type_name": kind}
            made.field.add(name=field, number=number, label=1, **of)
    return base64.b64encode(file.SerializeToString()).decode()


async def test_decodes_what_confluents_serializers_write(apicurio: Apicurio) -> None:
    decoder = load_decoder("schema_registry", {"url": apicurio.url})
    user = await apicurio.register("users-value", "AVRO", record("User", ("id", "long"), ("tag", ["null", "string"])))
    await apicurio.register("address", "AVRO", record("Address", ("city", "string")))
    person = record("Person", ("id", "int"), ("home", "shop.Address"))
    person_id = await apicurio.register("persons-value", "AVRO", person, ("shop.Address", "address"))
    checked = await apicurio.register("json-value", "JSON", '{"$schema": "http://json-schema.org/draft-07/schema#"}')
    await apicurio.register("other.proto", "PROTOBUF", binary("other.proto", {"Money": {"units": "int64"}}))
    order = binary("order.proto", {"Unused": {}, "Order": {"id": "int64", "price": ".shop.Money"}}, ["other.proto"])
    order_id = await apicurio.register("orders-value", "PROTOBUF", order, ("other.proto", "other.proto"))

    assert await decoded(decoder, user, "0a 02 02 78") == {"id": 5, "tag": "x"}
    assert await decoded(decoder, person_id, "02 08 4265726e") == {"id": 1, "home": {"city": "Bern"}}
    assert await decoded(decoder, checked, b'{"id": 1}'.hex()) == {"id": 1}
    assert await decoded(decoder, order_id, "02 02 08 05 12 02 08 07") == {"id": "5", "price": {"units": "7"}}
    with pytest.raises(DecodeError, match="unknown schema 4711: the registry"):
        await decoded(decoder, 4711, "00")
