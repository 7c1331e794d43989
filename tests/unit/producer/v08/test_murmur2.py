from __future__ import annotations

import pytest

from consumerd.producer.v08.routing import key_partition, murmur2


# Results of Java's `Utils.murmur2` from the tests of its clients; int32 there, so the sign is removed.
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_as_java_does(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % (1 << 32)


def test_partition_of_a_key_is_in_range_and_stable() -> None:
    places = {key: key_partition(key, 7) for key in (b"%d" % n for n in range(500))}
    assert set(places.values()) == set(range(7))
    assert all(key_partition(key, 7) == place for key, place in places.items())
    assert key_partition(b"", 1) == 0
