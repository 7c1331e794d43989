"""Frames out of a byte stream, however it is cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.net.framing import KEPT_BYTES, RESTING_BYTES, SLACK_BYTES, FrameReceiver


class RefusedError(Exception):
    pass


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(receiver: FrameReceiver, data: bytes, cuts: list[int]) -> None:
    """Write `data` as a loop would, at most `cuts[i]` bytes per read."""
    position = 0
    turn = 0
    while position < len(data):
        room = receiver.free()
        assert len(room) > 0
        count = min(len(room), cuts[turn % len(cuts)], len(data) - position)
        room[:count] = data[position : position + count]
        receiver.received(count)
        position += count
        turn += 1


@given(
    bodies=st.lists(st.binary(min_size=2, max_size=300), max_size=20),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=10),
)
def test_reassembles_frames_from_any_chunks(bodies: list[bytes], cuts: list[int]) -> None:
    got: list[bytes] = []
    sizes: list[int] = []
    receiver = FrameReceiver(sizes.append, lambda body: got.append(bytes(body)))
    feed(receiver, b"".join(map(frame, bodies)), cuts)
    assert got == bodies
    assert sizes == [len(body) for body in bodies]
    assert receiver._filled == 0


def test_reassembles_frames_larger_than_buffer() -> None:
    got: list[bytes] = []
    receiver = FrameReceiver(lambda size: None, lambda body: got.append(bytes(body)))
    bodies = [bytes([i]) * (RESTING_BYTES * 3 + i) for i in range(1, 4)]
    feed(receiver, b"".join(map(frame, bodies)), [50_000, 1, 7])
    assert got == bodies


def test_allocates_only_as_bytes_arrive() -> None:
    receiver = FrameReceiver(lambda size: None, lambda body: None)
    feed(receiver, struct.pack(">i", 2**31 - 1) + b"x" * 1000, [100])
    assert len(receiver._buffer) == RESTING_BYTES
    feed(receiver, b"x" * RESTING_BYTES, [RESTING_BYTES])
    assert len(receiver._buffer) <= 2 * RESTING_BYTES


def test_shrinks_buffer_after_large_frame() -> None:
    receiver = FrameReceiver(lambda size: None, lambda body: None)
    feed(receiver, frame(b"g" * (KEPT_BYTES + 1)), [1 << 20])
    assert len(receiver._buffer) == RESTING_BYTES


def test_reuses_buffer_between_ordinary_frames() -> None:
    receiver = FrameReceiver(lambda size: None, lambda body: None)
    feed(receiver, frame(b"g" * (1 << 20)), [1 << 18])
    kept = len(receiver._buffer)
    feed(receiver, frame(b"g" * (1 << 20)) * 5, [1 << 18])
    assert len(receiver._buffer) == kept <= (1 << 20) + 4 + SLACK_BYTES


def test_rejects_frame_size_before_reading_body() -> None:
    def admit(size: int) -> None:
        raise RefusedError(size)

    receiver = FrameReceiver(admit, lambda body: None)
    with pytest.raises(RefusedError, match="-7"):
        feed(receiver, struct.pack(">i", -7), [4])
