"""ZooKeeper: replies as the connection reads them, and the values and names of znodes in both dialects."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08
from consumerd.wire.registry.paths import topic_path
from consumerd.wire.registry.spoken import broker_dialect, member_dialect, offset_dialect
from consumerd.wire.registry.subscription import parse_subscription
from consumerd.wire.registry.v08.broker import parse_broker_node
from consumerd.wire.registry.v08.subscription import format_subscription_v08, parse_subscription_v08
from consumerd.wire.registry.v08.topic import format_topic_assignment, parse_partition_state, parse_topic_assignment
from consumerd.wire.registry.values import (
    format_broker,
    format_offset,
    format_owner,
    format_partition_count,
    parse_broker,
    parse_broker_id,
    parse_offset,
    parse_owner,
    parse_partition_count,
)
from tests.fuzz.laws_zookeeper import exercise_handshake, exercise_replies
from tests.fuzz.mending import changed_json
from tests.fuzz.targets.target import Target, check_sentence

if TYPE_CHECKING:
    import random

_SIZE: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iqi")


# -- replies


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for all inputs: making one takes longer than reading a reply. The process's end closes it."""
    return asyncio.new_event_loop()


def _cut(data: bytes) -> tuple[bytes, int]:
    """The stream, and where it is cut: the first byte says that."""
    return data[1:], data[0] if data else 0


def _check_replies(data: bytes) -> None:
    _loop().run_until_complete(exercise_replies(*_cut(data)))


def _check_handshake(data: bytes) -> None:
    _loop().run_until_complete(exercise_handshake(*_cut(data)))


def _frame(xid: int, body: bytes = b"", code: int = 0) -> bytes:
    return _SIZE.pack(_HEADER.size + len(body)) + _HEADER.pack(xid, 5, code) + body


_STAT: Final = struct.pack("!qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


def _text(text: str) -> bytes:
    return _SIZE.pack(len(text)) + text.encode()


def _replies() -> dict[str, bytes]:
    children = _SIZE.pack(2) + _text("one") + _text("two") + _STAT
    frames = {
        "get": _frame(1, _text("data") + _STAT),
        "exists": _frame(2, _STAT),
        "missing": _frame(2, code=-101),
        "children": _frame(3, children),
        "set": _frame(4, _STAT),
        "sync": _frame(5, _text("/")),
        "multi": _frame(6, struct.pack("!i?i", 13, False, 0) + struct.pack("!i?i", -1, True, -1)),
        "multi-failed": _frame(6, struct.pack("!i?ii", -1, False, -103, -103) + struct.pack("!i?i", -1, True, -1)),
        "create": _frame(7, _text("/a")),
        "watch": _frame(-1, struct.pack("!ii", 1, 3) + _text("/a")),
    }
    frames["all"] = b"".join(frames.values())
    return {name: b"\7" + frame for name, frame in frames.items()}


def _framed(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """The stream after `change`; three times of four its first frame gets the size that is there."""
    changed = change(data)
    if len(changed) < 5 or rng.random() < 0.25:
        return changed
    size = int.from_bytes(changed[1:5], signed=True)
    if 0 <= size <= len(changed) - 5:
        return changed
    return changed[:1] + _SIZE.pack(len(changed) - 5) + changed[5:]


def _handshakes() -> dict[str, bytes]:
    body = struct.pack("!iiq", 0, 6000, 77) + _SIZE.pack(16) + bytes(16)
    return {"old": b"\7" + _SIZE.pack(len(body)) + body, "new": b"\7" + _SIZE.pack(len(body) + 1) + body + b"\0"}


# -- znodes


def _check_node(data: bytes) -> None:
    """What can be read is read again from the text that is written for it."""
    for parse, again in _PARSERS:
        try:
            found = parse(data)
            text = again(found)
        except RegistryError as error:
            check_sentence(error)
            continue
        assert text is None or parse(text.encode()) == found
    broker_dialect(data)
    member_dialect(data)


def _nothing(found: Any) -> None:
    return None


_PARSERS: Final[list[tuple[Callable[[bytes], Any], Callable[[Any], str | None]]]] = [
    (lambda data: parse_broker(0, data), format_broker),
    (lambda data: parse_broker_node(0, data), _nothing),
    (parse_offset, format_offset),
    (parse_owner, lambda found: format_owner(*found)),
    (parse_partition_count, format_partition_count),
    (parse_partition_state, _nothing),
    (parse_subscription, lambda found: found.format()),
    (parse_subscription_v08, lambda found: format_subscription_v08(found, 0)),
    (parse_topic_assignment, format_topic_assignment),
]


def _nodes() -> dict[str, bytes]:
    texts = {
        "broker": "host-1400000000000:host:9092",
        "broker-jafka": "host-1400000000000:fe80#1:9092:true",
        "broker-json": '{"jmx_port":-1,"timestamp":"1","host":"h","port":9092,"version":1}',
        "broker-endpoints": '{"listener_security_protocol_map":{"IN":"SSL"},"endpoints":["IN://[::1]:9093"],'
        '"rack":"r","host":null,"port":-1,"version":5}',
        "offset": "9223372036854775807",
        "owner": "group_host-1400000000000-0badcafe-0",
        "topics": '{ "events": 2,"other": 1 }',
        "whitelist": "*2*event.*|other",
        "blacklist": "!1!a(b|c)+[^d-f]{2,3}",
        "topics-json": '{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}',
        "filter-json": '{"version":1,"subscription":{"e.*":2},"pattern":"white_list","timestamp":"1"}',
        "assignment": '{"version":1,"partitions":{"1":[1,2],"0":[2]}}',
        "state": '{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2]}',
    }
    found = {name: text.encode() for name, text in texts.items()}
    return {**found, "nudge": NUDGE_VALUE, "nudge-json": NUDGE_VALUE_V08, "nested": b'{"a":' + b"[" * 200}


def _check_name(data: bytes) -> None:
    """Names of nodes: of brokers, topics and partitions."""
    name = data.decode(errors="replace")
    with contextlib.suppress(RegistryError):
        parse_broker_id(name)
    offset_dialect(name)
    with contextlib.suppress(RegistryError):
        assert topic_path(name).count("/") == 3
    for parse in (TopicPartition.parse, TopicPartition.parse_any):
        with contextlib.suppress(ValueError):
            assert parse("t", name).name == name


def _names() -> dict[str, bytes]:
    return {name: name.encode() for name in ("0-3", "17", "events", "..", "a/b", "\u0664")}


TARGETS: Final = (
    Target(
        "zk-replies",
        "Each call gets an answer or a declared error, and the connection ends with a reason.",
        _check_replies, _replies, _framed,
    ),
    Target("zk-handshake", "A session, BadReply or HandshakeClosed.", _check_handshake, _handshakes, _framed),
    Target(
        "znodes", "A value that is read again from its text, or RegistryError.",
        _check_node, _nodes, changed_json, 8192,
    ),
    Target("znode-names", "A name stays one element of a path, or its declared error.", _check_name, _names),
)  # fmt: skip
