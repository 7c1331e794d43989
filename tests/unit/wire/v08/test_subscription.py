from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v08.subscription import (
    LATEST_VERSION,
    MemberAssignment,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
)

NAMES = st.text(max_size=5)
PARTITIONS = st.lists(st.tuples(NAMES, st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple)), max_size=3)
USER_DATA = st.none() | st.binary(max_size=8)

#: Version 3: topics "a" and "b", user data "u", owned partition a/2, generation 5, rack "r".
METADATA_3 = bytes.fromhex(
    "0003" "00000002" "000161" "000162" "00000001" "75" "00000001" "000161" "00000001" "00000002" "00000005" "000172"
)  # fmt: skip


def test_decodes_the_latest_metadata() -> None:
    found = MemberMetadata(("a", "b"), b"u", (("a", (2,)),), 5, "r", 3)
    assert found.encode() == METADATA_3
    assert decode_metadata(METADATA_3) == found


def test_decodes_recorded_members() -> None:
    metadata = bytes.fromhex("000000000001000477632e61000000027564")
    assert decode_metadata(metadata) == MemberMetadata(("wc.a",), b"ud")
    assert MemberMetadata(("wc.a",), b"ud").encode() == metadata
    assignment = bytes.fromhex("000000000001000477632e61000000020000000000000001ffffffff")
    assert decode_assignment(assignment) == MemberAssignment((("wc.a", (0, 1)),))
    assert MemberAssignment((("wc.a", (0, 1)),)).encode() == assignment


@given(st.lists(NAMES, max_size=4), USER_DATA, PARTITIONS, st.integers(-1, 9), st.none() | NAMES, st.integers(0, 3))
def test_reads_the_metadata_it_wrote(
    topics: list[str], user_data: bytes | None, owned: list[object], generation: int, rack: str | None, version: int
) -> None:
    found = decode_metadata(MemberMetadata(tuple(topics), user_data, tuple(owned), generation, rack, version).encode())  # type: ignore[arg-type]
    assert (found.topics, found.user_data, found.version) == (tuple(topics), user_data, version)
    assert found.owned == (tuple(owned) if version >= 1 else ())
    assert found.generation == (generation if version >= 2 else -1)
    assert found.rack == (rack if version >= 3 else None)


@given(PARTITIONS, USER_DATA, st.integers(0, LATEST_VERSION))
def test_reads_the_assignments_it_wrote(partitions: list[object], user_data: bytes | None, version: int) -> None:
    assignment = MemberAssignment(tuple(partitions), user_data, version)  # type: ignore[arg-type]
    assert decode_assignment(assignment.encode()) == assignment


def test_reads_the_known_part_of_a_later_version() -> None:
    later = b"\x00\x63" + METADATA_3[2:] + b"and more"
    assert decode_metadata(later) == decode_metadata(METADATA_3)


def test_allows_missing_user_data() -> None:
    assert decode_metadata(b"\0\0" + bytes(4)) == MemberMetadata(())
    assert decode_assignment(b"\0\0" + bytes(4)) == MemberAssignment(())


def test_reads_no_partitions_from_no_bytes() -> None:
    assert decode_assignment(b"") == MemberAssignment(())


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "ends 2 bytes before"),
        (b"\xff\xff", "version -1"),
        (b"\0\0" + struct.pack(">i", 1), "claims 1 entries in 0 bytes"),
        (b"\0\0" + struct.pack(">i", 1 << 30) + bytes(20), "claims 1073741824 entries in 20 bytes"),
        (b"\0\0" + struct.pack(">i", -2), "claims -2 entries"),
        (b"\0\0" + struct.pack(">ih", 1, -1), "null for the name"),
        (b"\0\0" + struct.pack(">ih", 1, -2), "text of -2 bytes"),
        (b"\0\0" + struct.pack(">ih", 1, 5) + b"ab", "ends 3 bytes before"),
        (b"\0\0" + struct.pack(">ih", 1, 1) + b"\xff" + bytes(4), "not UTF-8"),
        (b"\0\0" + struct.pack(">ii", 0, -5), "user data of -5 bytes"),
        (b"\0\1" + struct.pack(">ii", 0, -1), "ends 4 bytes before"),
    ],
)
def test_rejects_invalid_metadata(data: bytes, what: str) -> None:
    with pytest.raises(FrameError, match=f"a member's metadata .*{what}"):
        decode_metadata(data)


@pytest.mark.parametrize(
    "made",
    [
        MemberMetadata((), version=4),
        MemberMetadata((), version=-1),
        MemberMetadata(("t" * 40_000,)),
        MemberMetadata(("\ud800",)),
        MemberAssignment((("t", (1 << 31,)),)),
        MemberAssignment((), version=4),
    ],
)
def test_rejects_values_that_do_not_fit(made: MemberMetadata | MemberAssignment) -> None:
    with pytest.raises(EncodeError):
        made.encode()
