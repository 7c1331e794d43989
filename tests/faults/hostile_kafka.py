"""A broker of the 0.8+ protocol that can lie: honest by itself, and spoiled on request.

Strategy: one class answers every request that a client, a producer or a member of a group sends, of one topic in
memory. Spoilers work on what it would have answered: some break the frame, so that no client can take it for an answer;
others keep it decodable and change what it says. All chance is a seeded generator's.
"""

from __future__ import annotations

import asyncio
import copy
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from consumerd.wire.errors import EncodeError
from consumerd.wire.v08 import apis
from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.headers import ResponseHeader
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.records import decode_records, encode_record_batch
from consumerd.wire.v08.schema import Api

if TYPE_CHECKING:
    from random import Random

TOPIC, PARTITIONS = "events", 2
#: The one version of each API that it serves.
VERSIONS: dict[Api[Any, Any], int] = {
    apis.PRODUCE: 3, apis.FETCH: 4, apis.LIST_OFFSETS: 1, apis.METADATA: 1, apis.OFFSET_COMMIT: 2, apis.OFFSET_FETCH: 1,
    apis.FIND_COORDINATOR: 0, apis.JOIN_GROUP: 1, apis.HEARTBEAT: 0, apis.LEAVE_GROUP: 0, apis.SYNC_GROUP: 0,
    apis.SASL_HANDSHAKE: 1, apis.SASL_AUTHENTICATE: 0, apis.INIT_PRODUCER_ID: 0, apis.API_VERSIONS: 0,
}  # fmt: skip
#: Responses that every client has to reject.
BROKEN = ("noise", "cut", "correlation", "longer", "shorter", "negative", "huge", "endless", "hang up", "silence")
#: Responses that may decode, with arbitrary values.
LYING = ("flip", "counts", "field", "twice")
#: Responses that say less than they should: a code that no document has, or something is missing.
LACKING = ("code", "empty", "missing")
#: Codes with which a broker says only that it failed.
UNEXPLAINED = (-1, -2, 500, 999, 32767)
_BIG = 0x7FFFFFFF


