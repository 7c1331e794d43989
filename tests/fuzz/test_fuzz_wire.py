"""Recorded and made-up bytes, mangled for as long as asked: `make test-long SECONDS=600`."""

from __future__ import annotations

import io
import json
import os
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from consumerd.storage.dump import read_entries
from consumerd.wire import CorruptMessageError, FrameError, OversizeMessageError
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    DecodeLimits,
    check_produced_set,
    decode_batch,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    decode_request,
    encode_message_set,
    iter_outer,
)
from tests.fuzz.mangling import mangled
from tests.support.codecs import decode_by_both, installed_native_codec

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)


def exercise(data: bytes) -> None:
    """All readers of hostile bytes: only declared errors, and the laws of batches."""
    decode = decode_batch if installed_native_codec() is None else decode_by_both
    batch = decode(data, 1000, limits=LIMITS)
    ends = [1000, *(message.next_offset for message in batch.messages()), batch.next_offset]
    assert ends == sorted(ends)
    assert [batch.prefix(count) for count in range(len(batch))] == ends[: len(batch)]
    assert 1000 <= batch.next_offset <= 1000 + len(data)
    assert (batch.next_offset == 1000 + len(data)) is (batch.end is BatchEnd.COMPLETE)
    outer = [message.next_offset for message in iter_outer(data, 1000, limits=LIMITS)]
    assert batch.next_offset in {1000, *outer}
    with suppress(CorruptMessageError, OversizeMessageError):
        check_produced_set(data, limits=LIMITS)
    entries = list(read_entries(io.BytesIO(data), 1000, limits=LIMITS, window=64))
    assert [1000, *(entry.next_offset for entry in entries)][-1] == 1000 + len(data)
    for read in (decode_request, decode_fetch_response, decode_offsets_response):
        with suppress(FrameError):
            read(data)
    with suppress(FrameError):
        decode_multifetch_response(data, 3)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_survives_mangled_bytes(golden: Path) -> None:
    samples = [path.read_bytes()[:4000] for path in (golden / "kafka-0.7.2" / "logs").rglob("*.kafka")]
    for case in json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_text())["cases"]:
        samples += [bytes.fromhex(case[key])[4:3000] for key in ("request_hex", "response_hex")]
    samples += [encode_message_set([b"x" * size] * 20, codec=codec) for size in (0, 1, 100) for codec in Codec]
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < end:
        data = mangled(rng, rng.choice(samples), samples)
        try:
            exercise(data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, data {data.hex()}")
            raise
        rounds += 1
    assert rounds > 100
