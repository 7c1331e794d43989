from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.wire import InvalidTopicError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import (
    broker_ids_path,
    broker_path,
    check_name,
    id_path,
    ids_path,
    offset_path,
    offsets_path,
    owner_path,
    owners_path,
    topic_broker_path,
    topic_path,
    topics_path,
)
from consumerd.wire.v07 import validate_new_topic


def test_paths_are_those_of_the_specification() -> None:
    partition = TopicPartition("clicks", 1, 10)
    assert broker_ids_path() == "/brokers/ids"
    assert broker_path(3) == "/brokers/ids/3"
    assert topics_path() == "/brokers/topics"
    assert topic_path("clicks") == "/brokers/topics/clicks"
    assert topic_broker_path("clicks", 3) == "/brokers/topics/clicks/3"
    assert ids_path("g") == "/consumers/g/ids"
    assert id_path("g", "g_a") == "/consumers/g/ids/g_a"
    assert owners_path("g", "clicks") == "/consumers/g/owners/clicks"
    assert owner_path("g", partition) == "/consumers/g/owners/clicks/1-10"
    assert offsets_path("g", "clicks") == "/consumers/g/offsets/clicks"
    assert offset_path("g", partition) == "/consumers/g/offsets/clicks/1-10"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\0", "a\n", "a\x7f", "\ud800", "\ufff0", "\ufffe", "a\U0001d4b3"]
)
def test_rejects_names_that_no_node_can_have(name: str) -> None:
    for build in (ids_path, topic_path, lambda name: id_path("g", name), lambda name: owners_path("g", name)):
        with pytest.raises(RegistryError):
            build(name)


@pytest.mark.parametrize("name", ["a", "...", "a b", "a:b,c*", "\u041b\u043e\u0433\u0438", "\uf900", "\uffef"])
def test_keeps_other_names(name: str) -> None:
    assert check_name("topic", name) == name


def test_error_names_the_kind_and_the_character() -> None:
    with pytest.raises(RegistryError, match=r"the group 'a/b' holds '/'"):
        ids_path("a/b")


def test_a_topic_that_the_broker_creates_has_a_node() -> None:
    """Every character up to U+FFFF, and the borders of each plane above."""
    accepted = []
    for code in itertools.chain(range(0x10000), (plane << 16 | low for plane in range(1, 17) for low in (0, 0xFFFF))):
        with suppress(InvalidTopicError):
            validate_new_topic(f"a{chr(code)}")
            accepted.append(chr(code))
    assert len(accepted) > 50_000
    check_name("topic", "".join(accepted))
