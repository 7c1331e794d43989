"""Readers of archives, fed whole and byte by byte with mangled files for as long as asked: `make test-long SECONDS=60`.

Only declared errors come out, runs and flaws tile every segment, and how reads are cut makes no difference.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import time
from pathlib import Path

import pytest
import zstandard

from consumerd.wire.v07 import Codec, encode_message_set
from tests.fuzz.laws_archive import exercise_packed, exercise_segment, exercise_tar
from tests.fuzz.mangling import mangled

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))


def tar_of(samples: list[bytes], form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for number, data in enumerate(samples):
            member = tarfile.TarInfo(f"{'deep/' * (number * 40 % 50)}topic-{number}/00000000000000000000.kafka")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue().rstrip(b"\0") + bytes(1500)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_survives_mangled_archives(golden: Path) -> None:
    segments = [path.read_bytes()[:4000] for path in (golden / "kafka-0.7.2" / "logs").rglob("*.kafka")]
    segments += [encode_message_set([b"x" * size] * 20, codec=codec) for size in (0, 1, 100) for codec in Codec]
    tars = [tar_of(segments[:3], form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    packed = [pack(data) for data in segments[:5] for pack in (gzip.compress, zstandard.compress)]
    kinds = [(segments, exercise_segment), (tars, exercise_tar), (packed, exercise_packed)]
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < end:
        samples, exercise = rng.choice(kinds)
        data = mangled(rng, rng.choice(samples), samples, longest=512, longest_piece=600)
        try:
            exercise(data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, {exercise.__name__}, data {data.hex()}")
            raise
        rounds += 1
    assert rounds > 100
