"""The formulas of docs/scale.md: its tables say what members do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.net.zk.connection import ConnectionLimits
from consumerd.wire.registry.paths import id_path, owner_path
from tests.simulation import zookeeper_wire
from tests.simulation.requests import least_of_join, least_of_partitions, of_join
from tests.simulation.world import World

DOCUMENT = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without the table's own heading."""
    section = DOCUMENT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = section[section.index("\n|---") :].split("\n\n", 1)[0].strip().splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def numbers(cell: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", cell)]


@pytest.mark.parametrize("brokers", [1, 10])
def test_member_has_one_connection_per_broker_and_one_to_zookeeper(brokers: int) -> None:
    with World(1) as world:
        for broker in range(brokers):
            if broker:
                world.add_broker(broker)
            world.topic("events", 10, broker=broker)
        world.daemon("m")
        world.settle()
        assert len(world.network.links_of("m")) == brokers + 1
        assert len(world.network.links_of("m", (world.zookeeper.host, world.zookeeper.port))) == 1
        world.produce_all()
        world.finish()
    assert world.account.violations == []


def test_list_of_children_takes_the_documented_number_of_bytes() -> None:
    """In the encoding of the simulated server, which the conformance tests compare with a real ZooKeeper."""
    found = rows("Sizes in ZooKeeper")
    assert len(found) == 4
    for what, count, length, size, most in found:
        (entries,), (name,) = numbers(count), numbers(length)
        names = [f"{number:0{name}d}" for number in range(entries)]
        frame = zookeeper_wire.reply(1, 1, 0, zookeeper_wire.children(names))
        assert len(frame) - 4 == numbers(size)[0], what
        assert numbers(most)[0] == (ConnectionLimits().request - 20) // (name + 4), what


def test_names_of_nodes_have_the_documented_lengths() -> None:
    lengths = {what: numbers(length)[0] for what, _, length, *_ in rows("Sizes in ZooKeeper")}
    owner = owner_path("g", TopicPartition("events", 99, 99)).rpartition("/")[2]
    member = id_path("g", "events_consumer-0042.example.com-1795447631751-018f1eef").rpartition("/")[2]
    assert {len(owner)} == {length for what, length in lengths.items() if "owner" in what}
    assert {len(member)} == {length for what, length in lengths.items() if "member" in what}


def test_requests_of_the_table_are_those_of_the_formulas() -> None:
    found = rows("Requests to ZooKeeper")
    assert len(found) >= 6
    for size, brokers, moved, join, partition, start in found:
        members, partitions = numbers(size)
        (nodes,) = numbers(brokers)
        assert numbers(moved) == [partitions - partitions // (members + 1)]
        assert numbers(join) == [
            of_join(members, numbers(moved)[0], 1, nodes, nodes),
            least_of_join(members, numbers(moved)[0], 1, nodes, nodes),
        ]
        assert numbers(partition) == [least_of_partitions(members, 1)]
        assert numbers(start) == [members * members]
