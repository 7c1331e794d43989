"""The blocking client against servers with scripted answers."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.spark.source.errors import BrokerReadError, OffsetUnavailableError
from consumerd.spark.source.v07.client import BrokerClient
from consumerd.testing.brokers import LoopbackBroker
from consumerd.wire.v07 import EARLIEST, LATEST, ErrorCode, FetchRequest, FetchResponse, OffsetsRequest, OffsetsResponse
from consumerd.wire.v07 import decode_request as decode

Answer = Callable[[socket.socket], object]


class Scripted:
    """A server for one connection, which gives one answer per request; `requests` are those that came."""

    def __init__(self, answers: list[bytes | Answer]) -> None:
        self.requests: list[Any] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            for answer in self._answers:
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
                self.requests.append(decode(connection.recv(size, socket.MSG_WAITALL)))
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def talking(*answers: bytes | Answer, timeout: float = 20.0) -> Iterator[tuple[Scripted, BrokerClient]]:
    with Scripted(list(answers)) as server, BrokerClient("127.0.0.1", server.port, timeout) as client:
        yield server, client


def test_sends_requests_and_parses_responses() -> None:
    answers = [FetchResponse(ErrorCode.NONE, b"data").encode(), OffsetsResponse(ErrorCode.NONE, (9, 7, 0)).encode()]
    with talking(*answers) as (server, client):
        assert client.fetch("events", 3, 77, 100) == b"data"
        assert client.offsets("events", 3, LATEST, 5) == (9, 7, 0)
    assert server.requests == [FetchRequest("events", 3, 77, 100), OffsetsRequest("events", 3, LATEST, 5)]


def test_keeps_the_connection_after_offset_out_of_range() -> None:
    gone = FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"").encode()
    with talking(gone, FetchResponse(ErrorCode.NONE, b"").encode()) as (_, client):
        with pytest.raises(OffsetUnavailableError, match="does not have events/3 from 77") as caught:
            client.fetch("events", 3, 77, 100)
        assert client.fetch("events", 3, 77, 100) == b""
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), OffsetUnavailableError)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (struct.pack(">i", 103), "announced a response of 103 bytes .* expected 2 to 102 bytes"),
        (struct.pack(">i", 0x7FFFFFFF), "announced a response of 2147483647 bytes"),
        (struct.pack(">i", -1), "announced a response of -1 bytes"),
        (struct.pack(">i", 1), "announced a response of 1 bytes"),
        (
            FetchResponse(ErrorCode.WRONG_PARTITION, b"").encode(),
            "rejected a fetch of events/3 from 77: WRONG_PARTITION",
        ),
        (struct.pack(">ih", 2, 1234), "rejected a fetch of events/3 from 77: UNKNOWN"),
        (b"", "closed the connection before it responded .* end of stream after 0 of 4 bytes"),
        (struct.pack(">ih", 50, 0) + b"half", "end of stream after 6 of 50 bytes"),
    ],
)
def test_rejects_hostile_fetch_responses(answer: bytes, sentence: str) -> None:
    with talking(answer) as (server, client), pytest.raises(BrokerReadError, match=sentence) as caught:
        client.fetch("events", 3, 77, 100)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    with pytest.raises(BrokerReadError):  # closed: what comes next could be the rest of that answer
        client.fetch("events", 3, 77, 100)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (struct.pack(">ihi", 6, 0, 3), "sent an invalid response to an offsets request .* claims 3 offsets"),
        (struct.pack(">ihi", 6, 0, -1), "claims -1 offsets"),
        (OffsetsResponse(ErrorCode.NONE, tuple(range(6))).encode(), "announced a response of 54 bytes"),
        (OffsetsResponse(ErrorCode.NONE, (5, -7)).encode(), "negative offsets"),
        (OffsetsResponse(ErrorCode.WRONG_PARTITION, ()).encode(), "rejected an offsets request for"),
        (b"", "end of stream after 0 of 4 bytes"),
    ],
)
def test_rejects_hostile_offsets_responses(answer: bytes, sentence: str) -> None:
    with talking(answer) as (_, client), pytest.raises(BrokerReadError, match=sentence):
        client.offsets("events", 3, EARLIEST, 5)


FRAMES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda body, lie: struct.pack(">i", len(body) + lie) + body, st.binary(max_size=40), st.integers(-1, 1)),
    st.builds(lambda offsets: OffsetsResponse(ErrorCode.NONE, tuple(offsets)).encode(), st.lists(st.integers(-3, 3))),
)


@settings(deadline=None)
@given(answer=FRAMES, fetch=st.booleans())
def test_any_response_gives_a_result_or_a_declared_error(answer: bytes, fetch: bool) -> None:
    with talking(answer) as (_, client), contextlib.suppress(BrokerReadError):
        if fetch:
            assert len(client.fetch("events", 3, 77, 20)) <= 20
        else:
            assert all(offset >= 0 for offset in client.offsets("events", 3, EARLIEST, 2))


def test_silent_and_slow_brokers_time_out_alike() -> None:
    let_go = threading.Event()

    def silent(_: socket.socket) -> None:
        let_go.wait(20)

    def trickle(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">ih", 60, 0))
        with_a_client = True
        while with_a_client and not let_go.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                with_a_client = False

    for answer in (silent, trickle):
        let_go.clear()
        with talking(answer, timeout=0.3) as (_, client):
            begun = time.monotonic()
            with pytest.raises(BrokerReadError, match=r"did not respond to .* events/3 from 0 within 0\.3 s"):
                client.fetch("events", 3, 0, 100)
            assert time.monotonic() - begun < 10
            let_go.set()


def test_reports_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerReadError, match=f"cannot connect to broker 127.0.0.1:{port}: Connection refused"):
        BrokerClient("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no such host", 9092), ("127.0.0.1", 70000), ("a" * 300, 9092)])
def test_reports_invalid_addresses(host: str, port: int) -> None:
    with pytest.raises(BrokerReadError, match="cannot connect to broker"):
        BrokerClient(host, port, timeout=5)


def test_rejects_a_topic_that_cannot_be_encoded() -> None:
    with talking() as (_, client), pytest.raises(BrokerReadError, match="cannot be sent"):
        client.fetch("x" * 40_000, 0, 0, 100)


def test_reads_from_a_broker(consumerd_broker: LoopbackBroker) -> None:
    end = consumerd_broker.produce("events", [b"one", b"two"], partition=1)
    with BrokerClient(consumerd_broker.host, consumerd_broker.port) as client:
        assert client.offsets("events", 1, LATEST, 1) == (end,)
        assert client.offsets("events", 1, EARLIEST, 1) == (0,)
        data = client.fetch("events", 1, 0, 1 << 20)
        assert len(data) == end
        assert client.fetch("events", 1, 3, 5) == data[3:8]
        assert client.fetch("nothing", 0, 0, 100) == b""
        with pytest.raises(OffsetUnavailableError):
            client.fetch("events", 1, end + 1, 100)
