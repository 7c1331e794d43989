import struct

import pytest

from consumerd.storage.log import archive_resync
from consumerd.storage.log.archive_resync import BoundarySearch
from consumerd.wire.v07 import encode_message

HELLO = encode_message(b"hello")
BAD = HELLO[:-1] + b"!"
NONSENSE = bytes(50)


def test_finds_messages_of_the_largest_size() -> None:
    for size, found in ((100, 7), (101, None)):
        data = b"\xff" * 7 + encode_message(b"x" * size) * 2
        assert BoundarySearch(100).find(data, 0, len(data), at_end=True) == found


def test_finds_a_message_whose_length_has_four_bytes() -> None:
    data = b"\xff" * 7 + encode_message(bytes(1 << 24)) + HELLO
    assert BoundarySearch(1 << 24).find(data, 0, len(data), at_end=True) == 7


def test_finds_only_chains_that_begin_between_the_bounds() -> None:
    data = b"\xff" * 15 + HELLO * 3
    search = BoundarySearch(1000)
    assert search.find(data, 0, 15, at_end=True) is None
    assert search.find(data, 0, 16, at_end=True) == 15
    assert search.find(data, 15, 16, at_end=True) == 15
    assert search.find(data, 16, len(data), at_end=True) == 30


@pytest.mark.parametrize(
    ("data", "at_end", "found"),
    [
        (BAD + HELLO * 2, False, 15),
        (HELLO + BAD, False, None),
        (HELLO + NONSENSE, True, None),
        (HELLO, True, 0),
        (HELLO, False, None),
        (HELLO + HELLO[:7], True, 0),
        (HELLO + HELLO[:7], False, None),
    ],
)
def test_chain_is_two_intact_messages_or_the_last_one(data: bytes, at_end: bool, found: int | None) -> None:
    assert BoundarySearch(1000).find(data, 0, len(data), at_end=at_end) == found


def test_checks_16_bytes_for_each_byte_searched_of_which_a_place_costs_2_kibibytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_resync, "FREE_WORK", 0)
    most = 16 * 1000 - 2048
    for size, found in ((most, 0), (most + 1, None)):
        data = encode_message(b"x" * (size - 6)) + HELLO
        assert BoundarySearch(1 << 20).find(data, 0, 1000, at_end=True) == found


def test_checks_64_mebibytes_in_all_searches_of_a_segment() -> None:
    search = BoundarySearch(1 << 20)
    data = encode_message(bytes(1 << 20)) + HELLO
    found = [search.find(data, 0, 1, at_end=True) for _ in range(65)]
    assert found == [0] * 63 + [None] * 2


def beyond_the_end(length: int) -> bytes:
    """Claim to begin a message that ends a byte after `length` bytes."""
    return struct.pack(">iB", length - 3, 1)


@pytest.mark.parametrize(
    ("data", "places", "checked"),
    [
        (HELLO * 2, 1, 11),
        (b"\xff" * 100 + HELLO * 2, 1, 11),
        (beyond_the_end(100) + b"\xff" * 65 + HELLO * 2, 2, 11),
        (BAD + HELLO * 2, 3, 22),  # a length could begin at its second byte, too
    ],
    ids=["chain", "after nonsense", "after a length beyond the end", "after a bad message"],
)
def test_ends_where_no_work_is_left_for_the_next_check(
    monkeypatch: pytest.MonkeyPatch, data: bytes, places: int, checked: int
) -> None:
    monkeypatch.setattr(archive_resync, "WORK_PER_BYTE", 0)
    monkeypatch.setattr(archive_resync, "WORK_PER_PLACE", 100)
    for missing, found in ((0, len(data) - 2 * len(HELLO)), (1, None)):
        monkeypatch.setattr(archive_resync, "FREE_WORK", 100 * places + checked - missing)
        assert BoundarySearch(1000).find(data, 0, len(data), at_end=True) == found


def test_second_message_of_a_chain_and_the_way_to_the_end_are_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_resync, "WORK_PER_BYTE", 0)
    monkeypatch.setattr(archive_resync, "WORK_PER_PLACE", 100)
    data = HELLO * 3
    for missing, found in ((0, 0), (1, None)):
        monkeypatch.setattr(archive_resync, "FREE_WORK", (100 + 11 + 11) + len(data) + (100 + 11) - missing)
        search = BoundarySearch(1000)
        assert search.find(data, 0, len(data), at_end=True) == 0
        assert search.reaches_end(data, 0)
        assert search.find(data, 0, len(data), at_end=True) == found


def test_work_is_allowed_for_the_bytes_that_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_resync, "FREE_WORK", 0)
    data = b"\xff" * 1000 + HELLO * 2
    assert BoundarySearch(1000).find(data, 0, len(data), at_end=True) == 1000
    assert BoundarySearch(1000).find(data, 1000, len(data), at_end=True) is None


def test_looks_only_where_a_magic_could_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_resync, "FREE_WORK", 0)
    data = b"\5" * 1000 + HELLO * 2
    assert BoundarySearch(1 << 27).find(data, 0, len(data), at_end=True) == 1000


@pytest.mark.parametrize(
    ("data", "followed"),
    [
        (b"", True),
        (HELLO + NONSENSE, True),
        (BAD, True),
        (BAD + HELLO + NONSENSE, True),
        (BAD + NONSENSE, False),
        (BAD * 15 + NONSENSE, False),
        (BAD * 16 + NONSENSE, True),
        (BAD[:4] + b"\2" + BAD[5:] + HELLO, False),
        (bytes.fromhex("00000005 01 00 3610a6") + HELLO, False),
        (bytes.fromhex("00000006 01 00 00000001") + HELLO, True),
    ],
)
def test_follows_lengths_to_an_intact_message_or_16_bad_ones(data: bytes, followed: bool) -> None:
    assert BoundarySearch(1000).is_followed(data, 0) is followed


def test_chain_of_empty_messages_is_not_believed() -> None:
    empty = encode_message(b"")
    for data, found in ((empty + HELLO, 0), (HELLO + empty, 0), (empty * 2, None), (HELLO + BAD, None)):
        assert BoundarySearch(1000).find(data, 0, 1, at_end=True) == found
