from __future__ import annotations

import pytest

from consumerd.producer import java_bytes_hash, java_string_hash, key_index


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # By hand from the definition s[0]*31^(n-1) + ... + s[n-1], or published values of String.hashCode.
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("Aa", 2112),
        ("BB", 2112),
        ("hello", 99162322),
        ("Hello, world!", -1880044555),
        ("polygenelubricants", -(2**31)),
        ("\uffff", 65535),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("\ud800", 0xD800),  # a lone surrogate is a char like any other to Java
    ],
)
def test_hashes_text_as_java_does(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("data", "value"),
    # Arrays.hashCode: 1 to begin with, then 31 * value + the signed byte.
    [
        (b"", 1),
        (b"\x00", 31),
        (b"\x01", 32),
        (b"\xff", 30),
        (b"\x01\x02", 32 * 31 + 2),
        (b"\x80\x7f", (31 - 128) * 31 + 127),
    ],
)
def test_hashes_bytes_as_java_util_arrays(data: bytes, value: int) -> None:
    assert java_bytes_hash(data) == value


def test_hash_wraps_at_32_bits() -> None:
    # 31**7 alone is above 2**32.
    assert java_string_hash("zzzzzzzz") == ((122 * sum(31**n for n in range(8)) + 2**31) % 2**32) - 2**31


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_index_is_abs_of_the_hash_modulo_the_count(count: int) -> None:
    assert key_index("hello", count) == 99162322 % count
    assert key_index("Hello, world!", count) == 1880044555 % count
    # Java's abs(-2**31) is -2**31, and its remainder takes that sign: 0.7.2 has a partition only where it is 0.
    assert key_index("polygenelubricants", count) == 2**31 % count
    assert 0 <= key_index(b"\xff", count) < count


def test_chooses_the_partitions_of_the_recorded_producer() -> None:
    """Golden wire/client_captures.json, connection 5: keys sent to a topic of two partitions."""
    keys = ["a", "b", "c", "hello", "key-1", "key-2", "zz"]
    assert [key_index(key, 2) for key in keys] == [1, 0, 1, 0, 1, 0, 0]
