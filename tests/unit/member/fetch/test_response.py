"""The interpretation of fetch responses."""

from __future__ import annotations

import gzip
import struct

import pytest

from consumerd.member.fetch.response import FetchDecision, FetchOutcome, classify
from consumerd.member.fetch.settings import FetchSettings
from consumerd.wire.v07 import Codec, DecodeLimits, decode_batch, encode_message, encode_message_set
from consumerd.wire.v08.records import decode_records

pytestmark = pytest.mark.usefixtures("either_codec")

MESSAGE = encode_message(b"p" * 90)  # 100 bytes


def classified(data: bytes, asked: int, offset: int = 1000, *, fetch: int = 64, largest: int = 400) -> FetchDecision:
    batch = decode_batch(data, offset)
    return classify(batch, received=len(data), asked=asked, size=fetch, max_size=largest)


@pytest.mark.parametrize(
    "data",
    [
        MESSAGE,
        MESSAGE + MESSAGE[:50],
        MESSAGE + b"\xff" * 50,  # what follows is classified when it stands first
        encode_message_set([], codec=Codec.GZIP) or encode_message(b"", codec=Codec.NONE),
    ],
)
def test_classifies_messages_as_progress(data: bytes) -> None:
    assert classified(data, 200) == FetchDecision(FetchOutcome.PROGRESS)


def test_classifies_empty_response() -> None:
    assert classified(b"", 200) == FetchDecision(FetchOutcome.EMPTY)


@pytest.mark.parametrize(
    ("received", "asked", "size"),
    [
        (64, 64, 100),  # exactly what the message needs
        (8, 8, 100),
        (3, 3, 64),  # not even its length: at least an ordinary fetch
        (2, 2, 64),
    ],
)
def test_grows_fetch_for_cut_message(received: int, asked: int, size: int) -> None:
    assert classified(MESSAGE[:received], asked) == FetchDecision(FetchOutcome.CUT, size=size)


def test_doubles_fetch_of_unknown_length_up_to_limit() -> None:
    assert classified(b"\0\0\0", 3, fetch=1).size == 6
    assert classified(b"\0\0\0", 3, fetch=1, largest=5).size == 5


def test_classifies_short_response_as_torn() -> None:
    decision = classified(MESSAGE[:60], 64)
    assert (decision.outcome, decision.next_offset) == (FetchOutcome.TORN, 1060)
    assert classified(b"\0\0", 64).outcome is FetchOutcome.TORN


def test_oversize() -> None:
    large = encode_message(b"p" * 991)[:64]
    decision = classified(large, 64)
    assert (decision.outcome, decision.next_offset) == (FetchOutcome.OVERSIZE, 1000 + 1001)
    assert "1001 bytes" in decision.reason
    assert classified(large[:40], 64).outcome is FetchOutcome.OVERSIZE  # found before all of it arrives
    assert classified(b"\0", 1, fetch=1, largest=1) == FetchDecision(
        FetchOutcome.OVERSIZE, reason="a message of unknown size, more than max_size 1"
    )


def test_corrupt() -> None:
    damaged = bytearray(MESSAGE * 2)
    damaged[50] ^= 1
    decision = classified(bytes(damaged), 400)
    assert (decision.outcome, decision.next_offset) == (FetchOutcome.CORRUPT, 1100)
    assert "1000" in decision.reason
    decision = classified(b"\xff" * 64, 64)
    assert (decision.outcome, decision.next_offset) == (FetchOutcome.CORRUPT, None)


def numbered(needed: int, received: int, *, asked: int, largest: int = 400) -> FetchDecision:
    """The decision for the beginning of a batch of 0.11 or later of `needed` bytes, at offset 5."""
    records = decode_records(struct.pack(">qi", 5, needed - 12) + bytes(received - 12), 5)
    return classify(records, received=received, asked=asked, size=64, max_size=largest)


def test_empty_messages_that_move_the_position_are_progress() -> None:
    assert classified(encode_message(gzip.compress(b""), codec=Codec.GZIP), 200).outcome is FetchOutcome.PROGRESS


def test_message_as_large_as_the_largest_fetch_is_fetched() -> None:
    assert classified(MESSAGE[:64], 64, largest=100) == FetchDecision(FetchOutcome.CUT, size=100)
    assert classified(MESSAGE[:64], 64, largest=99).outcome is FetchOutcome.OVERSIZE


def test_batch_that_is_cut_off_by_the_limit_of_the_response_is_not_torn() -> None:
    assert numbered(100, 60, asked=64) == FetchDecision(FetchOutcome.CUT, size=100)
    # The broker sent less than was asked for: more of it has to be asked for, whatever the batch needs.
    assert numbered(100, 60, asked=200) == FetchDecision(FetchOutcome.CUT, size=201)


def test_the_next_number_follows_an_oversize_batch() -> None:
    assert numbered(401, 60, asked=64) == FetchDecision(
        FetchOutcome.OVERSIZE, 401, 6, "a message or batch of 401 bytes, more than max_size 400"
    )


def test_message_below_largest_fetch_is_not_corrupt() -> None:
    mib = 1 << 20
    settings = FetchSettings(max_size=300 * mib)
    size = 200 * mib
    records = decode_records(struct.pack(">qi", 5, size) + bytes(100), 5, limits=settings.limits)
    decision = classify(records, received=112, asked=112, size=mib, max_size=300 * mib)
    assert decision == FetchDecision(FetchOutcome.CUT, size=size + 12)
    assert settings.limits.max_decompressed_bytes == 300 * mib
    assert FetchSettings(max_size=mib).limits == DecodeLimits()
