"""A model of ZooKeeper for one group: sessions, the id and owner nodes, the topics, one-shot watches.

Strategy: the state is plain dictionaries and every method is one atomic operation at the server; latency, loss and
disconnection belong to the clients. Sessions that are being pinged have no deadline; when a client falls silent its
deadline is set, and unless it comes back before, all its nodes go in one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from consumerd.group import V07Rules
from consumerd.wire.registry import RegistryError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from consumerd.base.partition import TopicPartition
    from consumerd.group import Assignment, GroupRules
    from consumerd.wire.registry import Subscription
    from tests.support.simulator.world import World

#: The target of a watch: "ids", "topics", ("id", consumer) or ("owner", partition).
WatchKey = object


class Watcher(Protocol):
    """The receiver of a watch event."""

    name: str

    def watch_fired(self, session_id: int) -> None:
        """Something that was read changed."""
        ...


@dataclass(slots=True)
class ServerSession:
    """A session as the server sees it."""

    session_id: int
    alive: bool = True
    #: When it ends unless something is heard of the client; None while it is heard of.
    deadline: float | None = None


@dataclass(slots=True)
class Server:
    """The nodes of one group and of the topics. `rules`: the dialect of all members."""

    world: World
    session_timeout: float
    rules: GroupRules = field(default_factory=V07Rules)
    sessions: dict[int, ServerSession] = field(default_factory=dict)
    #: consumer id -> (session, text)
    ids: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: partition -> (session, value)
    owners: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    #: topic -> broker -> the numbers of its partitions
    topics: dict[str, Mapping[int, Collection[int]]] = field(default_factory=dict)
    #: (session, partition) and (session, consumer id) whose nodes were deleted by path, until made again.
    robbed: set[tuple[int, object]] = field(default_factory=set)
    down: bool = False
    _up_at: float = 0.0
    _watches: dict[WatchKey, dict[Watcher, int]] = field(default_factory=dict)

    # -- sessions

    def open(self) -> int:
        """A new session."""
        session = ServerSession(len(self.sessions) + 1)
        self.sessions[session.session_id] = session
        return session.session_id

    def silence(self, session_id: int) -> None:
        """The client is not heard of any more; servers expire sessions in coarse steps, never early."""
        session = self.sessions[session_id]
        if session.alive and session.deadline is None:
            self._set_deadline(session, self.world.now + self.session_timeout + self.world.random.uniform(0, 0.5))

    def heard(self, session_id: int) -> bool:
        """The client is heard of again. False when its session is over."""
        session = self.sessions[session_id]
        session.deadline = None
        return session.alive

    def alive(self, session_id: int) -> bool:
        """Whether a session is not over."""
        return self.sessions[session_id].alive

    def close(self, session_id: int) -> None:
        """End a session: its nodes go together."""
        session = self.sessions[session_id]
        if not session.alive:
            return
        session.alive = False
        self.world.note("server", f"session {session_id} ends")
        for consumer_id in [c for c, (owner, _) in self.ids.items() if owner == session_id]:
            self.delete_id(consumer_id, session_id)
        for partition in [p for p, (owner, _) in self.owners.items() if owner == session_id]:
            self.delete_owner(partition, session_id)

    def go_down(self, seconds: float) -> None:
        """No service for a while; no session can expire meanwhile, and all have their full time afterwards."""
        self.down = True
        self._up_at = max(self._up_at, self.world.now + seconds)
        self.world.at(self._up_at, self._come_up)

    def _come_up(self) -> None:
        if self.world.now < self._up_at:
            return
        self.down = False
        for session in self.sessions.values():
            if session.alive and session.deadline is not None:
                self._set_deadline(session, self.world.now + self.session_timeout)

    def _set_deadline(self, session: ServerSession, deadline: float) -> None:
        session.deadline = deadline
        self.world.at(deadline, self._expire, session, deadline)

    def _expire(self, session: ServerSession, deadline: float) -> None:
        if session.deadline == deadline and not self.down:
            self.close(session.session_id)

    # -- nodes

    def create_id(self, consumer_id: str, session_id: int, text: str) -> bool:
        """Whether the node now stands under this session."""
        if consumer_id not in self.ids:
            self.ids[consumer_id] = (session_id, text)
            self.robbed.discard((session_id, consumer_id))
            self._fire("ids")
            self._fire(("id", consumer_id))
        return self.ids[consumer_id][0] == session_id

    def delete_id(self, consumer_id: str, session_id: int) -> None:
        """Delete the node if this session owns it."""
        if self.ids.get(consumer_id, (0, ""))[0] == session_id:
            del self.ids[consumer_id]
            self._fire("ids")
            self._fire(("id", consumer_id))

    def nudge(self) -> None:
        """An id comes and goes."""
        self._fire("ids")

    def create_owner(self, partition: TopicPartition, session_id: int, value: str) -> bool:
        """Whether the node now stands with this value under this session."""
        if partition not in self.owners:
            self.owners[partition] = (session_id, value)
            self.robbed.discard((session_id, partition))
            self._fire(("owner", partition))
        return self.owners[partition] == (session_id, value)

    def delete_owner(self, partition: TopicPartition, session_id: int) -> None:
        """Delete the node if this session owns it."""
        if self.owners.get(partition, (0, ""))[0] == session_id:
            del self.owners[partition]
            self._fire(("owner", partition))

    def rob_id(self, consumer_id: str) -> None:
        """Delete an id node by path."""
        self.robbed.add((self.ids[consumer_id][0], consumer_id))
        self.world.note("somebody", f"deletes the id {consumer_id}")
        self.delete_id(consumer_id, self.ids[consumer_id][0])

    def rob_owner(self, partition: TopicPartition) -> None:
        """Delete an owner node by path, as a confused JVM member does."""
        owner = self.owners[partition][0]
        self.robbed.add((owner, partition))
        self.world.note("somebody", f"deletes the owner node of {partition}")
        self.delete_owner(partition, owner)

    def set_topic(self, topic: str, brokers: dict[int, int]) -> None:
        """Change how many partitions brokers have of a topic; no brokers remove it."""
        if brokers:
            self.topics[topic] = {broker: range(count) for broker, count in brokers.items()}
        else:
            self.topics.pop(topic, None)
        self._fire("topics")

    # -- watches

    def watch(self, key: WatchKey, watcher: Watcher, session_id: int) -> None:
        """Tell `watcher` once, of the next change."""
        self._watches.setdefault(key, {})[watcher] = session_id

    def _fire(self, key: WatchKey) -> None:
        for watcher, session_id in self._watches.pop(key, {}).items():
            watcher.watch_fired(session_id)

    # -- what should be

    def formula(self) -> Assignment:
        """The owner of each partition, as every member can compute it from the nodes."""
        members: dict[str, Subscription] = {}
        for consumer_id, (_, text) in self.ids.items():
            try:
                members[consumer_id] = self.rules.parse(text)
            except RegistryError:
                continue
        return self.rules.owners(self.topics, members)
