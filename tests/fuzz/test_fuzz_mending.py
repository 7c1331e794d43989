"""Mended changes get behind checksums and compression: often enough that a fuzzer finds what is there."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from contextlib import suppress

import pytest

from consumerd.storage import DamagedArchiveError
from consumerd.storage.log.archive_tar import list_members
from consumerd.wire import WireError
from consumerd.wire.v08.records import RecordCodec, decode_records, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.codecs import compress, decompress
from tests.fuzz.mangling import mangled
from tests.fuzz.mending import changed_records
from tests.fuzz.mending_packed import CHANGED, behind, changed_packed, changed_tar

PLAIN = b"one two three one two three " * 9
ROUNDS = 200


def change_with(rng: random.Random) -> Callable[[bytes], bytes]:
    return lambda data: mangled(rng, data, [data])


@pytest.mark.parametrize("codec", [RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4, RecordCodec.ZSTD])
def test_changed_data_is_often_intact_and_seldom_the_same(codec: RecordCodec) -> None:
    rng = random.Random(codec)
    mutate, packed = CHANGED[codec.name.lower()], compress(codec, PLAIN, 2)
    contents = set()
    for _ in range(ROUNDS):
        changed = mutate(packed, change_with(rng), rng)
        with suppress(WireError):
            contents.add(decompress(codec, changed, 2, limit=1 << 16))
    assert len(contents - {PLAIN}) > ROUNDS / 5


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.LZ4])
def test_changed_records_seldom_end_at_a_crc(codec: RecordCodec, magic: int) -> None:
    rng = random.Random(magic)
    if magic == 2:
        data = encode_record_batch([b"one", b"two", b"three"], codec=codec)
    else:
        data = encode_message_set([b"one", b"two", b"three"], magic=magic, codec=codec)
    found = [decode_records(changed_records(data, change_with(rng), rng), 0) for _ in range(ROUNDS)]
    outcomes = {(tuple(each), each.problem, each.end) for each in found}
    assert len(outcomes) > ROUNDS / 10
    assert sum("CRC" in (each.problem or "") for each in found) < ROUNDS / 3


def test_changed_headers_of_a_tar_have_right_checksums() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("events-0/\u00e4", "other-1/b"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    rng, data = random.Random(1), file.getvalue()[:3072]
    found, errors = set(), set()
    for _ in range(ROUNDS):
        try:
            found.add(tuple(list_members(io.BytesIO(changed_tar(data, change_with(rng), rng)))))
        except DamagedArchiveError as error:
            errors.add(str(error))
    assert len(found) > ROUNDS / 20
    assert len(errors) > 3


def test_bytes_that_choose_how_to_read_stay_before_the_data() -> None:
    rng = random.Random(2)
    packed = b"\7" + compress(RecordCodec.GZIP, PLAIN, 2)
    changed = [behind(1, changed_packed)(packed, change_with(rng), rng) for _ in range(ROUNDS)]
    assert sum(data[1:3] == b"\x1f\x8b" for data in changed) > ROUNDS / 2
    assert len({data[:1] for data in changed}) > 5
