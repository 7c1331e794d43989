"""A model of a broker that coordinates one group, as Kafka does it: generations, and both of its patiences.

Strategy: the states and answers of the broker's own group coordinator for the consumer protocol, without I/O. A session
timeout drops a silent member, but for one whose join or sync is still waiting; a rebalance waits for the longest
rebalance timeout of the members and then continues without those that did not join. What survives a change of
coordinator is what brokers write to their log: the generation as its leader assigned it; timers then restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from consumerd.wire.v08.error_codes import ErrorCode


class Surroundings(Protocol):
    """Time, and a receiver of events: `tests.simulation.kafka_broker.SimulatedKafka`."""

    def after(self, delay: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call `delay` seconds from now."""

    def note(self, who: str, what: object) -> None:
        """Remember a happening."""


class GroupState(Enum):
    """Of the group."""

    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Rules:
    """In what brokers of different ages differ."""

    #: JoinGroup version 0: the rebalance timeout is the session timeout.
    one_timeout: bool = False
    #: Version 4 and later: a new member gets its id first.
    id_first: bool = True
    #: Since 2.x a heartbeat that comes before the sync does not report a rebalance.
    quiet_completing: bool = True


@dataclass(slots=True)
class _Member:
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[tuple[str, bytes], ...]
    joining: Any = None
    syncing: Any = None
    assignment: bytes = b""
    #: The number of the timer that counts.
    timer: int = 0


@dataclass(slots=True)
class _Kept:
    """The messages in the log."""

    generation: int = 0
    leader: str = ""
    members: dict[str, tuple[float, float, tuple[tuple[str, bytes], ...], bytes]] = field(default_factory=dict)


