"""Recorded and made-up bytes, mangled for as long as asked: `make test-long SECONDS=600`."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from consumerd.wire.v07 import Codec, encode_message_set
from tests.fuzz.laws_v07 import exercise_frames, exercise_message_set
from tests.fuzz.mangling import mangled

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))


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
            exercise_message_set(data)
            exercise_frames(data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, data {data.hex()}")
            raise
        rounds += 1
    assert rounds > 100
