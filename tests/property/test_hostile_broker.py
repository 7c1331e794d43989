"""Whatever a broker sends, and however it is cut: declared errors, answers in order, and never the wrong one."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from consumerd.net.connection import BrokerConnection, ConnectionSettings
from consumerd.net.errors import ConnectionClosedError


class Transport(asyncio.Transport):
    """Takes everything, and remembers whether it was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.dropped = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.dropped = True

    def close(self) -> None:
        self.dropped = True


def frames(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


STREAMS = st.one_of(
    st.binary(max_size=200),
    st.lists(st.binary(min_size=2, max_size=40), max_size=8).map(lambda bodies: frames(*bodies)),
    st.tuples(st.lists(st.binary(min_size=2, max_size=40), max_size=4), st.binary(max_size=40)).map(
        lambda both: frames(*both[0]) + both[1]
    ),
)


@given(
    stream=STREAMS,
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    requests=st.integers(0, 6),
    cancelled=st.sets(st.integers(0, 5)),
    ending=st.sampled_from(["open", "eof", "reset", "close"]),
)
def test_returns_responses_or_declared_errors(
    stream: bytes, cuts: list[int], requests: int, cancelled: set[int], ending: str
) -> None:
    async def main() -> None:
        connection = BrokerConnection("h", 1, ConnectionSettings(max_frame_bytes=64))
        transport = Transport()
        connection.connection_made(transport)
        tasks = [asyncio.create_task(connection.request(b"%d" % number)) for number in range(requests)]
        await asyncio.sleep(0)
        assert transport.written == [b"%d" % number for number in range(requests)]
        for number in cancelled & set(range(requests)):
            tasks[number].cancel()
        await asyncio.sleep(0)
        feed(connection, transport, stream, cuts)
        if ending == "eof":
            connection.eof_received()
        elif ending == "close":
            connection.abort()
        if transport.dropped or ending == "reset":
            connection.connection_lost(ConnectionResetError() if ending == "reset" else None)
        for _ in range(3):
            await asyncio.sleep(0)

        answers = whole_frames(stream)
        for number, task in enumerate(tasks):
            if number in cancelled:
                assert task.cancelled()
            else:
                check(task, answers[number] if number < len(answers) else None, connection)
        assert connection.closed == transport.dropped or ending == "reset"
        if requests == 0 and len(stream) >= 4:
            assert connection.closed
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def feed(connection: BrokerConnection, transport: Transport, stream: bytes, cuts: list[int]) -> None:
    """Deliver received bytes to a connection as an event loop does."""
    position = turn = 0
    while position < len(stream) and not transport.dropped:
        room = connection.get_buffer(-1)
        piece = stream[position : position + cuts[turn % len(cuts)]]
        room[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        position += len(piece)
        turn += 1


def check(task: asyncio.Task[bytes], answer: bytes | None, connection: BrokerConnection) -> None:
    """The right answer, or a declared error from a closed connection, or still waiting on an open one."""
    if not task.done():
        assert not connection.closed
        assert answer is None
        task.cancel()
        return
    error = task.exception()
    if error is None:
        assert task.result() == answer
    else:
        assert isinstance(error, ConnectionClosedError)
        assert "h:1" in str(error)
        assert connection.closed


def whole_frames(stream: bytes) -> list[bytes]:
    """The whole frames at the front of the stream that may be delivered, by the plainest of readers."""
    answers = []
    while len(stream) >= 4:
        size = int.from_bytes(stream[:4], "big", signed=True)
        if not 2 <= size <= 64 or len(stream) < 4 + size:
            break
        answers.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return answers
