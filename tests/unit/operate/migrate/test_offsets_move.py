"""Whether a move keeps the numbers of offsets or translates them."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.groups import GroupView
from consumerd.operate.admin.snapshot import V07GroupSnapshot
from consumerd.operate.admin.v08.snapshot import V08GroupSnapshot
from consumerd.operate.migrate.offsets_move import MoveRequest, TranslationChoiceError, plan_move
from consumerd.wire.registry.dialect import Dialect
from tests.unit.operate.migrate.test_offsets_plan import OLD, Target


class Cluster(Target):
    """A cluster whose one broker is at `address`, with a group that committed offsets."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        committed = {TopicPartition.numbered("t", 0): 5}
        return V08GroupSnapshot(GroupView(group, offsets=committed), {"new": (0,)}, self.coordinator)

    async def addresses(self) -> dict[int, str]:
        return {1: self._address}


def request(**options: Any) -> MoveRequest:
    return MoveRequest("g", "g", renames={"t": "new"}, **options)


async def plan(source: Cluster, target: Target, **options: Any) -> Any:
    return await plan_move(source, target, request(**options))  # type: ignore[arg-type]


async def test_keeps_numbers_within_one_cluster() -> None:
    (move,) = (await plan(Cluster("a:1"), Cluster("a:1"))).moves
    assert move.change.after == 5


async def test_requires_a_choice_between_two_clusters() -> None:
    with pytest.raises(TranslationChoiceError, match="no broker in common"):
        await plan(Cluster("a:1"), Cluster("b:1"))
    (move,) = (await plan(Cluster("a:1"), Cluster("b:1"), translate=False)).moves
    assert move.change.after == 5


async def test_rejects_same_numbers_for_byte_positions() -> None:
    class Old(Cluster):
        dialect = Dialect.V07

        async def snapshot(self, group: str) -> Any:
            return V07GroupSnapshot(GroupView(group, offsets={OLD[0]: 5}), {})

    with pytest.raises(TranslationChoiceError, match="byte positions"):
        await plan(Old("a:1"), Cluster("a:1"), translate=False)
