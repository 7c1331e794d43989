"""What the leader of a generation does: read the subscriptions of the members, and assign the partitions.

Strategy: pure functions. Hostile input stops here: metadata of a member that cannot be read count as no subscription,
with a warning, so that one broken member does not stop the group. Everybody gets an assignment, be it an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumerd.group.assignors import range_shares, roundrobin_shares
from consumerd.group.coordinated_tables import ASSIGNORS
from consumerd.wire.errors import WireError
from consumerd.wire.v08.subscription import MemberAssignment, decode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.group.coordinated_events import GroupMember


class MemberSubscriptions(NamedTuple):
    """What the members of a generation subscribe to: member id -> topics; group instance ids of static members."""

    members: Mapping[str, tuple[str, ...]]
    instances: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that any member subscribes to, sorted."""
        return tuple(sorted({topic for topics in self.members.values() for topic in topics}))


#: Of a member that does not lead.
NO_SUBSCRIPTIONS = MemberSubscriptions({}, {})


def read_subscriptions(members: Iterable[GroupMember]) -> MemberSubscriptions:
    """The subscriptions of the members that JoinGroup lists for the leader."""
    wanted: dict[str, tuple[str, ...]] = {}
    instances: dict[str, str] = {}
    warnings = []
    for member in members:
        try:
            wanted[member.member_id] = decode_metadata(member.metadata).topics
        except WireError as error:
            wanted[member.member_id] = ()
            warnings.append(f"member {member.member_id} is assigned nothing: {error}")
        if member.instance_id is not None:
            instances[member.member_id] = member.instance_id
    return MemberSubscriptions(wanted, instances, tuple(warnings))


def deal_shares(
    protocol: str, partitions: Mapping[str, int], subscriptions: MemberSubscriptions
) -> tuple[tuple[str, bytes], ...]:
    """The assignment of each member, encoded. `partitions`: topic -> how many. `protocol`: one of ASSIGNORS."""
    assert protocol in ASSIGNORS  # the coordinator picks among those that we offered, which the caller checks
    assign = range_shares if protocol == "range" else roundrobin_shares
    shares = assign(partitions, subscriptions.members, subscriptions.instances)
    return tuple(
        (member, MemberAssignment(tuple((topic, tuple(numbers)) for topic, numbers in share.items())).encode())
        for member, share in shares.items()
    )
