"""What answers mean."""

from __future__ import annotations

import struct

import pytest

from consumerd.fetch import FetchSettings
from consumerd.fetch.response import Finding, Verdict, judge, judge_records
from consumerd.wire.v07 import Codec, Limits, decode_batch, encode_message, encode_message_set
from consumerd.wire.v08.records import decode_records

MESSAGE = encode_message(b"p" * 90)  # 100 bytes


def judged(data: bytes, asked: int, offset: int = 1000, *, fetch: int = 64, largest: int = 400) -> Verdict:
    batch = decode_batch(data, offset)
    return judge(batch, received=len(data), asked=asked, fetch_bytes=fetch, max_fetch_bytes=largest)


@pytest.mark.parametrize(
    "data",
    [
        MESSAGE,
        MESSAGE + MESSAGE[:50],
        MESSAGE + b"\xff" * 50,  # what follows is judged when it stands first
        encode_message_set([], codec=Codec.GZIP) or encode_message(b"", codec=Codec.NONE),
    ],
)
def test_progress(data: bytes) -> None:
    assert judged(data, 200) == Verdict(Finding.PROGRESS)


def test_nothing() -> None:
    assert judged(b"", 200) == Verdict(Finding.EMPTY)


@pytest.mark.parametrize(
    ("received", "asked", "size"),
    [
        (64, 64, 100),  # exactly what the message needs
        (8, 8, 100),
        (3, 3, 64),  # not even its length: at least an ordinary fetch
        (2, 2, 64),
    ],
)
def test_cut_by_our_size(received: int, asked: int, size: int) -> None:
    assert judged(MESSAGE[:received], asked) == Verdict(Finding.CUT, size=size)


def test_growing_without_a_length_doubles_up_to_the_cap() -> None:
    assert judged(b"\0\0\0", 3, fetch=1).size == 6
    assert judged(b"\0\0\0", 3, fetch=1, largest=5).size == 5


def test_torn_where_the_broker_had_no_more() -> None:
    verdict = judged(MESSAGE[:60], 64)
    assert (verdict.finding, verdict.next_offset) == (Finding.TORN, 1060)
    assert judged(b"\0\0", 64).finding is Finding.TORN


def test_oversize() -> None:
    large = encode_message(b"p" * 991)[:64]
    verdict = judged(large, 64)
    assert (verdict.finding, verdict.next_offset) == (Finding.OVERSIZE, 1000 + 1001)
    assert "1001 bytes" in verdict.reason
    assert judged(large[:40], 64).finding is Finding.OVERSIZE  # whoever is too large need not arrive
    assert judged(b"\0", 1, fetch=1, largest=1) == Verdict(
        Finding.OVERSIZE, reason="a message of unknown size, more than max_fetch_bytes 1"
    )


def test_corrupt() -> None:
    damaged = bytearray(MESSAGE * 2)
    damaged[50] ^= 1
    verdict = judged(bytes(damaged), 400)
    assert (verdict.finding, verdict.next_offset) == (Finding.CORRUPT, 1100)
    assert "1000" in verdict.reason
    verdict = judged(b"\xff" * 64, 64)
    assert (verdict.finding, verdict.next_offset) == (Finding.CORRUPT, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fetch_bytes": 0, "poll_bytes": 0},
        {"fetch_bytes": 10, "poll_bytes": 11},
        {"fetch_bytes": 1 << 31, "max_fetch_bytes": 1 << 31},
        {"max_fetch_bytes": 100},
        {"poll_backoff_min": 0.0},
        {"poll_backoff_max": 0.001},
        {"retry_backoff_min": 3.0},
    ],
)
def test_settings_that_cannot_be_meant(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must satisfy"):
        FetchSettings(**wrong)  # type: ignore[arg-type]


def test_what_a_fetch_may_grow_for_is_not_corrupt() -> None:
    mib = 1 << 20
    settings = FetchSettings(max_fetch_bytes=300 * mib)
    size = 200 * mib
    records = decode_records(struct.pack(">qi", 5, size) + bytes(100), 5, limits=settings.limits)
    verdict = judge_records(records, received=112, asked=112, fetch_bytes=mib, max_fetch_bytes=300 * mib)
    assert verdict == Verdict(Finding.CUT, size=size + 12)
    assert settings.limits.max_decompressed_bytes == 300 * mib
    assert FetchSettings(max_fetch_bytes=mib).limits == Limits()
