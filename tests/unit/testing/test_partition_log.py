"""A partition's log in memory: offsets are those of the wire."""

from consumerd.testing.life import MemoryPartitionLog
from consumerd.wire.v07 import Codec, encode_message_set


def test_counts_offsets_in_bytes_of_encoded_sets() -> None:
    log = MemoryPartitionLog()
    assert log.append([b"a", b"bc"]) == 0
    middle = len(encode_message_set([b"a"]))
    assert log.end == len(encode_message_set([b"a", b"bc"]))
    wrapper = log.append([b"d", b"e"], codec=Codec.GZIP)
    assert wrapper == len(encode_message_set([b"a", b"bc"]))
    plain = log.append([b"f"], magic=0)
    boundaries = [offset for offset in range(log.end + 2) if log.is_boundary(offset)]
    assert boundaries == [0, middle, wrapper, plain, log.end]
    assert list(log.read(0, log.end)) == [b"a", b"bc", b"d", b"e", b"f"]


def test_reads_a_part() -> None:
    log = MemoryPartitionLog()
    log.append([b"a", b"b", b"c"])
    step = log.end // 3
    batch = log.read(step, log.end)
    assert (batch.start_offset, batch.next_offset, list(batch)) == (step, log.end, [b"b", b"c"])
    cut = log.read(step, log.end, at_most=1)
    assert (cut.next_offset, list(cut)) == (2 * step, [b"b"])
    assert list(log.read(0, log.end, at_most=9)) == [b"a", b"b", b"c"]
    assert log.append([]) == log.end
