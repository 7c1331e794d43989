"""What holds for each reader of 0.7's bytes, whatever they are; for mangled bytes and for coverage-guided fuzzing."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Final

from consumerd.storage.log.dump import read_entries
from consumerd.wire import CorruptMessageError, FrameError, OversizeMessageError
from consumerd.wire.v07 import (
    BatchEnd,
    DecodeLimits,
    check_produced_set,
    decode_batch,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    decode_request,
    iter_outer,
)
from tests.support.codecs import decode_by_both, installed_native_codec

LIMITS: Final = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)


def exercise_message_set(data: bytes) -> None:
    """Every reader of messages: only declared errors, and the laws of batches. Both codecs agree."""
    decode = decode_batch if installed_native_codec() is None else decode_by_both
    batch = decode(data, 1000, limits=LIMITS)
    ends = [1000, *(message.next_offset for message in batch.messages()), batch.next_offset]
    assert ends == sorted(ends)
    assert [batch.prefix(count) for count in range(len(batch))] == ends[: len(batch)]
    assert 1000 <= batch.next_offset <= 1000 + len(data)
    assert (batch.next_offset == 1000 + len(data)) is (batch.end is BatchEnd.COMPLETE)
    outer = list(iter_outer(data, 1000, limits=LIMITS))
    assert batch.next_offset in {1000, *(message.next_offset for message in outer)}
    assert all((message.problem is None) is message.valid for message in outer)
    with suppress(CorruptMessageError, OversizeMessageError):
        check_produced_set(data, limits=LIMITS)
    entries = list(read_entries(io.BytesIO(data), 1000, limits=LIMITS, window=64))
    assert [1000, *(entry.next_offset for entry in entries)][-1] == 1000 + len(data)


def exercise_frames(data: bytes) -> None:
    """Every reader of requests and responses: only declared errors."""
    for read in (decode_request, decode_fetch_response, decode_offsets_response):
        with suppress(FrameError):
            read(data)
    with suppress(FrameError):
        decode_multifetch_response(data, 3)
