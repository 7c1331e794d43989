"""Whatever bytes a server sends, a connection to it ends with a reason, and no call is left waiting."""

from __future__ import annotations

import asyncio
import struct

from hypothesis import given
from hypothesis import strategies as st

from consumerd.net.zk.errors import BadReply
from consumerd.net.zk.multi import first_failure
from tests.fuzz.laws_zookeeper import exercise_handshake, exercise_replies

headers = st.builds(
    lambda xid, zxid, code, body: struct.pack("!iqi", xid, zxid, code) + body,
    st.integers(-5, 8),
    st.integers(-1, 3),
    st.sampled_from([0, 0, 0, -101, -4, -9999]),
    st.binary(max_size=120),
)
frames = st.builds(
    lambda body, lie: struct.pack("!i", len(body) + lie) + body, headers, st.sampled_from([0, 0, 0, 1, -3])
)
streams = st.one_of(st.binary(max_size=300), st.lists(frames, max_size=12).map(b"".join))


@given(streams, st.integers(0, 300))
def test_any_replies_end_the_connection_or_are_read(data: bytes, cut: int) -> None:
    asyncio.run(exercise_replies(data, cut))


@given(streams, st.integers(0, 300))
def test_any_handshakes_raise_declared_errors(data: bytes, cut: int) -> None:
    asyncio.run(exercise_handshake(data, cut))


@given(st.binary(max_size=200))
def test_any_multi_replies_raise_declared_errors(payload: bytes) -> None:
    try:
        failure = first_failure(payload)
    except BadReply:
        return
    assert failure is None or failure[1] != 0
