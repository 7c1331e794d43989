"""The znodes of our broker equal those of 0.7.2 byte for byte (golden zk/01..04)."""

import json
import random
from pathlib import Path

from consumerd.base.clock import SystemClock
from consumerd.net.zk.session import Session
from consumerd.storage.broker.registration import BrokerRegistration

Tree = dict[str, tuple[str | None, bool, int]]


class FixedClock(SystemClock):
    """Real but for the date, which is part of a broker's address."""

    def __init__(self, wall_ms: int) -> None:
        self._wall = wall_ms / 1000

    def wall(self) -> float:
        return self._wall


async def _tree(zk: Session, path: str = "/brokers") -> Tree:
    data, stat = await zk.get(path)
    tree: Tree = {path: (None if data is None else data.decode(), bool(stat.ephemeral_owner), stat.version)}
    for name in await zk.children(path):
        tree |= await _tree(zk, f"{path}/{name}")
    return tree


async def test_reads_trees_of_two_brokers(golden: Path, zk_root: str) -> None:
    def expected(name: str) -> Tree:
        nodes = json.loads((golden / "kafka-0.7.2" / "zk" / name).read_bytes())
        return {
            path: (None if node["null_data"] else node["data"], node["ephemeral"], node["version"])
            for path, node in nodes.items()
            if path != "/"
        }

    def registration(zk: Session, broker: int, port: int, wall_ms: int, counts: dict[str, int]) -> BrokerRegistration:
        partitions_of = lambda topic: counts.get(topic, 4)  # noqa: E731
        return BrokerRegistration(zk, broker, "127.0.0.1", port, partitions_of, FixedClock(wall_ms), random.Random(1))

    def session() -> Session:
        return Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=4)

    async with session() as zk0, session() as zk1:
        first = registration(zk0, 0, 29192, 1795263232660, {})
        second = registration(zk1, 1, 29292, 1795263236836, {"beta": 2})
        await first.register([])
        assert await _tree(zk0) == expected("01-one-broker-no-topics.json")
        await first.register(["alpha"])
        assert await _tree(zk0) == expected("02-one-broker-one-topic.json")
        await second.register([])
        assert await _tree(zk0) == expected("03-two-brokers-topic-only-on-0.json")
        await first.register(["gamma-x", "beta"])
        await second.register(["alpha", "beta", "gamma-x"])
        assert await _tree(zk0) == expected("04-two-brokers-three-topics.json")
        await second.withdraw()
        await first.withdraw()
        left = {path for path in expected("04-two-brokers-three-topics.json") if path[-2:] not in {"/0", "/1"}}
        assert set(await _tree(zk0)) == left  # parents stay, as 0.7.2 leaves them
