"""Offsets in ZooKeeper, as Kafka 0.7 keeps them, written so that only the owner of a partition can write.

Strategy. Before a commit every owner node is looked at: it counts only if it is an ephemeral of the session that the
caller claimed with. Then the offsets go out as multis of check(owner node) + set(offset node), about a hundred
operations each, all in flight at once and bound to that session: when the session or an owner node is gone, ZooKeeper
itself refuses. A refusal names one operation, and the multi is sent again after mending that one:

    the guard's operation failed  the partition is lost: leave it out (or mend it: `consumerd.offsets.guards`)
    set(offset): no node          first commit of this partition: create instead, parents made before
    create(offset): node exists   somebody was faster: set instead
    anything else                 leave it out, send the rest, raise in the end

So one bad partition never keeps the others from being committed, and every try settles something.

Nodes: `/consumers/G/offsets/T/B-P` persistent, decimal text; parents persistent with null data (golden notes, 4).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from consumerd.offsets.guards import Owned, Vacant, Verdict
from consumerd.offsets.together import all_of, each_of
from consumerd.ports import Create, SetData
from consumerd.registry.errors import RegistryError
from consumerd.registry.paths import offset_path, offsets_path
from consumerd.registry.values import format_offset, parse_offset
from consumerd.zk.errors import MultiFailed, NodeExists, NoNode, SessionChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.errors import ZooKeeperError
    from consumerd.offsets.guards import Bracket, Guard
    from consumerd.partition import TopicPartition
    from consumerd.ports import NodeStat, Operation, ZooKeeper

#: Two operations each: a hundred per request took 12 ms where single writes took 30.
PARTITIONS_PER_MULTI = 50
#: How often one partition may change between set and create before its error is believed.
PATIENCE = 4


class CommitResult(NamedTuple):
    """What became of a commit; together the two sets are all partitions that were given."""

    committed: frozenset[TopicPartition]
    #: Their owner node is gone or not ours: nothing was written, and their fetchers must stop.
    lost: frozenset[TopicPartition]


class _Step(NamedTuple):
    """One operation of a multi."""

    partition: TopicPartition
    operation: Operation
    #: The guard's, or the write itself.
    guards: bool


class ZooKeeperOffsetStore:
    """Reads and writes the committed offsets of one group. `guard`: by default that the partition was claimed."""

    #: Nodes stay.
    keeps_for: float | None = None

    def __init__(self, zk: ZooKeeper, group: str, guard: Guard | None = None) -> None:
        self._zk = zk
        self._group = group
        self._guard = guard or Owned(zk, group)

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stored offsets; partitions without one are absent from the answer.

        Raises RegistryError for a node that holds no number, and the errors of the session.
        """
        wanted = list(partitions)
        nodes = await each_of(wanted, self._read_offset)
        return {partition: offset for partition, offset in zip(wanted, nodes, strict=True) if offset is not None}

    async def commit(self, positions: Mapping[TopicPartition, int], *, session_id: int) -> CommitResult:
        """Store the positions of partitions claimed on session `session_id`.

        Raises SessionChanged when that session is over, NotConnected or ConnectionLost when ZooKeeper cannot be
        reached (after ConnectionLost some may be stored; committing again is safe), and what ZooKeeper says where an
        offset node cannot be written; all others are stored in that case.
        """
        self._require(session_id)
        rest = iter(sorted(positions.items()))
        chunks = []
        while some := dict(islice(rest, PARTITIONS_PER_MULTI)):
            chunks.append(_Chunk(self._zk, self._group, self._guard, some, session_id))
        await all_of([chunk.commit for chunk in chunks])
        self._require(session_id, if_lost=any(chunk.lost for chunk in chunks))
        for chunk in chunks:
            for cause in chunk.refused.values():
                raise cause
        return CommitResult(
            frozenset().union(*(chunk.committed for chunk in chunks)),
            frozenset().union(*(chunk.lost for chunk in chunks)),
        )

    def _require(self, session_id: int, *, if_lost: bool = True) -> None:
        if if_lost and self._zk.session_id != session_id:
            raise SessionChanged(session_id, self._zk.session_id)

    async def _read_offset(self, partition: TopicPartition) -> int | None:
        path = offset_path(self._group, partition)
        try:
            data, _ = await self._zk.get(path)
        except NoNode:
            return None
        try:
            return parse_offset(data)
        except RegistryError as error:
            raise RegistryError(f"{error}; write the right one to {path}, or delete that node") from error


