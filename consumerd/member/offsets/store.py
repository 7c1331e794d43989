"""Offsets in ZooKeeper, as Kafka 0.7 keeps them, fenced against former owners of a partition.

Strategy. Two things are proven by each commit, by ZooKeeper itself and not by a look before it:

- No other process has written since we read the offset node: the write names the node's version, as it was read after
  the claim and as each of our writes has raised it since. A late commit, after the next owner has written its own, is
  refused, in any state of the owner nodes (they all look alike: version 0).
- The partition is owned: a check of the owner node in the same multi (`consumerd.member.offsets.guards`), on the very
  session that claimed it.

The offsets go out as multis of about a hundred operations each, up to 48 in flight at once. A refusal names one
operation, and the multi is sent again after mending:

    the guard's operation failed   all owner nodes of the multi are looked at: not ours means lost, and it is left out
    set(offset): version differs   another process wrote: the node is read. If we still own the partition, the offset of
    create(offset): node exists    a former owner (a resumed process) is overwritten, but never by a smaller one
    the node's ACL denies it       reported as refused, and left out: the next commit tries again
    set(offset): no node           create instead, parents made before
    anything else                  leave it out, send the rest, raise in the end

A committed offset goes back by one thing alone: a seek of its owner, which shows as a position below the one that was
written or loaded last (as with a recreated log). It wins over all that was written before it, also over a
larger offset of another process that its own commit is the first to meet. The node decides what is before and after, as
its order is the only one that both sides share: until the seek has been written, it overwrites the stored offset; a
larger offset that another process writes over the seek is later, and stays until our position has passed it.

The node holds a number alone, for JVM members. That the number is of a former topic of the name shows in its last
write, which is older than the topic's node; but a commit may be on its way while the topic is created again. So the
first commit of a position in the new topic creates the node again, and a node that is older than the topic's and was
written soon after that counts as written by such a commit. If a JVM member wrote it, messages are repeated.

Whether another process wrote a node since some moment (`trace`) follows from its version, too: each of our writes names
the version that we know, so of all that we sent without a reply at most one was carried out. The node has the version
and the offset that we know, or the next version and one of the offsets sent: everything else is another's doing.

So one bad partition never keeps the others from being committed, and every try settles something. Servers without multi
(before 3.4) get single writes with the version, as many at once.

Nodes: `/consumers/G/offsets/T/B-P` persistent, decimal text; parents persistent with null data (golden notes, 4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import Check, Create, Delete, NodeStat, Operation, SetData, ZooKeeper
from consumerd.member.offsets.guards import Guard, GuardFailure, OwnedGuard, VacantGuard
from consumerd.net.zk.errors import BadVersion, MultiFailed, NoAuth, NodeExists, NoNode, SessionChanged
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import offset_path, offsets_path, partition_path, topic_broker_path
from consumerd.wire.registry.values import format_offset, parse_offset

if TYPE_CHECKING:
    from consumerd.member.offsets.metadata import OffsetNotes
    from consumerd.net.cluster.topic_nodes import TopicNodes

    #: What is to be noted of offsets.
    Notes = Mapping[TopicPartition, OffsetNotes]

log = structlog.get_logger(__name__)

#: Partitions per multi, of two operations each: a hundred operations took 12 ms where single writes took 30.
PARTITIONS_PER_MULTI = 50
#: Offset nodes whose versions one multi checks.
CHECKS_PER_MULTI = 100
#: Number of repairs of one partition's write before its error is final.
PATIENCE = 4
#: Milliseconds within which a commit for a former topic arrives: longer than two usual session timeouts.
LATE_COMMIT_MS: Final = 30_000
#: Nothing is to be noted.
NO_NOTES: Final[Notes] = MappingProxyType({})


class CommitResult(NamedTuple):
    """The result of a commit; together the three are all given partitions."""

    committed: frozenset[TopicPartition]
    #: Their owner node is gone or not ours: nothing was written, and their fetchers must stop.
    lost: frozenset[TopicPartition]
    #: The store does not let us write these; the others are not affected.
    refused: Mapping[TopicPartition, BrokerError | ZooKeeperError] = MappingProxyType({})


class OffsetStore(Protocol):
    """Committed offsets of a group, in any store; see `ZooKeeperOffsetStore` for the guarantees.

    A store that keeps nothing of an offset but its number needs `load` and `commit` only.
    """

    #: Seconds for which an offset is sure to be kept if it is not written again; None: for ever.
    keeps_for: float | None = None

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Load the stored offsets, without partitions that have none. Later commits build on these."""
        ...

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """As `load`, at any time, without effect on later commits."""
        return await self.load(partitions)

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those that others have written since our last access, as far as the store can tell."""
        return frozenset()

    async def is_new(self, partition: TopicPartition) -> bool:
        """Return whether the group consumed the topic before this partition of it, which has no offset, was there."""
        return False

    def log(self, partition: TopicPartition) -> LogId:
        """Return what was stored of the log that the offset is of which `load` returned last."""
        return UNKNOWN_LOG

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store the positions, with what is to be noted of them as far as the store can keep it."""
        ...

    def trace(self, partition: TopicPartition) -> Trace | None:
        """Return what is known of the stored offset; None if the store cannot tell who wrote it, or if there is none.

        A trace from before a `load` and one from after it tell whether others have written (`Trace.leads_to`).
        """
        return None


