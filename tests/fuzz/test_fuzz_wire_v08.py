"""Recorded messages of the guide's protocol, mangled: a second every day, as long as asked in `make test-long`."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from consumerd.wire.v08 import APIS
from tests.fuzz.laws_v08 import exercise_request, exercise_response
from tests.fuzz.mangling import mangled

LONG_SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
#: Rounds, however long they take.
LEAST = 200


@pytest.mark.timeout(LONG_SECONDS + 60)
@pytest.mark.parametrize("seconds", [1.0, pytest.param(LONG_SECONDS, marks=pytest.mark.long, id="long")])
def test_survives_mangled_messages(golden: Path, seconds: float) -> None:
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
    while time.monotonic() < end or rounds < LEAST:  # a busy machine has little of a second for us
        key, version, frame = rng.choice(samples)
        if version not in range(APIS[key].versions[0], APIS[key].versions[1] + 1):
            version = 0
        data = mangled(rng, frame, others)
        try:
            read += exercise_request(key, data)
            # Also as a neighbour of the version.
            read += exercise_response(key, rng.choice((version, rng.randint(*APIS[key].versions))), data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, API {key}, version {version}, data {data.hex()}")
            raise
        rounds += 1
    assert read > 10
