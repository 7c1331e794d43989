"""Recorded messages of the guide's protocol, mangled: a second every day, as long as asked in `make test-long`."""

from __future__ import annotations

import json
import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from consumerd.wire import FrameError
from consumerd.wire.v08 import (
    APIS,
    MessageLimits,
    UnsupportedVersionError,
    answered_version,
    decode_request,
    decode_response,
    encode_request_message,
    encode_response,
)

if TYPE_CHECKING:
    from pathlib import Path

LONG_SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
LIMITS = MessageLimits(max_elements=10_000)
#: What lengths and counts are replaced by.
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mangled(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """`data` after one to four changes: bits, bytes, cuts, repeats, numbers, and pieces of other samples."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        size = rng.choice((1, 2, 4, 8, 50))
        change = rng.randrange(6)
        if change == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            found[at : at + size] = rng.randbytes(size)
        elif change == 2:
            del found[at : at + size]
        elif change == 3:
            found[at:at] = found[at : at + size]
        elif change == 4:
            width = rng.choice((1, 2, 4))
            found[at : at + width] = (rng.choice(NUMBERS) & ((1 << 8 * width) - 1)).to_bytes(width)
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:at] = other[start : start + rng.randrange(200)]
    return bytes(found)


def exercise(rng: random.Random, key: int, version: int, data: bytes) -> int:
    """Read `data` as request and as response, also as a neighbour of the version; how often that went well."""
    api = APIS[key]
    done = 0
    try:
        request = decode_request(api, data, limits=LIMITS)
        assert decode_request(api, encode_request_message(api, request)[4:], limits=LIMITS) == request
        done += 1
    except (FrameError, UnsupportedVersionError):
        pass
    version = answered_version(api, rng.choice((version, rng.randint(*api.versions))), data)
    try:
        response = decode_response(api, version, data, limits=LIMITS)
        assert decode_response(api, version, encode_response(api, version, response)[4:], limits=LIMITS) == response
        done += 1
    except FrameError:
        pass
    return done


@pytest.mark.timeout(LONG_SECONDS + 60)
@pytest.mark.parametrize("seconds", [1.0, pytest.param(LONG_SECONDS, marks=pytest.mark.long, id="long")])
def test_mangled_messages(golden: Path, seconds: float) -> None:
    samples = []
    for path in sorted((golden / "kafka-0.8-0.10").glob("*.json")):
        for capture in json.loads(path.read_text()):
            if capture["api_key"] in APIS:
                for name in ("request_hex", "response_hex"):
                    if capture[name]:
                        frame = bytes.fromhex(capture[name])[4:3000]
                        samples.append((capture["api_key"], capture["api_version"], frame))
    others = [frame for _, _, frame in samples]
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    rounds = read = 0
    while time.monotonic() < end:
        key, version, frame = rng.choice(samples)
        if version not in range(APIS[key].versions[0], APIS[key].versions[1] + 1):
            version = 0
        data = mangled(rng, frame, others)
        try:
            read += exercise(rng, key, version, data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, API {key}, version {version}, data {data.hex()}")
            raise
        rounds += 1
    assert rounds > 100
    assert read > 10
