from __future__ import annotations

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming


async def test_maps_a_cluster_of_two_brokers_one_to_one() -> None:
    numbering = BrokerMajorNumbering(3)
    numbers = [await numbering.number(TopicPartition("t", b, p)) for b in range(2) for p in range(3)]
    assert numbers == list(range(6))
    assert await numbering.number(TopicPartition.numbered("t", 7)) == 7
    assert await BrokerMajorNumbering().number(TopicPartition("t", 5, 2)) == 7


def test_maps_names() -> None:
    naming = TopicNaming("old.{topic}", {"a b": "a-b"})
    assert naming.target("events") == "old.events"
    assert naming.target("a b") == "a-b"
    assert TopicNaming("all").target("whatever it is") == "all"
    with pytest.raises(
        ValueError, match=r"'old.b c', which is not a valid topic name; rename it in `topics` \(--rename\)"
    ):
        naming.target("b c")
    with pytest.raises(ValueError, match="is not a valid topic name"):
        TopicNaming().target("x" * 250)


@pytest.mark.parametrize(("template", "table"), [("{name}", {}), ("", {}), (".", {}), ("{topic}", {"a": "b/c"})])
def test_rejects_invalid_names_at_once(template: str, table: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="topic"):
        TopicNaming(template, table)
