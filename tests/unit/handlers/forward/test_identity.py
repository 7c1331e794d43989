from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import LogId, TopicPartition
from consumerd.handlers.forward.identity import SourceMark, read_identity

NUMBERS = st.integers(0, 2**63 - 1)


@given(
    topic=st.text(min_size=1).filter(lambda text: text.isprintable()),
    broker=st.integers(-1, 2**31 - 1),
    partition=st.integers(0, 2**31 - 1),
    offset=NUMBERS,
    index=NUMBERS,
    payload=st.none() | st.binary(max_size=50),
    cluster=st.none() | st.text(min_size=1).filter(lambda text: text.isprintable()),
    log=st.builds(
        LogId,
        st.none() | st.binary(min_size=16, max_size=16),
        st.none() | st.integers(0, 2**31 - 1),
        st.none(),
        st.none(),
    ),
)
def test_reads_the_identity_it_wrote(
    topic: str,
    broker: int,
    partition: int,
    offset: int,
    index: int,
    payload: bytes | None,
    cluster: str | None,
    log: LogId,
) -> None:
    source = TopicPartition(topic, broker, partition)
    mark = SourceMark(source, cluster)
    mark.read_from(LogId(b"\x09" * 16, 9))  # what was sent before
    mark.read_from(log)
    headers = mark.headers(offset, index, payload)
    found = read_identity((("own", None), *headers))
    assert found is not None
    assert found.partition == source
    assert found.place == (offset, index)
    assert found.cluster == cluster
    assert found.log == log
    assert all(value is None or value.isascii() for name, value in headers if name.endswith(("_id", "_epoch")))
    assert found.crc == (None if payload is None else zlib.crc32(payload))


def marked(mark: SourceMark, log: LogId) -> SourceMark:
    mark.read_from(log)
    return mark


WAYS = [
    marked(SourceMark(TopicPartition.numbered("c", 5), "dc3"), LogId(b"\x01" * 16, 7)),
    marked(SourceMark(TopicPartition.numbered("c", 6)), LogId(None, 8)),
    SourceMark(TopicPartition("a", 1, 2)),  # from 0.7
    SourceMark(TopicPartition("a", 1, 2), "dc"),
    SourceMark(TopicPartition.numbered("b", 5)),  # from 0.8 and later: without a broker
    SourceMark(TopicPartition.numbered("b", 5), "dc2"),
]


@pytest.mark.parametrize("payload", [b"x", None])
@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_replaces_the_identity_of_a_former_forwarder(
    first: SourceMark, second: SourceMark, payload: bytes | None
) -> None:
    alone = read_identity(second.headers(6, 0, payload))
    assert alone is not None
    earlier = (("own", b"1"), *first.headers(3, 4, b"x"))
    assert read_identity((*earlier, *second.headers(6, 0, payload))) == alone
    assert read_identity((*earlier, *first.headers(9, 0, b"y"), *second.headers(6, 0, payload))) == alone


@pytest.mark.parametrize("mark", WAYS)
def test_reads_an_identity_whose_headers_another_tool_has_sorted(mark: SourceMark) -> None:
    headers = (("own", b"1"), ("own", b"2"), *mark.headers(3, 4, b"x"))
    alone = read_identity(headers[2:])
    assert alone is not None
    assert read_identity(tuple(sorted(headers[1:]))) == alone
    assert read_identity(headers) == alone


def test_str_names_the_source() -> None:
    """Else what is of a source that was not asked for looks like what was."""
    source = TopicPartition("a", 1, 2)
    assert str(read_identity(SourceMark(source).headers(3, 4, b"x"))) == "a/1-2 offset 3 index 4"
    assert str(read_identity(SourceMark(source, "dc").headers(3, 4, b"x"))) == "a/1-2 offset 3 index 4 of source 'dc'"


GOOD = dict(SourceMark(TopicPartition("a", 1, 2)).headers(3, 4, b"x"))


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "index"])
def test_ignores_an_incomplete_identity(name: str) -> None:
    rest = tuple((key, value) for key, value in GOOD.items() if not key.endswith("." + name))
    assert read_identity(rest) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", None), ("topic", b""), ("topic", b"\xff"), ("broker", b"-1"), ("broker", b"?"), ("partition", b"one"),
        ("offset", b"9223372036854775808"), ("offset", b"1" * 5000), ("offset", b"%020d" % 1), ("offset", "²".encode()),
        ("index", b" 1"),
        ("leader_epoch", b"-1"), ("leader_epoch", None), ("topic_id", b"\xff"),
        ("crc", b"123"), ("crc", b"0x123456"), ("crc", b"ABCDEF01"), ("crc", None),
    ],
)  # fmt: skip
def test_ignores_hostile_values(name: str, value: bytes | None) -> None:
    assert read_identity(tuple((GOOD | {f"consumerd.source.{name}": value}).items())) is None


def test_a_topic_id_that_is_none_counts_as_unknown() -> None:
    for value in (b"", b"abc", b"!" * 22, None):
        found = read_identity(tuple((GOOD | {"consumerd.source.topic_id": value}).items()))
        assert found is not None
        assert found.log == LogId()


def test_ignores_headers_of_others() -> None:
    assert read_identity(()) is None
    assert read_identity((("trace", b"1"),)) is None
    assert read_identity((("trace", b"1"), ("trace", b"2"))) is None
