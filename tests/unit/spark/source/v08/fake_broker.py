"""A server that speaks the protocol of 0.8 and later, and answers what a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from consumerd.wire.v08 import RequestHeader, ResponseHeader, ResponseMessage, decode_request, encode_response, read_api
from consumerd.wire.v08.apis import API_VERSIONS, APIS, FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH

#: (version, body) -> the answer's body, raw bytes, or None to close the connection.
Answer = Callable[[int, dict[str, Any]], dict[str, Any] | bytes | None]


class V08Broker:
    """One topic `events` of one partition, from `first` to `last`; `fetches` are answered one by one.

    A fetch's answer is (error, high watermark, record data) or anything that `answers` may give; the last one stays.
    `ids`: the topic's id in each answer to METADATA, of which the last one stays; without any there are no ids.
    `epochs`: leader epochs with their first offsets, in order; None: a broker that has none (before 0.11).
    """

    def __init__(
        self, *fetches: Any, first: int = 0, last: int = 100, version: int = 11, ids: tuple[bytes, ...] = ()
    ) -> None:
        self.first = first
        self.last = last
        self.epochs: list[tuple[int, int]] | None = None
        self.epochs_version = 3
        #: The end of the log where it is beyond `last`, as of a new leader.
        self.written: int | None = None
        self.leader: V08Broker = self
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[int, Answer] = {
            API_VERSIONS.key: self._versions,
            METADATA.key: self._metadata,
            LIST_OFFSETS.key: self._offsets,
            FETCH.key: self._fetch,
            OFFSET_FOR_LEADER_EPOCH.key: self._epoch_end,
        }
        self._version = version
        self._ids = list(ids)
        self._fetches = list(fetches)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def offsets_of_fetches(self) -> list[int]:
        return [
            body["topics"][0]["partitions"][0]["fetch_offset"] for name, body in self.asked if name == FETCH.name
        ]  # fmt: skip

    def __enter__(self) -> V08Broker:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(thread := threading.Thread(target=self._serve, args=(connection,)))
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while size := int.from_bytes(connection.recv(4, socket.MSG_WAITALL)):
                data = connection.recv(size, socket.MSG_WAITALL)
                api = APIS[read_api(data)[0]]
                request = decode_request(api, data)
                self.asked.append((api.name, request.body))
                answer = self.answers[api.key](request.header.api_version, request.body)
                if answer is None:
                    return
                connection.sendall(answer if isinstance(answer, bytes) else _frame(request.header, answer))

    def _versions(self, version: int, _: dict[str, Any]) -> dict[str, Any]:
        served = {
            API_VERSIONS.key: 3,
            METADATA.key: 10 if self._ids else 9,
            LIST_OFFSETS.key: 5,
            FETCH.key: self._version,
        }
        if self.epochs is not None:
            served[OFFSET_FOR_LEADER_EPOCH.key] = self.epochs_version
        keys = [{"api_key": key, "min_version": 0, "max_version": last} for key, last in served.items()]
        return {"error_code": 0, "api_keys": keys}

    def _metadata(self, version: int, _: dict[str, Any]) -> dict[str, Any]:
        host, port = self.leader.address
        partition = {"error_code": 0, "partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
        if self.epochs and self.epochs_version > 1:
            partition["leader_epoch"] = self.epochs[-1][0]
        topic: dict[str, Any] = {"error_code": 0, "name": "events", "partitions": [partition]}
        if self._ids:
            topic["topic_id"] = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        return {"brokers": [{"node_id": 1, "host": host, "port": port}], "topics": [topic]}

    def _offsets(self, version: int, body: dict[str, Any]) -> dict[str, Any]:
        when = body["topics"][0]["partitions"][0]["timestamp"]
        found = {"partition_index": 0, "error_code": 0, "offset": {-2: self.first, -1: self.last}.get(when, -1)}
        return {"topics": [{"name": "events", "partitions": [found]}]}

    def _epoch_end(self, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """As Kafka's leaders answer: the largest epoch up to the one asked for, and where the next one begins."""
        asked = body["topics"][0]["partitions"][0]
        wanted, epochs = asked["leader_epoch"], self.epochs or []
        known = [epoch for epoch, _ in epochs if epoch <= wanted]
        later = [start for epoch, start in epochs if epoch > wanted]
        if not epochs or wanted > epochs[-1][0]:
            epoch, end = -1, -1
        else:
            epoch, end = (known[-1] if known else wanted), (later[0] if later else self.written or self.last)
        part = {"error_code": 0, "partition": 0, "end_offset": end}
        if version > 0:
            part["leader_epoch"] = epoch
        if asked.get("current_leader_epoch", -1) not in (-1, epochs[-1][0] if epochs else -1):
            part |= {"error_code": 74, "end_offset": -1}  # FENCED_LEADER_EPOCH
        return {"topics": [{"topic": "events", "partitions": [part]}]}

    def _fetch(self, version: int, body: dict[str, Any]) -> dict[str, Any] | bytes | None:
        answer = self._fetches.pop(0) if len(self._fetches) > 1 else self._fetches[0]
        if not isinstance(answer, tuple):
            return answer(version, body) if callable(answer) else answer  # type: ignore[no-any-return]
        error, reach, data = answer
        part = {"partition_index": 0, "error_code": error, "high_watermark": reach, "records": data}
        topic = {"topic": "events", "topic_id": body["topics"][0].get("topic_id"), "partitions": [part]}
        return {"responses": [topic]}


def _frame(header: RequestHeader, body: dict[str, Any]) -> bytes:
    api = APIS[header.api_key]
    return encode_response(api, header.api_version, ResponseMessage(ResponseHeader(header.correlation_id), body))