class Coordinator:
    """One group, whichever broker coordinates it at the time.

    Each request takes `reply`, which is called once with an error code and the fields of the answer, perhaps much
    later.
    """

    def __init__(self, world: Surroundings, rules: Rules) -> None:
        self._world = world
        self.rules = rules
        self.state = GroupState.EMPTY
        self.generation = 0
        self.leader = ""
        self.members: dict[str, _Member] = {}
        self._pending: set[str] = set()
        self._ids = 0
        self._timers = 0
        self._rebalance = 0
        self._kept = _Kept()
        self.up = True
        self.offsets: dict[Any, int] = {}

    # -- requests

    def join(
        self,
        member_id: str,
        session_timeout: float,
        rebalance_timeout: float,
        protocols: tuple[tuple[str, bytes], ...],
        reply: Any,
    ) -> None:
        """JoinGroup."""
        if member_id and member_id not in self.members and member_id not in self._pending:
            reply(ErrorCode.UNKNOWN_MEMBER_ID, {})
            return
        if not member_id:
            self._ids += 1
            member_id = f"m{self._ids}"
            if self.rules.id_first:
                self._pending.add(member_id)
                reply(ErrorCode.MEMBER_ID_REQUIRED, {"member_id": member_id})
                return
        patience = session_timeout if self.rules.one_timeout else rebalance_timeout
        member = self.members.get(member_id)
        if member is None:
            self._pending.discard(member_id)
            self.members[member_id] = member = _Member(session_timeout, patience, protocols, joining=reply)
            self._prepare()
            return
        changed = protocols != member.protocols
        member.session_timeout, member.rebalance_timeout = session_timeout, patience
        if self.state is GroupState.PREPARING or changed:
            member.protocols, member.joining = protocols, reply
            self._prepare()
        elif self.state is GroupState.STABLE and member_id == self.leader:
            member.joining = reply
            self._prepare()
        else:  # it missed the answer, or asks without a reason
            reply(0, self._joined(member_id))

    def sync(self, member_id: str, generation: int, assignments: tuple[tuple[str, bytes], ...], reply: Any) -> None:
        """SyncGroup."""
        member = self.members.get(member_id)
        if member is None:
            reply(ErrorCode.UNKNOWN_MEMBER_ID, {})
        elif generation != self.generation:
            reply(ErrorCode.ILLEGAL_GENERATION, {})
        elif self.state is GroupState.PREPARING:
            reply(ErrorCode.REBALANCE_IN_PROGRESS, {})
        elif self.state is GroupState.STABLE:
            self._renew(member_id)
            reply(0, {"assignment": member.assignment})
        else:
            member.syncing = reply
            if member_id == self.leader:
                self._deal(dict(assignments))

    def heartbeat(self, member_id: str, generation: int, reply: Any) -> None:
        """Heartbeat."""
        if error := self._stranger(member_id, generation):
            reply(error, {})
        elif self.state is GroupState.STABLE or (self.state is GroupState.COMPLETING and self.rules.quiet_completing):
            self._renew(member_id)
            reply(0, {})
        else:
            if self.state is GroupState.PREPARING:
                self._renew(member_id)
            reply(ErrorCode.REBALANCE_IN_PROGRESS, {})

    def leave(self, member_id: str, reply: Any) -> None:
        """LeaveGroup."""
        if member_id in self.members:
            self._drop(member_id)
            reply(0, {})
        else:
            self._pending.discard(member_id)
            reply(ErrorCode.UNKNOWN_MEMBER_ID, {})

    def commit(self, member_id: str, generation: int, offsets: dict[Any, int], reply: Any) -> None:
        """OffsetCommit; without a generation (-1) from a client that is not a member, while the group is empty."""
        if generation < 0 and not member_id and self.state is GroupState.EMPTY:
            self.offsets.update(offsets)
            reply(0, {})
        elif error := self._stranger(member_id, generation):
            reply(error, {})
        elif self.state is GroupState.COMPLETING:
            reply(ErrorCode.REBALANCE_IN_PROGRESS, {})
        else:
            self._renew(member_id)
            self.offsets.update(offsets)
            reply(0, {})

    def _stranger(self, member_id: str, generation: int) -> int:
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    # -- rebalances

    def _prepare(self) -> None:
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if member.syncing is not None:
                    self._answer(member, "syncing", ErrorCode.REBALANCE_IN_PROGRESS, {})
            self.state = GroupState.PREPARING
            self._rebalance += 1
            patience = max(member.rebalance_timeout for member in self.members.values())
            self._world.after(patience, self._out_of_patience, self._rebalance)
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if self.state is GroupState.PREPARING and all(each.joining is not None for each in self.members.values()):
            self._complete()

    def _out_of_patience(self, rebalance: int) -> None:
        if rebalance == self._rebalance and self.state is GroupState.PREPARING:
            self._world.note("coordinator", "goes on without those who did not come")
            self.members = {name: member for name, member in self.members.items() if member.joining is not None}
            self._complete()

    def _complete(self) -> None:
        self.generation += 1
        if not self.members:
            self.state, self.leader = GroupState.EMPTY, ""
            self._keep()
            return
        self.state = GroupState.COMPLETING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self._world.note("coordinator", f"generation {self.generation} of {sorted(self.members)}")
        for name, member in self.members.items():
            member.assignment = b""
            self._renew(name)
            self._answer(member, "joining", 0, self._joined(name))

    def _joined(self, member_id: str) -> dict[str, Any]:
        common = set.intersection(*({name for name, _ in each.protocols} for each in self.members.values()))
        protocol = next(name for name, _ in self.members[self.leader].protocols if name in common)
        leads = member_id == self.leader
        return {
            "generation": self.generation,
            "member_id": member_id,
            "protocol": protocol,
            "leads": leads,
            "members": tuple((name, dict(each.protocols)[protocol]) for name, each in self.members.items())
            if leads
            else (),
        }

    def _deal(self, assignments: dict[str, bytes]) -> None:
        self.state = GroupState.STABLE
        for name, member in self.members.items():
            member.assignment = assignments.get(name, b"")
        self._keep()
        for name, member in self.members.items():
            self._renew(name)
            if member.syncing is not None:
                self._answer(member, "syncing", 0, {"assignment": member.assignment})

    def _answer(self, member: _Member, which: str, code: int, fields: dict[str, Any]) -> None:
        reply = getattr(member, which)
        setattr(member, which, None)
        reply(code, fields)

    # -- sessions

    def _renew(self, member_id: str) -> None:
        member = self.members[member_id]
        self._timers += 1
        member.timer = self._timers
        self._world.after(member.session_timeout, self._silent, member_id, member.timer)

    def _silent(self, member_id: str, timer: int) -> None:
        member = self.members.get(member_id)
        if member is None or member.timer != timer or not self.up:
            return
        if member.joining is None and member.syncing is None:
            self._world.note("coordinator", f"drops {member_id}, which is silent")
            self._drop(member_id)

    def _drop(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        for which in ("joining", "syncing"):
            if getattr(member, which) is not None:
                self._answer(member, which, ErrorCode.UNKNOWN_MEMBER_ID, {})
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined()
        elif self.members:
            self._prepare()
        else:
            self._complete()

    # -- another coordinator

    def _keep(self) -> None:
        self._kept = _Kept(
            self.generation,
            self.leader,
            {
                name: (each.session_timeout, each.rebalance_timeout, each.protocols, each.assignment)
                for name, each in self.members.items()
            },
        )

    def go_down(self) -> None:
        """Everything that was not written is lost; waiting requests are never answered."""
        self.up = False
        self._rebalance += 1
        self._pending.clear()
        self.members.clear()

    def come_up(self) -> None:
        """As the log says."""
        kept = self._kept
        self.up = True
        self.generation, self.leader = kept.generation, kept.leader
        self.members = {
            name: _Member(session, patience, protocols, assignment=assignment)
            for name, (session, patience, protocols, assignment) in kept.members.items()
        }
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        for name in self.members:
            self._renew(name)
