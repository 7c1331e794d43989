"""From the configuration to a client, a membership and a consumer of brokers since 0.8."""

import random
from pathlib import Path
from typing import Any

import pytest

from consumerd.clock import SystemClock
from consumerd.consumer import CoordinatedConsumer, FixedConsumer
from consumerd.daemon.build import build_handler, build_settings
from consumerd.daemon.build_kafka import (
    build_bootstrap,
    build_client,
    build_consumer,
    build_coordination,
    fixed_partitions,
)
from consumerd.daemon.config import Config, KafkaSection, parse
from consumerd.errors import ConfigError
from consumerd.partition import TopicPartition

CLOCK, RNG = SystemClock(), random.Random(1)


def config(**group: Any) -> Config:
    return parse({"group": {"id": "g", **group}, "handler": {"name": "null"}}, "a test")


def build(found: Config) -> CoordinatedConsumer | FixedConsumer:
    client = build_client(found, clock=CLOCK, rng=RNG)
    settings = build_settings(found, clock=CLOCK, rng=RNG)
    handler = build_handler(found, clock=CLOCK, rng=RNG)
    return build_consumer(found, settings, handler, client, clock=CLOCK, rng=RNG)


def test_addresses_are_read_with_names_and_numbers_of_either_kind() -> None:
    section = KafkaSection(bootstrap=("kafka1:9092", " 10.0.0.1:1 ", "[::1]:65535"))
    assert build_bootstrap(section) == [("kafka1", 9092), ("10.0.0.1", 1), ("::1", 65535)]


@pytest.mark.parametrize("address", ["kafka1", ":9092", "kafka1:", "kafka1:0", "kafka1:65536", "kafka1:x", "a:-1"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap"):
        build_bootstrap(KafkaSection(bootstrap=(address,)))


@pytest.mark.asyncio
async def test_a_broker_coordinates() -> None:
    found = config(
        topics={"t": 2}, coordination="kafka", assignor="roundrobin", instance_id="i", rebalance_timeout=12.0
    )
    settings = build_coordination(found)
    assert settings.assignors == ("roundrobin", "range")
    assert (settings.instance_id, settings.rebalance_timeout, settings.drain_timeout) == ("i", 12.0, 4.0)
    assert isinstance(build(found), CoordinatedConsumer)


@pytest.mark.asyncio
async def test_partitions_are_fixed() -> None:
    found = config(partitions={"u": [3, 0, 3], "t": [1]}, coordination="fixed", offsets="none")
    wanted = [TopicPartition.numbered(*each) for each in (("t", 1), ("u", 0), ("u", 3))]
    assert fixed_partitions(found.group) == wanted
    consumer = build(found)
    assert isinstance(consumer, FixedConsumer)
    assert consumer.assigned == wanted


def test_check_reads_what_each_way_needs(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from consumerd.cli.check import command

    path = tmp_path / "c.toml"
    path.write_text('[group]\nid = "g"\ncoordination = "fixed"\npartitions = { t = [1, 0] }\n')
    result = CliRunner().invoke(command, ["-c", str(path)])
    assert "group g, t/0, t/1, handler print" in result.output
    path.write_text('[group]\nid = "g"\ncoordination = "kafka"\ntopics = { t = 1 }\n')
    assert "coordinated by a broker" in CliRunner().invoke(command, ["-c", str(path)]).output
    path.write_text(path.read_text() + '[kafka]\nbootstrap = ["nowhere"]\n')
    assert isinstance(CliRunner().invoke(command, ["-c", str(path)]).exception, ConfigError)
