"""Readers of archives, fed whole and byte by byte with mangled files for as long as asked: `make test-long SECONDS=60`.

Only declared errors come out, runs and flaws tile every segment, and how reads are cut makes no difference.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import random
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from consumerd.archive.zstd import ZstdDecoder
from consumerd.storage import DamagedArchiveError
from consumerd.storage.archive import Flaw, read_runs
from consumerd.storage.archive_packed import GzipDecoder, UnpackedStream
from consumerd.storage.archive_tar import TarKind, list_members, read_members
from consumerd.wire.v07 import BatchEnd, Codec, DecodeLimits, decode_batch, encode_message_set
from tests.fuzz.mangling import mangled

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)


class Dribble:
    """A stream that gives a byte, or a few, at a time."""

    def __init__(self, data: bytes, most: int = 1) -> None:
        self.file = io.BytesIO(data)
        self.most = most

    def read(self, size: int, /) -> bytes:
        return self.file.read(min(size, self.most))


def told(stream: Any, size: int, *, resync: bool, window: int) -> list[Any]:
    found = list(read_runs(stream, 1000, limits=LIMITS, resync=resync, window=window))
    ends = [1000, *(item.next_offset for item in found)]
    assert [item.offset for item in found] == ends[:-1]
    assert ends[-1] == 1000 + size
    return [part for item in found for part in ([item] if isinstance(item, Flaw) else item.payloads)]


def exercise_segment(data: bytes) -> None:
    batch = decode_batch(data, 1000, limits=LIMITS)
    for resync in (False, True):
        whole = told(io.BytesIO(data), len(data), resync=resync, window=1 << 20)
        assert whole == told(Dribble(data), len(data), resync=resync, window=1 << 20)
        assert whole == told(Dribble(data, 7), len(data), resync=resync, window=50)
        flaws = [number for number, item in enumerate(whole) if isinstance(item, Flaw)]
        assert bool(flaws) is (batch.end is not BatchEnd.COMPLETE)
        assert whole[: flaws[0] if flaws else None] == batch.payloads


def drained(stream: Any) -> bytes:
    return b"".join(iter(lambda: stream.read(1000), b""))


def outcome(read: Any) -> Any:
    try:
        return read()
    except DamagedArchiveError:
        return None


def exercise_tar(data: bytes) -> None:
    def members(stream: Any) -> list[Any]:
        found = []
        for member, inside in read_members(stream):
            kept = drained(inside)
            assert member.kind is TarKind.FILE or not kept
            found.append((member, kept))
        return found

    assert outcome(lambda: members(io.BytesIO(data))) == outcome(lambda: members(Dribble(data, 100)))
    outcome(lambda: list_members(io.BytesIO(data)))


def exercise_packed(data: bytes) -> None:
    for decoder in (GzipDecoder, ZstdDecoder):
        streams = [UnpackedStream(stream, decoder) for stream in (io.BytesIO(data), Dribble(data))]
        whole, cut = [outcome(functools.partial(drained, stream)) for stream in streams]
        assert whole == cut


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
