"""Message sets and record batches, mangled; half of them get right CRCs again, so that what is behind these is reached.

Where the native codec is built, it has to agree with the pure one. `make test-long SECONDS=600` runs for that
time.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from consumerd.wire.v08.records import (
    BatchEnd,
    RecordCodec,
    encode_message_set,
    encode_record_batch,
)
from tests.fuzz.laws_v08 import LIMITS, START, exercise_records
from tests.fuzz.mangling import mangled
from tests.fuzz.mending import signed_records
from tests.support.codecs import decode_records_by_both, installed_native_codec

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))


def samples() -> list[bytes]:
    """Of each format and codec, with and without keys, in sizes whose numbers take one, two and more bytes."""
    found = []
    for codec in RecordCodec:
        for size in (0, 50, 62, 100, 9000):
            values = [b"v" * size, None, *(b"%d" % number * (size // 2) for number in range(20))][
                : 100_000 // (size + 1)
            ]
            keys = [b"k" * (number % 70) or None for number in range(len(values))]
            times = [1_700_000_000_000 + number * size for number in range(len(values))]
            headers = {0: (("name", b"value"), ("ä", None))}
            for given in (None, keys):
                plain: dict[str, Any] = {"codec": codec, "keys": given, "timestamps": times, "base_offset": START}
                marked = {**plain, "headers": headers, "transactional": True, "log_append_time": 5}
                found += [encode_record_batch(values, **options) for options in (plain, marked)]
                if codec is not RecordCodec.ZSTD:
                    found += [encode_message_set(values, magic=magic, **plain) for magic in (0, 1)]
    return found


def run(rng: random.Random, rounds: int, until: float) -> dict[BatchEnd, int]:
    made = samples()
    squeezed = [bytes(data[61:]) for data in made if data[16] == 2 and data[22] & 7 > 2]
    ends = dict.fromkeys(BatchEnd, 0)
    compared = installed_native_codec() is not None
    for number in range(rounds):
        if time.monotonic() > until:
            break
        data = mangled(rng, rng.choice(made if number % 5 else squeezed), made)
        if number % 2:
            data = signed_records(data)
        try:
            ends[exercise_records(data)] += 1
            if compared and number % 20 < 2:
                decode_records_by_both(data, START, limits=LIMITS, aborted=[(-1, START)])
        except BaseException as error:
            error.add_note(f"round {number}, data {data[:2000].hex()}")
            raise
    return ends


def test_survives_mangled_records() -> None:
    ends = run(random.Random(8), 3000, time.monotonic() + 60)
    assert all(ends.values())
    # Mangled, and yet read: the CRCs are right again.
    assert ends[BatchEnd.COMPLETE] > 20


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_survives_mangled_records_in_long_runs() -> None:
    seed = random.SystemRandom().getrandbits(32)
    try:
        ends = run(random.Random(seed), 1 << 60, time.monotonic() + SECONDS)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    assert sum(ends.values()) > 100
