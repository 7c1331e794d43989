"""Splits of logical offsets from brokers that move, lie, cut their logs and hold what cannot be read."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.errors import (
    BrokerReadError,
    BrokerRejectedError,
    BrokerUnavailableError,
    DataLossError,
    MalformedMessageError,
)
from consumerd.spark.source.option_values import BootstrapLocation
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import V08Split
from consumerd.spark.source.v08.origin import cut
from consumerd.spark.source.v08.reading import read_v08_split
from consumerd.wire.v07 import DecodeLimits
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c
from tests.unit.spark.source.v08.fake_broker import V08Broker

NOTHING = (0, 100, b"")


def batch(first: int, count: int, **options: Any) -> bytes:
    values = [b"%d" % number for number in range(first, first + count)]
    return encode_record_batch(values, base_offset=first, **options)


def split_of(broker: V08Broker, start: int, end: int) -> V08Split:
    return V08Split("events", 0, start, end, BootstrapLocation((broker.address,)))


def read(
    broker: V08Broker, start: int = 0, end: int = 100, *columns: str, timeout: float = 10, **request: Any
) -> list[Any]:
    wanted = ReadRequest(columns or ("offset", "_corrupt"), timeout=timeout, **request)
    rows = [row for part in read_v08_split(split_of(broker, start, end), wanted) for row in part.to_pylist()]
    return [tuple(row.values()) for row in rows]


def plain(*offsets: int) -> list[tuple[int, None]]:
    return [(offset, None) for offset in offsets]


def test_cuts_a_range_by_offset_and_skips_gaps() -> None:
    answers = [
        (0, 100, batch(0, 8) + batch(12, 4)),
        (0, 100, batch(16, 10, codec=RecordCodec.GZIP)),
        (0, 100, batch(40, 80)),
    ]
    with V08Broker(*answers) as broker:
        assert read(broker, 3, 90) == plain(*range(3, 8), *range(12, 26), *range(40, 90))
        assert broker.offsets_of_fetches() == [3, 16, 26]
    with V08Broker((0, 100, batch(0, 8))) as broker:
        assert read(broker, 5, 7, "next_offset", "codec", "partition", "broker", "broker_partition", "index") == [
            (6, "none", 0, None, "0", 0),
            (7, "none", 0, None, "0", 0),
        ]
        assert read(broker, 5, 5) == []
        assert pickle.loads(pickle.dumps(split_of(broker, 5, 7))) == split_of(broker, 5, 7)


def test_invalid_timestamps_are_null() -> None:
    far = [1_700_000_000_000, -1, -5, (1 << 63) // 1000 + 1, (1 << 63) - 1]
    data = encode_record_batch([b"x"] * 5, timestamps=far) + encode_message_set([b"x"], magic=0, base_offset=5)
    over = bytearray(encode_record_batch([b"x"] * 2, base_offset=6, timestamps=[0, 10]))
    over[27:35] = b"\x7f" + b"\xff" * 7  # the base of all, and ten more exceeds 64 bits
    over[17:21] = crc32c(bytes(over[21:])).to_bytes(4)
    with V08Broker((0, 8, data + bytes(over))) as broker:
        found = read(broker, 0, 8, "timestamp", "timestampType")
    assert [None if when is None else int(when.timestamp()) for when, _ in found] == [1_700_000_000, *[None] * 7]
    assert [kind for _, kind in found] == [0, 0, 0, 0, 0, None, 0, 0]


def test_fetches_from_a_leader_that_is_elected_later() -> None:
    with V08Broker((0, 100, batch(0, 100))) as later, V08Broker((6, -1, b"")) as former:
        former.leader = later
        hinted = V08Split("events", 0, 0, 9, BootstrapLocation((former.address,)), former.address)
        assert sum(row.num_rows for row in read_v08_split(hinted, ReadRequest(("offset",), timeout=10))) == 9
        assert former.offsets_of_fetches() == later.offsets_of_fetches() == [0]
        gone = V08Split("events", 0, 0, 3, BootstrapLocation((former.address,)), ("127.0.0.1", 1))
        rows = list(read_v08_split(gone, ReadRequest(("offset",), timeout=10)))
    assert [row.num_rows for row in rows] == [3]


def test_accepts_a_gap_at_the_log_end_that_persists() -> None:
    with V08Broker((0, 100, batch(0, 90)), NOTHING, NOTHING, (0, 100, batch(95, 1)), NOTHING) as broker:
        assert read(broker) == plain(*range(90), 95)
        assert broker.offsets_of_fetches().count(96) == 5


def test_a_quota_is_not_a_gap() -> None:
    part = {"partition_index": 0, "error_code": 0, "high_watermark": 100, "records": b""}
    silenced = {
        "throttle_time_ms": 5, "responses": [{"topic": "events", "partitions": [part]}],
    }  # fmt: skip
    bare = {"throttle_time_ms": 5, "responses": []}  # as brokers since 2.0 answer
    with V08Broker(*[lambda *_: silenced, lambda *_: bare] * 4, (0, 100, batch(0, 100))) as broker:
        assert read(broker) == plain(*range(100))


def test_deleted_offsets_fail_or_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ended = [(0, 40, batch(0, 40)), (0, 40, b"")]
    with V08Broker(*ended) as broker, pytest.raises(DataLossError, match=r"40 to 100 of events/0 .* at 40 now"):
        read(broker, timeout=0.5)
    cut_off = [(1, -1, b""), (0, 100, batch(60, 40))]
    with (
        V08Broker(*cut_off, first=60) as broker,
        pytest.raises(DataLossError, match="offsets 10 to 60 of events/0"),
    ):
        read(broker, 10)
    with V08Broker(*cut_off, first=60) as broker:
        assert read(broker, 10, fail_on_data_loss=False) == plain(*range(60, 100))
    (told,) = caplog.messages
    assert told.startswith("the offsets 10 to 60 of events/0 no longer exist: the start of the log was deleted after")
    with V08Broker((1, -1, b""), last=5) as broker, pytest.raises(DataLossError, match="the log ends at 5 now"):
        read(broker, 10)
    with V08Broker((1, -1, b"")) as broker, pytest.raises(BrokerReadError, match="although it reports offsets 0 to"):
        read(broker, 10)


FORMER, NEW = bytes([1]) * 16, bytes([2]) * 16
FORMER_TEXT, NEW_TEXT = "AQEBAQEBAQEBAQEBAQEBAQ", "AgICAgICAgICAgICAgICAg"
UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 100, 103
REPLACED = (
    f"of events/0 no longer exist: topic events had id {FORMER_TEXT} when the read was planned and has {NEW_TEXT} now"
)


def of_log(broker: V08Broker, *, fail: bool = True, start: int = 0) -> list[tuple[int, str]]:
    split = V08Split("events", 0, start, 100, BootstrapLocation((broker.address,)), broker.address, FORMER_TEXT)
    request = ReadRequest(("offset", "topic_id"), timeout=10, fail_on_data_loss=fail)
    return [tuple(row.values()) for part in read_v08_split(split, request) for row in part.to_pylist()]


def test_a_fetch_names_the_log_that_was_planned() -> None:
    answers = [(UNKNOWN_TOPIC_ID, -1, b""), (0, 100, batch(0, 100))]
    with V08Broker(*answers, version=13, ids=(FORMER,)) as broker:
        assert of_log(broker) == [(offset, FORMER_TEXT) for offset in range(100)], "it only did not know the topic yet"
        fetched = [body["topics"][0]["topic_id"] for name, body in broker.asked if name == FETCH.name]
    assert fetched == [FORMER, FORMER]


@pytest.mark.parametrize("error", [UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID])
def test_a_replaced_log_is_data_loss_after_what_was_read(error: int, caplog: pytest.LogCaptureFixture) -> None:
    answers = [(0, 100, batch(0, 40)), (error, -1, b"")]
    with (
        V08Broker(*answers, version=13, ids=(NEW,)) as broker,
        pytest.raises(DataLossError, match=f"40 to 100 {REPLACED}"),
    ):
        of_log(broker)
    caplog.set_level(logging.WARNING)
    with V08Broker(*answers, version=13, ids=(NEW,)) as broker:
        assert of_log(broker, fail=False) == [(offset, FORMER_TEXT) for offset in range(40)]
    assert REPLACED in caplog.text


def test_metadata_tell_the_log_of_brokers_that_fetch_by_name() -> None:
    whole = (0, 100, batch(0, 100))
    with V08Broker(whole, version=12, ids=(FORMER,)) as broker:
        assert of_log(broker) == [(offset, FORMER_TEXT) for offset in range(100)]
    with V08Broker(whole, version=12, ids=(NEW,)) as broker, pytest.raises(DataLossError, match=f"0 to 100 {REPLACED}"):
        of_log(broker)
    with V08Broker(whole, version=12, ids=(NEW,)) as broker:
        assert of_log(broker, fail=False) == [], "none of the other log's messages"
    for fail in (True, False):  # some rows may be of either log
        with (
            V08Broker(whole, version=12, ids=(FORMER, NEW)) as broker,
            pytest.raises(
                DataLossError, match=f"topic events had id {FORMER_TEXT} .* while events/0 from 0 to 100 was"
            ),
        ):
            of_log(broker, fail=fail)


def test_mode_decides_about_unreadable_records() -> None:
    broken = bytearray(batch(10, 5))
    broken[-1] ^= 1
    answers = [
        (0, 20, batch(0, 10) + broken + batch(15, 5)),
        (0, 20, bytes(broken) + batch(15, 5)),
        (0, 20, batch(15, 5)),
    ]
    with V08Broker(*answers) as broker:
        *rows, (offset, following, value, key, codec, crc, problem) = sorted(
            read(broker, 0, 20, "offset", "next_offset", "value", "key", "codec", "crc_ok", "_corrupt"),
            key=lambda row: (row[-1] is not None, row),
        )
    assert [row[0] for row in rows] == [*range(10), *range(15, 20)]
    assert (offset, following, value, key, codec, crc) == (10, 15, None, None, None, False)
    assert problem.startswith("the batch at offset 10 has a CRC of ")
    with V08Broker(*answers) as broker:
        assert read(broker, 0, 20, mode=ParseMode.DROPMALFORMED) == plain(*range(10), *range(15, 20))
    with (
        V08Broker(*answers) as broker,
        pytest.raises(MalformedMessageError, match="at offset 10: the batch"),
    ):
        read(broker, 0, 20, mode=ParseMode.FAILFAST)


def test_fetch_size_grows_until_a_message_fits() -> None:
    large = encode_message_set([b"x" * 5000], magic=0, base_offset=7)

    def cut_short(version: int, body: dict[str, Any]) -> dict[str, Any]:
        size = body["topics"][0]["partitions"][0]["partition_max_bytes"]
        part = {"partition_index": 0, "error_code": 0, "high_watermark": 8, "records": large[:size]}
        return {"responses": [{"topic": "events", "partitions": [part]}]}

    with V08Broker(cut_short, version=0) as broker:
        assert read(broker, 7, 8, fetch_size=10) == plain(7)
        ((offset, problem),) = read(broker, 7, 8, fetch_size=10, limits=DecodeLimits(max_message_bytes=300))
    assert offset == 7
    assert "has the impossible size 50" in problem


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (b"\x00\x00\x00\x03abc", BrokerReadError, "cannot fetch events/0 from 0: broker .* sent an invalid response"),
        (b"\x7f\xff\xff\xff", BrokerReadError, "announced a response of 2147483647 bytes"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63abcd", BrokerReadError, "answered request 99 where"),
        (lambda *_: None, BrokerUnavailableError, "cannot fetch events/0 from 0: broker .* closed the connection"),
        (
            (29, -1, b""),
            BrokerRejectedError,
            "fetch events/0 from 0: broker .* rejected a fetch of events/0 from 0: TOPIC_AUTHORIZATION_FAILED",
        ),
        (
            lambda *_: {"responses": []},
            BrokerReadError,
            "cannot fetch events/0 from 0: broker .* left the partition out of its response",
        ),
    ],
)
def test_invalid_responses_end_the_task(answer: Any, kind: type[Exception], sentence: str) -> None:
    with V08Broker(answer) as broker, pytest.raises(kind, match=sentence) as caught:
        read(broker, timeout=0.4)
    assert str(broker.port) in str(caught.value)
    if kind is BrokerRejectedError:
        assert broker.offsets_of_fetches() == [0]


def test_reports_an_unreachable_cluster_in_one_sentence() -> None:
    with V08Broker(NOTHING) as broker:
        split = split_of(broker, 0, 1)
    with pytest.raises(
        BrokerUnavailableError,
        match=r"no broker of the cluster can be reached \(1 tried\); .* cannot connect to broker",
    ):
        list(read_v08_split(split, ReadRequest(("offset",), timeout=0.3)))


@pytest.mark.parametrize("most", [0, 1, 7, 10, 99, 1000])
def test_cuts_ranges_evenly(most: int) -> None:
    pieces = cut(5, 104, most)
    assert [offset for low, high in pieces for offset in range(low, high)] == list(range(5, 104))
    sizes = [high - low for low, high in pieces]
    assert max(sizes) <= (most or 99)
    assert max(sizes) - min(sizes) <= 1
    assert cut(5, 5, most) == []