class UnclaimedZooKeeperOffsetStore(ZooKeeperOffsetStore):
    """For partitions that are ours by other means than an owner node; while somebody else has one, they are not."""

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        super().__init__(zk, group, Vacant(zk, group))

    async def commit(self, positions: Mapping[TopicPartition, int], *, session_id: int) -> CommitResult:
        """As the other; `session_id` is of what the partitions rest on, and says nothing here."""
        return await super().commit(positions, session_id=self._zk.session_id)


class _Chunk:
    """The partitions of one multi, on their way to being committed, lost or refused."""

    def __init__(
        self, zk: ZooKeeper, group: str, guard: Guard, positions: dict[TopicPartition, int], session_id: int
    ) -> None:
        self._zk = zk
        self._group = group
        self._guard = guard
        self._positions = positions
        self._session_id = session_id
        self._brackets: dict[TopicPartition, Bracket] = {}
        self._create: set[TopicPartition] = set()
        self._tries: dict[TopicPartition, int] = dict.fromkeys(positions, 0)
        self.committed: frozenset[TopicPartition] = frozenset()
        self.lost: set[TopicPartition] = set()
        self.refused: dict[TopicPartition, ZooKeeperError] = {}

    async def commit(self) -> None:
        await self._ask_guard()
        while self._brackets:
            placed = [step for partition in self._brackets for step in self._steps(partition)]
            try:
                await self._zk.multi([step.operation for step in placed], session_id=self._session_id)
            except MultiFailed as failure:
                await self._mend(placed[failure.index], failure.cause)
                continue
            self.committed = frozenset(self._brackets)
            return

    def _steps(self, partition: TopicPartition) -> list[_Step]:
        bracket = self._brackets[partition]
        path, data = offset_path(self._group, partition), format_offset(self._positions[partition]).encode()
        write = Create(path, data) if partition in self._create else SetData(path, data)
        return [
            *(_Step(partition, operation, guards=True) for operation in bracket.before),
            _Step(partition, write, guards=False),
            *(_Step(partition, operation, guards=True) for operation in bracket.after),
        ]

    async def _ask_guard(self) -> None:
        partitions = list(self._positions)
        brackets = await each_of(partitions, lambda each: self._guard.bracket(each, self._session_id))
        for partition, bracket in zip(partitions, brackets, strict=True):
            if bracket is None:
                self.lost.add(partition)
            else:
                self._brackets[partition] = bracket

    async def _offset_stat(self, partition: TopicPartition) -> NodeStat | None:
        return await self._zk.exists(offset_path(self._group, partition))

    async def _mend(self, failed: _Step, cause: ZooKeeperError) -> None:
        partition = failed.partition
        self._tries[partition] += 1
        if failed.guards:
            await self._mend_guard(partition, cause)
        elif self._tries[partition] > PATIENCE:
            self._refuse(partition, cause)
        elif isinstance(cause, NodeExists):
            self._create.discard(partition)
        elif isinstance(cause, NoNode):
            await self._prepare_creation(partition)
        else:
            self._refuse(partition, cause)

    async def _mend_guard(self, partition: TopicPartition, cause: ZooKeeperError) -> None:
        verdict = await self._guard.mend(partition, cause)
        if verdict is Verdict.LOST:
            self._drop(partition)
            self.lost.add(partition)
        elif verdict is Verdict.REFUSED or self._tries[partition] > PATIENCE:
            self._refuse(partition, cause)

    async def _prepare_creation(self, partition: TopicPartition) -> None:
        """Find all missing offset nodes of the chunk at once: a new group's first commit has nothing else."""
        order = list(self._brackets)
        stats = await each_of(order, self._offset_stat)
        missing = {each for each, stat in zip(order, stats, strict=True) if stat is None}
        await each_of(
            sorted({each.topic for each in missing | {partition}}),
            lambda topic: self._zk.ensure(offsets_path(self._group, topic)),
        )
        self._create = missing

    def _refuse(self, partition: TopicPartition, cause: ZooKeeperError) -> None:
        self._drop(partition)
        self.refused[partition] = cause

    def _drop(self, partition: TopicPartition) -> None:
        del self._brackets[partition]
        self._create.discard(partition)