class HostileKafka:
    """Listens on loopback. `spoil(api)` names a spoiler for an answer, or None."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.spoil: Callable[[Api[Any, Any]], str | None] = lambda _: None
        self.port = 0
        self.log: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.committed: dict[int, int] = {}
        #: The number of uses of each spoiler.
        self.spoiled = 0
        self._generation = 0
        self._assignment = b""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # -- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                if not await self._answer(await reader.readexactly(size), writer):
                    return
        except (OSError, EOFError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        key = struct.unpack_from(">h", frame)[0]
        api = APIS[key]
        if struct.unpack_from(">h", frame, 2)[0] != VERSIONS.get(api):
            return False
        header, body = decode_request(api, frame)
        answer = await self._fetch(body) if api is apis.FETCH else self._answers[key](self, body)
        spoiler = self.spoil(api)
        if spoiler == "field":
            answer = self._changed(api, answer)
        elif spoiler in LACKING:
            answer, spoiler = self._lacking(spoiler, copy.deepcopy(answer)), None
        data = encode_response(api, VERSIONS[api], ResponseMessage(ResponseHeader(header.correlation_id), answer))
        if spoiler is None:
            writer.write(data)
            return True
        self.spoiled += 1
        return await self._spoiled(spoiler, data, writer)

    async def _spoiled(self, spoiler: str, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Write the answer as a spoiler changes it; returns whether the connection stays open."""
        match spoiler:
            case "cut":
                writer.write(data[: self._rng.randrange(len(data))])
                return False
            case "negative":
                writer.write(struct.pack(">i", -self._rng.randint(1, _BIG)) + data[4:])
            case "huge":
                writer.write(struct.pack(">i", _BIG) + data[4:])
            case "endless":
                writer.write(struct.pack(">i", 60_000) + data[4:])
                while True:
                    await asyncio.sleep(0.02)  # one byte at a time, as long as the client reads
                    writer.write(b"x")
                    await writer.drain()
            case "silence":
                await asyncio.sleep(3600)
            case "hang up":
                return False
            case "twice":
                writer.write(data + data)
            case _:
                body = self._body(spoiler, bytearray(data[4:])) if spoiler != "field" else data[4:]
                writer.write(len(body).to_bytes(4) + body)
        return True

    def _body(self, spoiler: str, body: bytearray) -> bytearray:
        """The inside of a frame as a spoiler changes it."""
        rng = self._rng
        match spoiler:
            case "noise":
                body = bytearray(b"\xff\xff\xff\xff") + rng.randbytes(rng.randint(0, 200))  # no correlation id of ours
            case "correlation":
                body[:4] = (int.from_bytes(body[:4]) + rng.randint(1, 1000)).to_bytes(4)
            case "longer":
                body += rng.randbytes(rng.randint(1, 50))
            case "shorter":
                del body[max(4, len(body) - rng.randint(1, 8)) :]
            case "flip":
                for _ in range(rng.randint(1, 4)):
                    body[rng.randrange(4, len(body))] ^= 1 << rng.randrange(8)
            case "counts":
                at = rng.randrange(4, max(5, len(body) - 3))
                body[at : at + 4] = struct.pack(">i", rng.choice([-1, -2, 1000, _BIG, -_BIG - 1]))
        return body

    def _lacking(self, spoiler: str, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with another error code somewhere, with an empty list, or without an item of a list."""
        if spoiler == "code":
            wanted = [container for container, key in _places(answer) if key == "error_code"]
        else:
            wanted = [inner for container, key in _places(answer) if (inner := container[key]) and type(inner) is list]
        if not wanted:
            return answer
        self.spoiled += 1
        chosen = self._rng.choice(wanted)
        if spoiler == "code":
            chosen["error_code"] = self._rng.choice(UNEXPLAINED)
        elif spoiler == "empty":
            chosen.clear()
        else:
            del chosen[self._rng.randrange(len(chosen))]
        return answer

    def _changed(self, api: Api[Any, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with other values in some of its fields; still one that can be encoded."""
        for _ in range(20):
            lie = copy.deepcopy(answer)
            for _ in range(self._rng.randint(1, 3)):
                places = list(_places(lie))
                container, key = self._rng.choice(places)
                container[key] = self._other(container[key])
            try:
                encode_response(api, VERSIONS[api], ResponseMessage(ResponseHeader(0), lie))
            except EncodeError:
                continue
            return lie
        return answer

    def _other(self, value: Any) -> Any:
        rng = self._rng
        match value:
            case bool():
                return not value
            case int():
                return rng.choice([-1, 0, 1, 2, 7, 35, 1000, 32767, -32768, _BIG, -_BIG - 1, 2**63 - 1, -(2**63)])
            case str():
                return rng.choice(["", "x", "\0", "other", "ß" * 300, "127.0.0.1", value + value])
            case bytes() | bytearray():
                return rng.choice([b"", b"\0", rng.randbytes(30), value[: len(value) // 2], value + value])
            case list():
                return rng.choice([[], value + value, value[1:]])
            case _:
                return None

    # -- honest answers

    def _api_versions(self, body: dict[str, Any]) -> dict[str, Any]:
        served = [{"api_key": api.key, "min_version": at, "max_version": at} for api, at in VERSIONS.items()]
        return {"error_code": 0, "api_keys": served}

    def _metadata(self, body: dict[str, Any]) -> dict[str, Any]:
        partitions = [
            {"error_code": 0, "partition_index": number, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
            for number in range(PARTITIONS)
        ]
        topics = [{"error_code": 0, "name": TOPIC, "is_internal": False, "partitions": partitions}]
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
            "controller_id": 1,
            "topics": topics if body["topics"] is None or {"name": TOPIC} in body["topics"] else [],
        }

    def _coordinator(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": 0, "node_id": 1, "host": "127.0.0.1", "port": self.port}

    def _join(self, body: dict[str, Any]) -> dict[str, Any]:
        self._generation += 1
        first = body["protocols"][0]
        return {
            "error_code": 0,
            "generation_id": self._generation,
            "protocol_name": first["name"],
            "leader": "member",
            "member_id": "member",
            "members": [{"member_id": "member", "metadata": first["metadata"]}],
        }

    def _sync(self, body: dict[str, Any]) -> dict[str, Any]:
        for each in body["assignments"]:
            self._assignment = each["assignment"]
        return {"error_code": 0, "assignment": self._assignment}

    def _fine(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": 0}

    def _offset_fetch(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = [
            {
                "name": topic["name"],
                "partitions": [{"partition_index": number} for number in topic["partition_indexes"]],
            }
            for topic in body["topics"]
        ]
        return self._for_each(asked, lambda part: {
            "committed_offset": self.committed.get(part["partition_index"], -1), "metadata": None, "error_code": 0
        })  # fmt: skip

    def _offset_commit(self, body: dict[str, Any]) -> dict[str, Any]:
        def commit(part: dict[str, Any]) -> dict[str, Any]:
            self.committed[part["partition_index"]] = part["committed_offset"]
            return {"error_code": 0}

        return self._for_each(body["topics"], commit)

    def _offsets(self, body: dict[str, Any]) -> dict[str, Any]:
        def at(part: dict[str, Any]) -> dict[str, Any]:
            return {"error_code": 0, "offset": 0 if part["timestamp"] == -2 else len(self.log[part["partition_index"]])}

        return self._for_each(body["topics"], at)

    async def _fetch(self, body: dict[str, Any]) -> dict[str, Any]:
        def read(part: dict[str, Any]) -> dict[str, Any]:
            log, offset = self.log.get(part["partition"], []), part["fetch_offset"]
            if not 0 <= offset <= len(log):
                return {"error_code": 1, "high_watermark": -1, "records": b""}
            some = log[offset : offset + 10]
            data = encode_record_batch(some, base_offset=offset, timestamps=1000) if some else b""
            return {"error_code": 0, "high_watermark": len(log), "records": data}

        answer = self._fetched(body, read)
        if not any(part["records"] for topic in answer["responses"] for part in topic["partitions"]):
            await asyncio.sleep(min(body["max_wait_ms"] / 1000, 0.05))
        return answer

    def _produce(self, body: dict[str, Any]) -> dict[str, Any]:
        def append(part: dict[str, Any]) -> dict[str, Any]:
            log = self.log[part["index"]]
            base = len(log)
            log += [payload or b"" for payload in decode_records(bytes(part["records"]), 0).payloads]
            return {"error_code": 0, "base_offset": base}

        return self._produced(body, append)

    @staticmethod
    def _produced(body: dict[str, Any], append: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return {
            "responses": [
                {
                    "name": topic["name"],
                    "partition_responses": [
                        {"index": part["index"], **append(part)} for part in topic["partition_data"]
                    ],
                }
                for topic in body["topic_data"]
            ]
        }

    def _handshake(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": 0, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]}

    def _token(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": 0, "error_message": None, "auth_bytes": self._rng.randbytes(self._rng.randrange(60))}

    def _producer_id(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": 0, "producer_id": 7, "producer_epoch": 0}

    @staticmethod
    def _for_each(topics: list[dict[str, Any]], make: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {"partition_index": part["partition_index"], **make(part)} for part in topic["partitions"]
                    ],
                }
                for topic in topics
            ]
        }

    @staticmethod
    def _fetched(body: dict[str, Any], read: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return {
            "responses": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        {"partition_index": part["partition"], **read(part)} for part in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }

    _answers: ClassVar = {
        apis.API_VERSIONS.key: _api_versions, apis.METADATA.key: _metadata, apis.FIND_COORDINATOR.key: _coordinator,
        apis.JOIN_GROUP.key: _join, apis.SYNC_GROUP.key: _sync, apis.HEARTBEAT.key: _fine, apis.LEAVE_GROUP.key: _fine,
        apis.OFFSET_FETCH.key: _offset_fetch, apis.OFFSET_COMMIT.key: _offset_commit, apis.LIST_OFFSETS.key: _offsets,
        apis.PRODUCE.key: _produce, apis.SASL_HANDSHAKE.key: _handshake, apis.SASL_AUTHENTICATE.key: _token,
        apis.INIT_PRODUCER_ID.key: _producer_id,
    }  # fmt: skip


def _places(value: Any) -> Any:
    """Every (container, key) in a tree of dicts and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value, at
            yield from _places(inner)
