"""The producer's hash and its message sets, over all inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumerd.producer.v07.encoding import HEADER, encode_sets
from consumerd.producer.v07.keys import java_bytes_hash, java_string_hash, key_index
from consumerd.wire.v07 import BatchEnd, Codec, decode_batch, iter_outer

any_text = st.text(st.characters(codec=None, exclude_categories=()))


@given(any_text, any_text)
def test_hash_of_a_concatenation_follows_from_those_of_its_parts(left: str, right: str) -> None:
    units = len(right.encode("utf-16-be", "surrogatepass")) // 2
    together = java_string_hash(left) * pow(31, units) + java_string_hash(right)
    assert (java_string_hash(left + right) - together) % 2**32 == 0
    assert -(2**31) <= java_string_hash(left) < 2**31


@given(st.binary(), st.integers(0, 127))
def test_hash_of_bytes_grows_byte_by_byte(data: bytes, byte: int) -> None:
    assert (java_bytes_hash(data + bytes([byte])) - (31 * java_bytes_hash(data) + byte)) % 2**32 == 0


@given(st.one_of(any_text, st.binary()), st.integers(1, 10_000))
def test_every_key_has_a_candidate(key: str | bytes, count: int) -> None:
    assert 0 <= key_index(key, count) < count


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=40),
    st.sampled_from([(0, Codec.NONE), (1, Codec.NONE), (1, Codec.GZIP), (1, Codec.SNAPPY), (0, Codec.GZIP)]),
    st.integers(300, 2000),
    st.integers(0, 2000),
)
def test_sets_hold_every_message_in_order_within_both_limits(
    payloads: list[bytes], form: tuple[int, Codec], max_message: int, more: int
) -> None:
    magic, codec = form
    max_set = max_message + HEADER + more
    sets = encode_sets("t", payloads, magic=magic, codec=codec, max_message_bytes=max_message, max_set_bytes=max_set)
    found: list[bytes] = []
    for data in sets:
        assert 0 < len(data) <= max_set
        assert all(len(message.payload) <= max_message for message in iter_outer(data))
        batch = decode_batch(data, 0)
        assert batch.end is BatchEnd.COMPLETE
        found += batch.payloads
    assert found == payloads
