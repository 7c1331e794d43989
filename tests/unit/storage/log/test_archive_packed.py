from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable

import pytest

from consumerd.storage import DamagedArchiveError
from consumerd.storage.log import archive_packed as packed
from consumerd.storage.log.archive_items import ByteStream
from consumerd.storage.log.archive_packed import UnpackedStream, gzip_decoder
from tests.fuzz.laws_archive import Dribble

PLAIN = random.Random(1).randbytes(300_000) + b"a" * 300_000


def drained(stream: UnpackedStream, size: int = 1 << 16) -> bytes:
    pieces = []
    while piece := stream.read(size):
        assert len(piece) <= size
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("size", [1000, 1 << 22])
def test_reads_what_was_compressed(size: int) -> None:
    assert drained(UnpackedStream(io.BytesIO(gzip.compress(PLAIN))), size) == PLAIN


def test_reads_concatenated_padded_and_empty_members() -> None:
    data = gzip.compress(b"one") + gzip.compress(b"") + bytes(700_000) + gzip.compress(b"two") + bytes(3)
    assert drained(UnpackedStream(io.BytesIO(data))) == b"onetwo"
    assert drained(UnpackedStream(Dribble(data[:60]))) == b"one"
    assert drained(UnpackedStream(io.BytesIO(gzip.compress(b"")))) == b""


def test_reads_from_a_stream_of_single_bytes() -> None:
    assert drained(UnpackedStream(Dribble(gzip.compress(PLAIN[-300_100:])))) == PLAIN[-300_100:]


@pytest.mark.parametrize("cut", [0, 1, 5, 10, 1000, -1, -5, -8])
def test_truncated_file_yields_its_content_then_raises(cut: int) -> None:
    stream = UnpackedStream(io.BytesIO(gzip.compress(PLAIN)[:cut]))
    pieces: list[bytes] = []
    with pytest.raises(DamagedArchiveError, match=r"truncated|no gzip data"):
        pieces.extend(iter(lambda: stream.read(1000), b""))
    assert PLAIN.startswith(b"".join(pieces))
    assert stream.read(1000) == b""


@pytest.mark.parametrize("position", [0, 1, 2, -1, -6])
def test_raises_for_damaged_data(position: int) -> None:
    data = bytearray(gzip.compress(PLAIN))
    data[position] ^= 1
    with pytest.raises(DamagedArchiveError):
        drained(UnpackedStream(io.BytesIO(data)))


@pytest.mark.parametrize("stream", [io.BytesIO, Dribble])
@pytest.mark.parametrize(
    ("junk", "sentence"),
    [(b"junk of some length", "damaged"), (b"?", "truncated"), (bytes(3) + b"\x1f", "truncated")],
)
def test_rejects_junk_after_the_last_member(junk: bytes, sentence: str, stream: Callable[[bytes], ByteStream]) -> None:
    with pytest.raises(DamagedArchiveError, match=sentence):
        drained(UnpackedStream(stream(gzip.compress(b"one") + junk)))


def test_stops_a_decompression_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "FREE_EXPANSION", 3 << 20)
    bomb = gzip.compress(bytes(8 << 20))
    with pytest.raises(DamagedArchiveError, match="more than 10 times its size"):
        drained(UnpackedStream(io.BytesIO(bomb), expansion=10))
    assert len(drained(UnpackedStream(io.BytesIO(bomb), expansion=2000))) == 8 << 20
    assert len(drained(UnpackedStream(io.BytesIO(gzip.compress(bytes(3 << 20))), expansion=10))) == 3 << 20


@pytest.mark.parametrize(("size", "allowed"), [(10_000, True), (10_001, False)])
def test_content_may_have_as_many_bytes_as_are_allowed(
    monkeypatch: pytest.MonkeyPatch, size: int, allowed: bool
) -> None:
    monkeypatch.setattr(packed, "FREE_EXPANSION", 0)
    stream = UnpackedStream(io.BytesIO(gzip.compress(bytes(size)).ljust(1000, b"\0")), expansion=10)
    if allowed:
        assert drained(stream) == bytes(size)
    else:
        with pytest.raises(DamagedArchiveError, match="more than 10 times its size"):
            drained(stream)


def test_unpacks_few_mebibytes_at_once() -> None:
    stream = UnpackedStream(io.BytesIO(gzip.compress(bytes(16 << 20), 1)))
    assert 0 < len(stream.read(16 << 20)) <= 4 << 20


def test_decoder_returns_at_most_the_length_asked_for() -> None:
    decoder = gzip_decoder()
    piece = decoder.decompress(gzip.compress(bytes(1 << 20)), 1000)
    assert piece == bytes(1000)
    assert not decoder.eof
    assert decoder.unconsumed_tail