class Trace(NamedTuple):
    """An offset node at one moment, as far as this process knows."""

    #: None: there is no node.
    version: int | None
    stored: int | None
    #: Offsets sent on top of that version; one of them may have been written.
    sent: frozenset[int] = frozenset()
    #: Another process wrote it since it was loaded, and we have not overwritten that.
    foreign: bool = False

    def leads_to(self, later: Trace) -> bool:
        """Whether the node became `later`, which was read from it, by our own writes alone."""
        unchanged = (later.version, later.stored) == (self.version, self.stored)
        ours = later.version == _following(self.version) and later.stored in self.sent
        return not self.foreign and (unchanged or ours)


def _following(version: int | None) -> int:
    """Return the version of a node after our write."""
    return 0 if version is None else version + 1


class _Step(NamedTuple):
    """One operation of a multi."""

    partition: TopicPartition
    operation: Operation
    #: Whether it is the guard's, or the write itself.
    guards: bool


@dataclass(slots=True)
class _Known:
    """The offset node of a partition, as far as we know."""

    #: None: there is no node.
    version: int | None
    #: The offset of our last attempt to write, or the loaded one.
    last: int | None = None
    #: Whether we went back to before `last` ourselves, and have not written that yet.
    going_back: bool = False
    #: The offsets sent since a write was last confirmed: they identify a write whose reply was lost.
    sent: set[int] = field(default_factory=set)
    #: The larger offset that another process wrote: no smaller one overwrites it.
    floor: int | None = None
    #: The offset that the node of this version contains; None if it is not a number, or not known.
    stored: int | None = None
    #: Whether another process wrote it since the load. Our next write ends that.
    foreign: bool = False

    def trace(self) -> Trace | None:
        if self.version is None and not self.sent:
            return None
        return Trace(self.version, self.stored, frozenset(self.sent), self.foreign)


