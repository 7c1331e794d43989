"""The requests of a member to its group's coordinator: each action of the machine is answered by an event.

Strategy: one connection of the member's own, because a coordinator holds JoinGroup back until all members have joined,
and would hold later requests on a shared connection, too. Each method is one attempt and always returns an event: a
transient error is `Failed`, after which the coordinator is looked up again if it may have moved, and a permanent one
is `Refused`, with the whole sentence kept in `refusal`. Refused credentials and permissions are permanent until the
coordinator has accepted a request: later they were taken away, and may be renewed or given back at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.member.offsets.kafka_store import MOVED
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError, BrokerRefusedError, topic_error
from consumerd.net.client.topic_configs import group_session_timeout
from consumerd.wire import WireError
from consumerd.wire.v08.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from consumerd.wire.v08.error_codes import ErrorCode, error_info, is_unexplained
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.schema import NO_UUID, Api, RequestT, ResponseT
from consumerd.wire.v08.subscription import PROTOCOL_TYPE

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        ConsumerGroupHeartbeatRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
    )

log = structlog.get_logger(__name__)

#: Versions since which fields matter.
_REBALANCE_TIMEOUT_SINCE: Final = 1
_LEAVE_MEMBERS_SINCE: Final = 3
#: The first version of each API for static members.
_INSTANCE_SINCE: Final = {JOIN_GROUP.key: 5, SYNC_GROUP.key: 3, HEARTBEAT.key: 3}
#: The first version of ConsumerGroupHeartbeat with patterns.
_PATTERN_SINCE: Final = 1
#: Seconds that a join or sync may take beyond the time that the coordinator waits.
_GRACE: Final = 5.0
#: Reasons of one trouble that are logged.
_MOST_REASONS: Final = 5
#: Version of JoinGroup since which a new member gets its id before it has to wait.
_ID_FIRST_SINCE: Final = 4
#: Longest session timeout that brokers of 0.9 grant by default, in seconds (group.max.session.timeout.ms).
_OLD_LONGEST: Final = 30.0
#: Seconds that leaving may take: with all attempts less than a service manager's limit for a stop.
_LEAVE_LIMIT: Final = 3.0
#: Rebalance timeout of JVM members by default, in seconds (max.poll.interval.ms): a join waits for the slowest.
_OTHERS_TAKE: Final = 300.0
#: Topics of the brokers themselves; those before 0.10 do not say which they are.
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_REMEDIES: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "set group.session_timeout within the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members share no assignor with group.assignors, or are not consumers",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows",
    ErrorCode.FENCED_INSTANCE_ID: "another process joined with this group.instance_id; give each its own",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the client lacks the permission Read on the group",
}
#: What to do about brokers without the consumer protocol.
NOT_OFFERED: Final = (
    'set group.protocol = "classic", or enable the consumer protocol at the brokers '
    "(Kafka 4.0 and later, feature group.version)"
)


class GroupRequests:
    """The requests of one member of `group`, by the classic protocol. `forget` ends the connection."""

    _remedies: ClassVar[Mapping[int, str]] = _REMEDIES

    def __init__(self, client: ClusterClient, group: str, settings: CoordinationSettings) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        #: Whether the coordinator has accepted a request of ours.
        self._accepted = False
        #: The reasons that were logged since the coordinator last answered.
        self._troubles: set[str] = set()
        self._session_timeout = settings.session_timeout
        #: The last permanent error.
        self.refusal: BrokerError | None = None
        #: Subscribed topics that we may not see, with the reason, as of the last answer.
        self.denied_topics: dict[str, str] = {}

    # -- requests

    async def join(self, action: e.Join) -> e.Event:
        """Join; wait until all members have joined."""

        async def ask(channel: Channel) -> e.Event:
            settings = self._settings
            body: JoinGroupRequest = {
                "group_id": self._group,
                "session_timeout_ms": int(self._session_timeout * 1000),
                "rebalance_timeout_ms": int(settings.rebalance_timeout * 1000),
                "member_id": action.member_id,
                "group_instance_id": settings.instance_id,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": name, "metadata": metadata} for name, metadata in action.protocols],
            }
            patience = max(settings.rebalance_timeout, settings.session_timeout)
            if not action.member_id and channel.versions.pick(JOIN_GROUP) < _ID_FIRST_SINCE:
                # A second request would leave a member behind that is assigned partitions and never sends a heartbeat.
                patience = max(patience, _OTHERS_TAKE)
            patience += _GRACE
            version, answer = await self._call(channel, JOIN_GROUP, body, patience)
            old = version < _REBALANCE_TIMEOUT_SINCE
            if answer["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT and old and self._shorten():
                return e.Failed(action.ticket)
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, JOIN_GROUP, answer["member_id"])
            return e.Joined(
                action.ticket,
                answer["generation_id"],
                answer["member_id"],
                answer["protocol_name"] or "",
                answer["leader"] == answer["member_id"],
                tuple(
                    e.GroupMember(each["member_id"], each["metadata"], each.get("group_instance_id"))
                    for each in answer["members"]
                ),
                self._session_timeout if old else settings.rebalance_timeout,
                answer.get("skip_assignment", False),
            )

        return await self._attempt(action.ticket, ask)

    async def sync(self, action: e.Sync) -> e.Event:
        """Send the assignment as the leader, or wait until the leader has sent it; return it."""

        async def ask(channel: Channel) -> e.Event:
            body: SyncGroupRequest = {
                "group_id": self._group,
                "generation_id": action.generation,
                "member_id": action.member_id,
                "group_instance_id": self._settings.instance_id,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": action.protocol,
                "assignments": [{"member_id": member, "assignment": data} for member, data in action.assignments],
            }
            patience = max(self._settings.rebalance_timeout, self._settings.session_timeout) + _GRACE
            _, answer = await self._call(channel, SYNC_GROUP, body, patience)
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, SYNC_GROUP)
            return e.Synced(action.ticket, answer["assignment"])

        return await self._attempt(action.ticket, ask)

    async def beat(self, action: e.Heartbeat) -> e.Event:
        """Send one heartbeat. It times out early, so that there is time for the next one within the session timeout."""

        async def ask(channel: Channel) -> e.Event:
            body: HeartbeatRequest = {
                "group_id": self._group,
                "generation_id": action.generation,
                "member_id": action.member_id,
                "group_instance_id": self._settings.instance_id,
            }
            _, answer = await self._call(channel, HEARTBEAT, body, self._settings.session_timeout)
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, HEARTBEAT)
            return e.Confirmed(action.ticket)

        return await self._attempt(action.ticket, ask, self._settings.session_timeout / 3)

    async def leave(self, action: e.Leave) -> e.Event:
        """Leave the group."""
        limit = self._leave_limit

        async def ask(channel: Channel) -> e.Event:
            body: LeaveGroupRequest = {"group_id": self._group}
            if channel.versions.pick(LEAVE_GROUP) < _LEAVE_MEMBERS_SINCE:
                body["member_id"] = action.member_id
            else:
                body["members"] = [{"member_id": action.member_id, "group_instance_id": None}]
            _, answer = await self._call(channel, LEAVE_GROUP, body, limit)
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, LEAVE_GROUP)
            return e.Left(action.ticket)

        return await self._attempt(action.ticket, ask, limit)

    @property
    def _leave_limit(self) -> float:
        return min(_LEAVE_LIMIT, self._settings.session_timeout / 3)

    async def read_topics(self, action: e.ReadTopics) -> e.Event:
        """Read the number of partitions of topics. Internal topics are only included when they are named."""
        wanted = action.topics
        try:
            metadata = await self._client.refresh(wanted)
        except (BrokerError, WireError) as error:
            self._note(reason_of(error))
            return e.Failed(action.ticket)
        if not metadata.nodes:  # a broker that just started
            return e.Failed(action.ticket)
        codes = {name: metadata.topics[name].error for name in wanted or () if name in metadata.topics}
        self.denied_topics = {
            name: str(topic_error(code, f"the brokers do not show the topic {name!r}", name))
            for name, code in codes.items()
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }
        counts = {
            name: len(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.partitions
            and (name in wanted if wanted is not None else not topic.internal and name not in INTERNAL)
        }
        ids = {topic.id: name for name, topic in metadata.topics.items() if name in counts and topic.id != NO_UUID}
        return e.TopicsRead(action.ticket, counts, ids, frozenset(self.denied_topics))

    @property
    def actions(self) -> Mapping[type[e.Action], Callable[[Any], Coroutine[None, None, e.Event]]]:
        """The actions of the machine that are requests, each with its method."""
        return {
            e.Join: self.join,
            e.Sync: self.sync,
            e.Heartbeat: self.beat,
            e.Leave: self.leave,
            e.ReadTopics: self.read_topics,
        }

    # -- the connection

    def forget(self) -> None:
        """Drop the connection: the requests on it are not waited for any more."""
        if self._channel is not None:
            self._channel.abort()
            self._channel = None

    async def _open(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.closed:
                self._channel = await self._client.private_channel(await self._client.coordinator(self._group))
            return self._channel

    async def _call(
        self, channel: Channel, api: Api[RequestT, ResponseT], body: RequestT, patience: float
    ) -> tuple[int, ResponseT]:
        static = self._settings.instance_id is not None
        version = channel.versions.pick(api, at_least=_INSTANCE_SINCE.get(api.key, 0) if static else 0)
        return version, await channel.call(api, body, version=version, timeout=patience)

    async def _attempt(
        self, ticket: int, ask: Callable[[Channel], Awaitable[e.Event]], limit: float | None = None
    ) -> e.Event:
        try:
            channel = await self._open()
            async with asyncio.timeout(limit):
                event = await ask(channel)
        except BrokerRefusedError as error:  # of FIND_COORDINATOR
            refused = self._refused(ticket, error.code, None)
            if isinstance(refused, e.Refused):
                self.refusal = error
            return refused
        except UnsupportedApiError as error:
            self.refusal = self._unsupported(error)
            return e.Refused(ticket, ErrorCode.UNSUPPORTED_VERSION)
        except AuthenticationError as error:
            if self._accepted:
                return self._lost(ticket, str(error))
            self.refusal = error
            return e.Refused(ticket, ErrorCode.SASL_AUTHENTICATION_FAILED)
        except TimeoutError:
            return self._lost(ticket, f"no answer within {limit:g} s")
        except (BrokerError, WireError) as error:
            return self._lost(ticket, str(error))
        if not isinstance(event, e.Failed):
            self._troubles.clear()
            self._accepted = self._accepted or not isinstance(event, e.Refused)
        return event

    def _shorten(self) -> bool:
        """Request the session timeout of old brokers from now on; return False if it was not longer.

        The lease ends with it: without a rebalance timeout, `Joined` reports the session timeout in its place.
        """
        if self._session_timeout <= _OLD_LONGEST:
            return False
        log.info(
            "session_timeout_shortened",
            group=self._group,
            reason=f"the broker refuses {self._session_timeout:g} s (group.max.session.timeout.ms)",
            session_timeout=_OLD_LONGEST,
        )
        self._session_timeout = _OLD_LONGEST
        return True

    def _lost(self, ticket: int, reason: str) -> e.Failed:
        self.forget()
        self._client.forget_coordinator(self._group)
        self._note(reason)
        return e.Failed(ticket)

    def _refused(self, ticket: int, code: int, api: Api[Any, Any] | None, member_id: str = "") -> e.Event:
        info = error_info(code)
        denied = code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        # Of what is unexplained the broker's log has the reason.
        if info.retriable or is_unexplained(code) or (denied and self._accepted):
            if code in MOVED:
                self.forget()
                self._client.forget_coordinator(self._group)
            self._note(f"{info}; {_REMEDIES[code]}" if denied else str(info))
            return e.Failed(ticket)
        if api is not None:
            what = f"cannot be a member of group {self._group!r} ({api.name})"
            self.refusal = BrokerRefusedError(what, info, self._remedies.get(code))
        return e.Refused(ticket, code, member_id)

    def _unsupported(self, error: UnsupportedApiError) -> BrokerError:
        """What is said about brokers that do not have an API."""
        return error

    def _note(self, reason: str) -> None:
        """Log each error once: a coordinator may be unavailable for long, and the first reason need not be the last."""
        if reason not in self._troubles and len(self._troubles) < _MOST_REASONS:
            self._troubles.add(reason)
            log.warning("coordinator_unavailable", group=self._group, reason=reason)


class ConsumerGroupRequests(GroupRequests):
    """The same by the consumer protocol (KIP-848): all are heartbeats but the reading of topics."""

    _remedies: ClassVar[Mapping[int, str]] = {
        ErrorCode.GROUP_ID_NOT_FOUND: (
            "the group is of another type, or its classic members do not allow an upgrade (the brokers' "
            "group.consumer.migration.policy, and an assignor in group.consumer.assignors): see `consumerd group show`"
        ),
        ErrorCode.UNSUPPORTED_VERSION: NOT_OFFERED,
        ErrorCode.UNSUPPORTED_ASSIGNOR: "set group.remote_assignor to one of the brokers' group.consumer.assignors",
        ErrorCode.INVALID_REGULAR_EXPRESSION: "with group.broker_filter, group.whitelist must be a pattern of RE2",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.consumer.max.size allows",
        ErrorCode.FENCED_INSTANCE_ID: _REMEDIES[ErrorCode.FENCED_INSTANCE_ID],
        ErrorCode.GROUP_AUTHORIZATION_FAILED: _REMEDIES[ErrorCode.GROUP_AUTHORIZATION_FAILED],
    }

    @property
    def actions(self) -> Mapping[type[e.Action], Callable[[Any], Coroutine[None, None, e.Event]]]:
        return {
            e.ConsumerHeartbeat: self.consumer_beat,
            e.Leave: self.leave,
            e.ReadTopics: self.read_topics,
        }

    async def consumer_beat(self, action: e.ConsumerHeartbeat) -> e.Event:
        """Send one heartbeat, with the epoch 0 to join. It times out early, as `beat`."""
        settings = self._settings

        async def ask(channel: Channel) -> e.Event:
            body: ConsumerGroupHeartbeatRequest = {
                "group_id": self._group,
                "member_id": action.member_id,
                "member_epoch": action.epoch,
                "instance_id": settings.instance_id,
                "rack_id": self._client.settings.rack or None,
                "rebalance_timeout_ms": int(settings.rebalance_timeout * 1000),
                "subscribed_topic_names": action.topics,
                "server_assignor": settings.remote_assignor,
                "topic_partitions": [
                    {"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in action.owned.items()
                ],
            }
            least = 0
            if action.pattern is not None:
                least, body["subscribed_topic_regex"] = _PATTERN_SINCE, action.pattern
            version = channel.versions.pick(CONSUMER_GROUP_HEARTBEAT, at_least=least)
            session_timeout = None if action.epoch else await self._coordinators_timeout(channel)
            answer = await channel.call(
                CONSUMER_GROUP_HEARTBEAT, body, version=version, timeout=settings.session_timeout
            )
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, CONSUMER_GROUP_HEARTBEAT)
            assignment = answer["assignment"]
            return e.Assigned(
                action.ticket,
                answer["member_id"] or "",
                answer["member_epoch"],
                answer["heartbeat_interval_ms"] / 1000,
                None
                if assignment is None
                else {each["topic_id"]: tuple(each["partitions"]) for each in assignment["topic_partitions"]},
                session_timeout,
            )

        return await self._attempt(action.ticket, ask, settings.session_timeout / 3)

    async def _coordinators_timeout(self, channel: Channel) -> float | None:
        """The coordinator's session timeout in seconds; None where it cannot be read, which is logged."""
        ours = self._settings.session_timeout
        try:
            theirs = await group_session_timeout(channel, self._group)
        except (UnsupportedApiError, BrokerRefusedError) as error:
            log.info("session_timeout_unknown", group=self._group, session_timeout=ours, reason=reason_of(error))
            return None
        if theirs is not None and theirs < ours:
            reason = f"the group's consumer.session.timeout.ms is shorter than group.session_timeout ({ours:g} s)"
            log.info("session_timeout_shortened", group=self._group, reason=reason, session_timeout=theirs)
        return theirs

    async def leave(self, action: e.Leave) -> e.Event:
        """Leave the group, for a while with the epoch -2."""

        async def ask(channel: Channel) -> e.Event:
            body: ConsumerGroupHeartbeatRequest = {
                "group_id": self._group,
                "member_id": action.member_id,
                "member_epoch": action.epoch,
                "instance_id": self._settings.instance_id,
            }
            _, answer = await self._call(channel, CONSUMER_GROUP_HEARTBEAT, body, self._leave_limit)
            if code := answer["error_code"]:
                return self._refused(action.ticket, code, CONSUMER_GROUP_HEARTBEAT)
            return e.Left(action.ticket)

        return await self._attempt(action.ticket, ask, self._leave_limit)

    def _unsupported(self, error: UnsupportedApiError) -> BrokerError:
        return BrokerError(f"cannot be a member of group {self._group!r}: {error}; {NOT_OFFERED}.")
