from __future__ import annotations

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import assign, assign_topic, java_order, partitions_of, topic_assignment
from consumerd.group.assignors import java_hash
from consumerd.wire.registry.subscription import parse_subscription


def dealt(count: int, *streams: tuple[str, int]) -> list[str]:
    return [
        f"{partition.name} {consumer}-{number}"
        for partition, (consumer, number) in assign_topic(partitions_of("t", {0: count}), streams).items()
    ]


def test_gives_extra_partitions_to_first_streams() -> None:
    assert dealt(5, ("a", 2), ("b", 1)) == ["0-0 a-0", "0-1 a-0", "0-2 a-1", "0-3 a-1", "0-4 b-0"]


def test_sorts_partitions_and_streams_as_strings() -> None:
    assert dealt(12, ("c2", 1), ("c10", 1))[:4] == ["0-0 c10-0", "0-1 c10-0", "0-10 c10-0", "0-11 c10-0"]
    partitions = [TopicPartition("t", broker, 0) for broker in (2, 10)]
    assert assign_topic(partitions, [("a", 2)]) == {partitions[1]: ("a", 0), partitions[0]: ("a", 1)}
    assert list(assign_topic(partitions_of("t", {0: 12}), [("a", 12)]).values())[:4] == [
        ("a", 0), ("a", 1), ("a", 10), ("a", 11),
    ]  # fmt: skip


def test_sorts_streams_by_whole_name() -> None:
    # "a-1-0" < "a-10-0" but "a-1-10" < "a-10-0" too, and "a-10-0" < "a-10" + "-1".
    assert dealt(3, ("a-1", 2), ("a", 1)) == ["0-0 a-0", "0-1 a-1-0", "0-2 a-1-1"]


def test_leaves_streams_beyond_partitions_idle() -> None:
    assert dealt(1, ("a", 3), ("b", 1)) == ["0-0 a-0"]


def test_assigns_nothing_without_streams() -> None:
    assert dealt(3) == []
    assert dealt(3, ("a", 0)) == []
    assert dealt(0, ("a", 1)) == []


def test_sorts_by_utf16_code_units() -> None:
    private, astral = "\ue000", "\U00010000"
    assert private < astral
    assert java_order(astral) < java_order(private)
    assert dealt(1, (private, 1), (astral, 1)) == [f"0-0 {astral}-0"]


def test_assigns_each_topic_to_its_subscribers() -> None:
    members = {
        "g_b": parse_subscription('{ "mt1": 1 }'),
        "g_a": parse_subscription("*1*mt.*"),
        "g_c": parse_subscription("!1!mt1"),
    }
    owners = assign({"mt1": {0: 2}, "mt2": {0: 1, 1: 1}, "other": {0: 1}, "empty": {}}, members)
    assert {str(partition): owner[0] for partition, owner in owners.items()} == {
        "mt1/0-0": "g_a",
        "mt1/0-1": "g_b",
        "mt2/0-0": "g_a",
        "mt2/1-0": "g_c",
        "other/0-0": "g_c",
    }


def test_shares_are_zero_without_streams() -> None:
    found = topic_assignment(partitions_of("t", {0: 3}), [])
    assert (found.share, found.extra, list(found.chunks())) == (0, 0, [])


def test_hash_counts_both_bytes_of_each_utf16_unit() -> None:
    assert java_hash("\u0100") == 0x100
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