class _OffsetNodes:
    """The offset nodes of a group, the known state of each, and the guard that knows their owners."""

    def __init__(self, zk: ZooKeeper, group: str, guard: Guard, topics: TopicNodes | None) -> None:
        self.zk = zk
        self.guard = guard
        self._topics = topics
        self.known: dict[TopicPartition, _Known] = {}
        #: The last traces of nodes whose partitions were lost.
        self.ended: dict[TopicPartition, Trace | None] = {}
        self.group = group
        #: Of the offsets that were read.
        self.stats: dict[TopicPartition, NodeStat] = {}
        #: What `log` returned: no fetch has compared positions of these logs with a topic.
        self.assumed: dict[TopicPartition, int | None] = {}
        #: The creations of their topics, as far as there is a topic.
        self._created: dict[str, tuple[int, int | None]] = {}
        #: Topics whose node for offsets has been seen.
        self.parents: set[str] = set()

    def path(self, partition: TopicPartition) -> str:
        return offset_path(self.group, partition)

    async def prepare(self, partitions: Iterable[TopicPartition]) -> None:
        """Create the parents of nodes that are to be created, unless they have been seen already."""
        creating = {each.topic for each in partitions if self.known[each].version is None}
        await read_all(sorted(creating - self.parents), self.ensure_parent)

    async def ensure_parent(self, topic: str) -> None:
        await self.zk.ensure(offsets_path(self.group, topic))
        self.parents.add(topic)

    async def read(self, partition: TopicPartition) -> tuple[bytes | None, int | None]:
        """Read data and version; the version of a missing node is None."""
        try:
            data, stat = await self.zk.get(self.path(partition))
        except NoNode:
            return None, None
        self.stats[partition] = stat
        return data, stat.version

    async def look_at_topics(self, names: set[str]) -> None:
        """Read when topics were created, after the offsets in them were read."""
        if (topics := self._topics) is None:
            return

        async def look(topic: str) -> None:
            self._created.pop(topic, None)
            with suppress(BrokerError):  # it is being deleted: the fetcher waits for the next one, and compares
                self._created[topic] = await topics.creation(topic)

        await read_all(sorted(names), look)

    def log(self, partition: TopicPartition) -> LogId:
        """The log of the offset that was read: a topic that is created after it was written is another one."""
        stat = self.stats.get(partition)
        if stat is None:
            return UNKNOWN_LOG
        zxid, made = self._created.get(partition.topic, (0, None))
        since = made is not None and stat.created_zxid < zxid < stat.modified_zxid
        late = since and made is not None and stat.modified_ms - made <= LATE_COMMIT_MS
        self.assumed[partition] = assumed = stat.created_zxid if late else stat.modified_zxid
        return LogId(zxid=assumed)

    def renew(self, partition: TopicPartition, version: int | None) -> _Known:
        """Return the state of a node that was read again; a write of ours that is still on its way may follow."""
        self.ended.pop(partition, None)
        former = self.known.get(partition)
        return _Known(version, sent=former.sent if former is not None and former.version == version else set())

    async def versions(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
        stats = await read_all(partitions, lambda each: self.zk.exists(self.path(each)))
        return {each: None if stat is None else stat.version for each, stat in stats.items()}

    def require(self, session_id: int) -> None:
        if self.zk.session_id != session_id:
            raise SessionChanged(session_id, self.zk.session_id)


class ZooKeeperOffsetStore(OffsetStore):
    """Reads and writes the committed offsets of one group. `guard`: by default that the partition is claimed.

    Commits are not made at the same time as other commits or `load` of the same partitions.
    """

    def __init__(self, zk: ZooKeeper, group: str, guard: Guard | None = None, topics: TopicNodes | None = None) -> None:
        self._zk = zk
        self._nodes = _OffsetNodes(zk, group, guard or OwnedGuard(zk, group), topics)

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Load the stored offsets, without partitions that have none. From now on commits build on these.

        Raises RegistryError for a node that does not hold a number, and the errors of the session.
        """
        wanted = list(partitions)
        topics = {each.topic for each in wanted}
        nodes: dict[TopicPartition, tuple[bytes | None, int | None]] = {}

        async def read() -> None:
            nodes.update(await read_all(wanted, self._nodes.read))

        # What was read beside the offsets is kept with its watch, which would have fired before an offset that is
        # younger than a change arrived: the second look makes a request only then.
        looks: list[Callable[[], Awaitable[None]]] = [read, partial(self._nodes.look_at_topics, topics)]
        await read_all(looks, lambda look: look())
        await self._nodes.look_at_topics(topics)
        found: dict[TopicPartition, int] = {}
        for partition, (data, version) in nodes.items():
            known = self._nodes.known[partition] = self._nodes.renew(partition, version)
            if version is not None:
                known.last = known.stored = found[partition] = self._parse(partition, data)
        return found

    def log(self, partition: TopicPartition) -> LogId:
        """Return the log by the transaction that wrote the offset: the node holds a number alone, for JVM members."""
        return self._nodes.log(partition)

    async def is_new(self, partition: TopicPartition) -> bool:
        """Return whether the partition was created after the group's first offset of the topic.

        Since 0.8 it has a node. In 0.7 its broker's node has the number of partitions, and is written when that changes
        or the broker starts.
        """
        topic, broker, number = partition
        began = await self._zk.exists(offsets_path(self._nodes.group, topic))
        if began is None:
            return False
        self._nodes.parents.add(topic)
        path = partition_path(topic, number) if broker == NO_BROKER else topic_broker_path(topic, broker)
        there = await self._zk.exists(path)
        return there is not None and there.modified_zxid > began.created_zxid

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        nodes = await read_all(partitions, self._nodes.read)
        return {each: self._parse(each, data) for each, (data, version) in nodes.items() if version is not None}

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those whose node others have written since our last access. Raises the errors of the session.

        Versions are checked by multis, a hundred in one request; each node is only read if one is refused, or if there
        is no node (which ZooKeeper cannot check).
        """
        known = self._nodes.known
        found = await self._nodes.versions(await self._doubtful([each for each in partitions if each in known]))
        return frozenset(each for each, version in found.items() if each in known and version != known[each].version)

    async def _doubtful(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return those whose version differs from the known one, or cannot be checked."""
        checks, doubtful = [], []
        for partition in partitions:
            version = self._nodes.known[partition].version
            if version is None or not self._zk.has_multi:
                doubtful.append(partition)
            else:
                checks.append((partition, Check(self._nodes.path(partition), version)))

        async def check(start: int) -> None:
            some = checks[start : start + CHECKS_PER_MULTI]
            try:
                await self._zk.multi([operation for _, operation in some])
            except MultiFailed:
                doubtful.extend(partition for partition, _ in some)

        await read_all(range(0, len(checks), CHECKS_PER_MULTI), check)
        return doubtful

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store the positions of partitions claimed on session `session_id`. Of `notes` nothing can be kept; they tell
        which positions are of a topic that is younger than the offset's node.

        Raises SessionChanged when that session is over, NotConnected or ConnectionLost when ZooKeeper cannot be
        reached (after ConnectionLost some may be stored; committing again is safe), and ZooKeeper's error if an offset
        node cannot be written for another reason than its ACL; all others are stored in that case.
        """
        nodes = self._nodes
        nodes.require(session_id)
        unknown = await nodes.versions([partition for partition in positions if partition not in nodes.known])
        nodes.known.update({partition: _Known(version, foreign=True) for partition, version in unknown.items()})
        await nodes.prepare(positions)
        rest = iter(sorted(positions.items()))
        commits = []
        while some := dict(islice(rest, PARTITIONS_PER_MULTI if self._zk.has_multi else 1)):
            commits.append(_Commit(nodes, some, session_id, notes))
        await read_all(commits, lambda commit: commit.run())
        if any(commit.lost for commit in commits):
            nodes.require(session_id)
        for commit in commits:
            for cause in commit.refused.values():
                raise cause
        return CommitResult(
            frozenset().union(*(commit.committed for commit in commits)),
            frozenset().union(*(commit.lost for commit in commits)),
            {partition: cause for commit in commits for partition, cause in commit.denied.items()},
        )

    def trace(self, partition: TopicPartition) -> Trace | None:
        known = self._nodes.known.get(partition)
        return known.trace() if known is not None else self._nodes.ended.get(partition)

    def _parse(self, partition: TopicPartition, data: bytes | None) -> int:
        try:
            return parse_offset(data)
        except RegistryError as error:
            path = self._nodes.path(partition)
            raise RegistryError(f"{error}; write the right one to {path}, or delete that node") from error


class UnclaimedZooKeeperOffsetStore(ZooKeeperOffsetStore):
    """For partitions assigned without owner nodes; one that has an owner node is not ours."""

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        super().__init__(zk, group, VacantGuard(zk, group))

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """As the base class; `session_id` is that of the ownership, and has no effect here."""
        return await super().commit(positions, session_id=self._zk.session_id)


class _Commit:
    """The partitions of one multi, on their way to being committed, lost or refused."""

    def __init__(
        self, nodes: _OffsetNodes, positions: dict[TopicPartition, int], session_id: int, notes: Notes
    ) -> None:
        self._nodes = nodes
        self._zk = nodes.zk
        self._guard = nodes.guard
        self._known = nodes.known
        self._session_id = session_id
        self._tries: dict[TopicPartition, int] = dict.fromkeys(positions, 0)
        self._open = dict(positions)
        #: The creations of the topics that the positions are of.
        self._topics = {each: noted.log.zxid for each, noted in notes.items() if noted.log.zxid is not None}
        self.committed: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()
        self.refused: dict[TopicPartition, ZooKeeperError] = {}
        #: Those whose own node may not be written.
        self.denied: dict[TopicPartition, NoAuth] = {}

    async def run(self) -> None:
        for partition in await self._guard.find_lost(list(self._open), self._session_id):
            self._lose(partition)
        for partition, position in list(self._open.items()):
            self._respect_floor(partition, position)
        send = self._send_together if self._zk.has_multi else self._send_one
        while self._open:
            await send()

    def _respect_floor(self, partition: TopicPartition, position: int) -> None:
        """Write nothing below what others have written, except by a seek back."""
        known = self._known[partition]
        if known.last is not None and position < known.last:
            known.going_back = True
            known.floor = None
        known.last = position
        if known.floor is not None and position < known.floor:
            self._settle(partition)

    def _settle(self, partition: TopicPartition) -> None:
        del self._open[partition]
        self.committed.add(partition)

    # -- sending

    async def _send_together(self) -> None:
        """Send one multi with all open partitions; after a refusal that was mended, some of them are still open."""
        steps = [step for partition in self._open for step in self._steps(partition)]
        self._note_sent()
        try:
            await self._zk.multi([step.operation for step in steps], session_id=self._session_id)
        except MultiFailed as failure:
            await self._mend(steps[failure.index], failure.cause)
        else:
            self._note_written()

    async def _send_one(self) -> None:
        """Send without multi, for one partition."""
        (partition,) = self._open
        self._nodes.require(self._session_id)
        self._note_sent()
        (write,) = self._write(partition)
        assert not isinstance(write, Delete)  # which takes a multi
        try:
            if isinstance(write, Create):
                await self._zk.create(write.path, write.data)
            else:
                await self._zk.set(write.path, write.data, version=write.version)
        except (BadVersion, NodeExists, NoAuth, NoNode) as cause:
            await self._mend(_Step(partition, write, guards=False), cause)
        else:
            self._note_written()

    def _steps(self, partition: TopicPartition) -> list[_Step]:
        around = self._guard.operations(partition)
        return [
            *(_Step(partition, operation, guards=True) for operation in around.before),
            *(_Step(partition, operation, guards=False) for operation in self._write(partition)),
            *(_Step(partition, operation, guards=True) for operation in around.after),
        ]

    def _write(self, partition: TopicPartition) -> tuple[Create | Delete | SetData, ...]:
        path, data = self._nodes.path(partition), format_offset(self._open[partition]).encode()
        version = self._known[partition].version
        if version is None:
            return (Create(path, data),)
        return (
            (Delete(path, version), Create(path, data))
            if self._is_older(partition)
            else (SetData(path, data, version),)
        )

    def _is_older(self, partition: TopicPartition) -> bool:
        """Whether the node is older than the topic that the position is of: then it is created again."""
        stat, topic = self._nodes.stats.get(partition), self._topics.get(partition)
        if not self._zk.has_multi or stat is None or topic in {None, self._nodes.assumed.get(partition)}:
            return False
        return topic is not None and stat.created_zxid < topic

    def _note_sent(self) -> None:
        for partition, position in self._open.items():
            self._known[partition].sent.add(position)

    def _note_written(self) -> None:
        for partition in list(self._open):
            known = self._known[partition]
            if self._is_older(partition):
                known.version = None  # it was deleted, and created again
                del self._nodes.stats[partition]
            known.version, known.stored = _following(known.version), self._open[partition]
            known.going_back = known.foreign = False
            known.sent.clear()
            self._settle(partition)

    # -- mending

    async def _mend(self, failed: _Step, cause: ZooKeeperError) -> None:
        partition = failed.partition
        self._tries[partition] += 1
        if failed.guards:
            failure = await self._guard.resolve(partition, self._session_id, cause)
            if failure is GuardFailure.LOST:
                self._lose(partition)
                await self._lose_what_is_not_held(list(self._open))
            elif failure is GuardFailure.REFUSED or self._tries[partition] > PATIENCE:
                self._refuse(partition, cause)
        elif self._is_older(partition) and not isinstance(cause, BadVersion | NodeExists | NoNode):
            del self._nodes.stats[partition]  # it may not be deleted or created: it is written as it is
        elif isinstance(cause, NoAuth):
            del self._open[partition]
            self.denied[partition] = cause
        elif self._tries[partition] > PATIENCE or not isinstance(cause, BadVersion | NodeExists | NoNode):
            self._refuse(partition, cause)
        else:
            await self._read_again()

    async def _lose_what_is_not_held(self, partitions: list[TopicPartition]) -> None:
        """Find partitions that are not held: often several are lost at once, so all are read in one round trip."""
        held = await read_all(partitions, partial(self._guard.holds, session_id=self._session_id))
        for partition, ours in held.items():
            if not ours:
                self._lose(partition)

    async def _read_again(self) -> None:
        """Read all nodes of this multi: if one is not as we knew it, others may not be, either."""
        nodes = await read_all(self._open, self._nodes.read)
        missing = {each.topic for each, (_, version) in nodes.items() if version is None}
        await read_all(sorted(missing), self._nodes.ensure_parent)
        await self._lose_what_is_not_held(
            [each for each, (_, version) in nodes.items() if self._is_news(each, version)]
        )
        for partition, (data, version) in nodes.items():
            if partition in self._open:
                self._take_in(partition, data, version)

    def _is_news(self, partition: TopicPartition, version: int | None) -> bool:
        return version is not None and version != self._known[partition].version

    def _take_in(self, partition: TopicPartition, data: bytes | None, version: int | None) -> None:
        """Continue from the present data of the node, for a partition that is ours."""
        known, position = self._known[partition], self._open[partition]
        if not self._is_news(partition, version):
            known.foreign = known.foreign or version != known.version  # it was deleted
            known.version = version
            return
        try:
            stored = parse_offset(data)
        except RegistryError:
            stored = None  # not an offset: overwritten
        before, known.version, known.stored = known.trace(), version, stored
        known.foreign = before is None or not before.leads_to(Trace(version, stored))
        ours = stored in known.sent
        known.sent.clear()  # all of it named a former version: it cannot be carried out any more
        if stored == position:
            known.going_back = False
            self._settle(partition)  # our own write, whose reply was lost
        elif not ours:
            log.warning("offset_written_by_another", partition=str(partition), offset=stored, position=position)
            if stored is not None and stored > position and not known.going_back:
                known.floor = stored
                self._settle(partition)

    def _lose(self, partition: TopicPartition) -> None:
        del self._open[partition]
        if (known := self._known.pop(partition, None)) is not None:
            self._nodes.ended[partition] = known.trace()
        self.lost.add(partition)

    def _refuse(self, partition: TopicPartition, cause: ZooKeeperError) -> None:
        del self._open[partition]
        self.refused[partition] = cause
