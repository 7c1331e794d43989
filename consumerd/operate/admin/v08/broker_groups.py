"""Groups that a broker coordinates (0.9 and later), and offsets that it keeps (0.8.2 and later), seen from outside.

Strategy: a group is requested from its coordinator, the list of groups from every broker. A live group accepts
commits of its members alone, and that is the fence: the coordinator protects live members, and no force gets around
it. Brokers before 0.10.2 do not list the committed offsets of a group; they are queried for every partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.retrying import UnansweredAttempts
from consumerd.net.cluster.groups import GroupView, LiveMember
from consumerd.net.cluster.view_v08 import PartitionView, V08Topics
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.errors import RefusedError
from consumerd.operate.admin.removal import GroupRemains
from consumerd.operate.admin.snapshot import named_topics
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot, epochs_of, numbers_of, texts_of
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from consumerd.wire.errors import WireError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.v08.apis import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_FETCH,
)
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.subscription import PROTOCOL_TYPE, decode_assignment, decode_metadata

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponseAssignment,
        ConsumerGroupDescribeResponseGroup,
        ConsumerGroupDescribeResponseMember,
        DeleteGroupsRequest,
        DescribeGroupsRequest,
        DescribeGroupsResponseGroup,
        DescribeGroupsResponseMember,
        ListGroupsRequest,
        ListGroupsResponseGroup,
    )


# Groups of the consumer protocol (KIP-848, brokers of 4.x): from their coordinator's description to a view.
#
# Strategy: the coordinator itself assigns, and each member moves from its current to its target assignment at its own
# pace, so that a group may rebalance while most of it continues. The current assignment counts as owned. Patterns are
# matched here, as the coordinator does against whole names, because it does not return the topics that match.

#: States in which members move to a new assignment.
MOVING = frozenset({"Assigning", "Reconciling"})


def has_patterns(described: ConsumerGroupDescribeResponseGroup) -> bool:
    """Whether a member subscribes by a pattern, so that the names of all topics are needed."""
    return any(each["subscribed_topic_regex"] for each in described["members"])


def add_members(view: GroupView, described: ConsumerGroupDescribeResponseGroup, topics: Iterable[str]) -> list[str]:
    """Fill in members and owners. `topics`: the names that patterns may match. The members that are yet to move."""
    names = list(topics)
    moving = []
    for each in described["members"]:
        name = each["member_id"]
        view.members[name] = _member(view, name, each, names)
        has, target = _partitions(each["assignment"]), _partitions(each["target_assignment"])
        if has != target:
            moving.append(name)
        for partition in has:
            view.owners[partition] = name, 0
    return moving


def _member(
    view: GroupView, name: str, described: ConsumerGroupDescribeResponseMember, topics: list[str]
) -> LiveMember:
    pattern = described["subscribed_topic_regex"]
    wanted = sorted(described["subscribed_topic_names"])
    text = ",".join([*wanted, *([pattern] if pattern else [])])
    try:
        if pattern:
            wanted += _matching(pattern, topics)
        return LiveMember(text, StaticSubscription(dict.fromkeys(wanted, 1)))
    except RegistryError as error:
        view.problems.append(f"member {name}: {error}")
        return LiveMember(text, None)


def _matching(pattern: str, topics: list[str]) -> list[str]:
    """The names that match a pattern. Raises RegistryError for an unsupported pattern."""
    found = TopicFilter(FilterKind.WHITELIST, pattern)
    if found.text != pattern:  # commas, blanks and quotes mean something else in filters of old consumers
        raise RegistryError(f"the pattern {pattern!r} is not supported")
    return [topic for topic in topics if found.matches(topic)]


def _partitions(described: ConsumerGroupDescribeResponseAssignment) -> set[TopicPartition]:
    return {
        TopicPartition.numbered(each["topic_name"], number)
        for each in described["topic_partitions"]
        for number in each["partitions"]
    }


#: OFFSET_FETCH of everything that a group committed.
_ALL_OFFSETS: Final = 2
_GROUP_ID_NOT_FOUND: Final = 69
_UNSUPPORTED_VERSION: Final = 35
_NON_EMPTY_GROUP: Final = 68
_DEAD: Final = "Dead"
_ALL_GROUPS: Final[ListGroupsRequest] = {}


class _Description(NamedTuple):
    """What brokers return of a group: its description by one of two protocols, or its type if it is of another."""

    state: str = ""
    assignor: str = ""
    classic: DescribeGroupsResponseGroup | None = None
    consumer: ConsumerGroupDescribeResponseGroup | None = None
    type: str = ""


class BrokerGroups(V08GroupSource):
    """The groups of the cluster of `client`."""

    coordinator = CoordinatorKind.BROKER

    def __init__(self, client: ClusterClient) -> None:
        super().__init__(V08BrokerLogs(client))
        self.client = client
        #: Whether snapshots use the metadata of the last call of `names`, and not new ones for each.
        self.keeps_metadata = False

    async def names(self) -> list[str]:
        """The groups that some broker coordinates or keeps offsets of. Raises BrokerError."""
        metadata = await self.client.retrying("metadata", lambda: self.client.refresh(None))
        found = set()
        for node_id in metadata.nodes:

            async def ask(node_id: int = node_id) -> list[ListGroupsResponseGroup]:
                answer = await self.client.call_node(node_id, LIST_GROUPS, _ALL_GROUPS)
                if error := error_of(answer["error_code"], f"broker {node_id} lists no groups"):
                    raise error
                return answer["groups"]

            try:
                found |= {each["group_id"] for each in await self.client.retrying("list groups", ask)}
            except UnsupportedApiError as error:
                raise UnsupportedApiError(
                    f"{error}; consumers of Kafka 0.8 have their groups in ZooKeeper: give --zookeeper"
                ) from error
        return sorted(found)

    async def prepare(self, groups: Sequence[str]) -> None:
        """Look up the coordinators of the groups. Raises BrokerError."""
        await self.client.retrying("find coordinators", lambda: self.client.find_coordinators(groups))

    async def snapshot(self, group: str, *, brokers: bool = True) -> V08GroupSnapshot:
        described = await self._describe(group)
        view = GroupView(group)
        clients = {}
        for described_by in (described.classic, described.consumer):
            for each in () if described_by is None else described_by["members"]:
                clients[each["member_id"]] = f"{each['client_id']} at {each['client_host'].removeprefix('/')}"
        if (classic := described.classic) is not None:
            for member in classic["members"]:
                _add_member(view, classic["protocol_type"], member)
        moving = None
        if (consumer := described.consumer) is not None:
            moving = add_members(view, consumer, await self.topics() if has_patterns(consumer) else ())
        if described.type:
            view.problems.append(f"the group is of type {described.type!r}, whose members brokers do not describe")
        committed = await self._committed(group)
        view.offsets = {partition: committed[partition].offset for partition in sorted(committed)}
        if not view.members and not view.offsets and described.state in ("", _DEAD):
            raise NotFoundError(f"no broker knows a group {group!r}; see `consumerd group list`")
        named, _ = named_topics(view)
        return V08GroupSnapshot(
            view,
            numbers_of(await self.topics(named)),
            self.coordinator,
            described.assignor,
            moving,
            state=described.state,
            clients=clients,
            metadata=texts_of(committed),
            epochs=epochs_of(committed),
            group_type=described.type.lower(),
        )

    async def remains(self, group: str) -> GroupRemains:
        view = (await self.snapshot(group)).view
        if view.members:
            raise RefusedError(f"group {group!r} has {len(view.members)} members: stop them first")
        return GroupRemains(group, view.offsets)

    async def delete(self, remains: GroupRemains) -> None:
        """As of `GroupSource` (1.1 and later).

        An attempt without an answer is repeated; that the group does not exist any more is then its result. Raises
        NotFoundError, UnsupportedApiError, BrokerError.
        """
        group = remains.group
        unanswered = UnansweredAttempts()
        body: DeleteGroupsRequest = {"groups_names": [group]}

        async def attempt() -> None:
            await self.client.coordinator(group)  # outside: a lost answer to this request says nothing
            with unanswered:
                answer = await self.client.call_coordinator(group, DELETE_GROUPS, body)
                code = next((each["error_code"] for each in answer["results"]), _GROUP_ID_NOT_FOUND)
                if code == _GROUP_ID_NOT_FOUND:
                    if unanswered:
                        return
                    raise NotFoundError(f"no broker knows a group {group!r}; see `consumerd group list`")
                if code == _NON_EMPTY_GROUP:
                    raise RefusedError(f"group {group!r} has members; stop them first")
                if error := error_of(code, f"group {group!r} was not deleted"):
                    self.client.forget_coordinator(group)
                    raise error

        try:
            await self.client.retrying(f"delete group {group}", attempt)
        except UnsupportedApiError as error:
            raise UnsupportedApiError(
                f"{error}: brokers before 1.1 delete a group's offsets by themselves, offsets.retention.minutes after "
                "its last commit"
            ) from error

    async def _describe(self, group: str) -> _Description:
        """The coordinator's description of the group; empty where it coordinates none (0.8) or does not know it."""
        body: DescribeGroupsRequest = {"groups": [group]}

        async def ask() -> _Description:
            answer = await self.client.call_coordinator(group, DESCRIBE_GROUPS, body)
            found = next(iter(answer["groups"]), None)
            code = _GROUP_ID_NOT_FOUND if found is None else found["error_code"]
            # Brokers before 4.0 return "Dead" for a group of another type.
            if found is None or code == _GROUP_ID_NOT_FOUND or (not code and found["group_state"] == _DEAD):
                if (consumer := await self._of_consumers(group)) is not None:
                    return _Description(consumer["group_state"], consumer["assignor_name"], consumer=consumer)
                if found is None or code:
                    return await self._listed(group)
            if error := error_of(code, f"group {group!r} cannot be described", found.get("error_message")):
                self.client.forget_coordinator(group)
                raise error
            return _Description(found["group_state"], found["protocol_data"], found)

        try:
            return await self.client.retrying(f"group {group}", ask)
        except UnsupportedApiError:
            return _Description()

    async def _of_consumers(self, group: str) -> ConsumerGroupDescribeResponseGroup | None:
        """The description of a group of the consumer protocol; None for another type or old brokers."""
        body: ConsumerGroupDescribeRequest = {"group_ids": [group]}
        try:
            answer = await self.client.call_coordinator(group, CONSUMER_GROUP_DESCRIBE, body)
        except UnsupportedApiError:
            return None
        for found in answer["groups"]:
            code = found["error_code"]
            if code in (_GROUP_ID_NOT_FOUND, _UNSUPPORTED_VERSION):
                continue
            if error := error_of(code, f"group {group!r} cannot be described", found["error_message"]):
                self.client.forget_coordinator(group)
                raise error
            return found
        return None

    async def _listed(self, group: str) -> _Description:
        """The entry in the list of groups for one that cannot be described; empty without one."""
        answer = await self.client.call_coordinator(group, LIST_GROUPS, _ALL_GROUPS)
        for each in answer["groups"]:
            if each["group_id"] == group and (kind := each.get("group_type")):
                return _Description(each.get("group_state", ""), type=kind)
        return _Description()

    async def _committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        async def ask() -> Mapping[TopicPartition, CommittedOffset]:
            channel = await self.client.coordinator_channel(group)
            store = KafkaOffsetStore(self.client, group)
            wanted: list[TopicPartition] | None = None
            if not channel.versions.has(OFFSET_FETCH, _ALL_OFFSETS):
                topics = await self.topics()
                wanted = [TopicPartition.numbered(topic, number) for topic in topics for number in topics[topic]]
            return await store.read(wanted)

        return await self.client.retrying(f"offsets of group {group}", ask)

    async def addresses(self) -> dict[int, str]:
        """The advertised addresses of the live brokers. Raises BrokerError."""
        metadata = await self.client.retrying("metadata", lambda: self.client.refresh(None))
        return {node.id: f"{node.host}:{node.port}" for node in metadata.nodes.values()}

    async def topics(self, names: Iterable[str] | None = None) -> V08Topics:
        """The topics by metadata. Raises BrokerError."""
        metadata = self.client.metadata
        if not self.keeps_metadata:
            metadata = await self.client.retrying("metadata", lambda: self.client.refresh(None))
        wanted = None if names is None else set(names)
        return {
            topic: {
                number: PartitionView(part.replicas, part.leader, part.isr)
                for number, part in sorted(found.partitions.items())
            }
            for topic, found in sorted(metadata.topics.items())
            if wanted is None or topic in wanted
        }

    async def topic_changes(self) -> TopicsByRequests:
        """As of `GroupSource`."""
        return TopicsByRequests(self.client)

    async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
        """Commit the changes outside of the group's membership; `force` has no effect here.

        Raises RefusedError where the group lives, BrokerError; offsets that were written before stay, and the sentence
        has their number.
        """
        del force
        moving = [change for change in changes if change.moves]
        written = 0
        for group in dict.fromkeys(change.group for change in moving):
            wanted = {change.partition: change.after for change in moving if change.group == group}
            positions = {partition: after for partition, after in wanted.items() if after is not None}
            attempt = partial(KafkaOffsetStore(self.client, group).commit, positions, session_id=0)
            try:
                result = await self.client.retrying(f"offsets of group {group}", attempt)
            except BrokerError as error:
                if not written:
                    raise
                raise BrokerError(f"{error}{_so_far(written, len(moving))}") from error
            written += len(positions) - len(result.lost) - len(result.refused)
            so_far = _so_far(written, len(moving)) if written else ""
            if result.lost:
                raise RefusedError(
                    f"the coordinator of group {group!r} accepts offsets only from its members while it has any "
                    f"({len(result.lost)} of {len(positions)} were rejected): stop them first{so_far}"
                )
            for refusal in result.refused.values():
                raise BrokerError(f"{refusal}{so_far}") if so_far else refusal
        return len(moving)


def _so_far(written: int, wanted: int) -> str:
    return f"; {written} of {wanted} offsets were written: correct this, and run the command again for the rest"


def _add_member(view: GroupView, protocol_type: str, described: DescribeGroupsResponseMember) -> None:
    name = described["member_id"]
    if protocol_type != PROTOCOL_TYPE:
        view.members[name] = LiveMember(protocol_type, None)
        view.problems.append(f"member {name} has the protocol type {protocol_type!r}, whose assignments cannot be read")
        return
    metadata, assignment = described["member_metadata"], described["member_assignment"]
    try:
        # While the group rebalances, a broker returns neither the subscriptions nor the assignments of its members.
        topics = decode_metadata(metadata).topics if metadata else ()
        given = decode_assignment(assignment).partitions
        subscription = StaticSubscription(dict.fromkeys(topics, 1))
    except (WireError, RegistryError) as error:
        view.members[name] = LiveMember("", None)
        view.problems.append(f"member {name}: {error}")
        return
    view.members[name] = LiveMember(",".join(sorted(topics)), subscription if metadata else None)
    for topic, numbers in given:
        for number in numbers:
            view.owners[TopicPartition.numbered(topic, number)] = name, 0
