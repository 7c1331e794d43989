"""Pure decisions of a consumer group: who owns what, and what a member does next."""

from consumerd.group import events
from consumerd.group.assignment import Assignment, Stream, assign, assign_topic, java_order, partitions_of
from consumerd.group.membership import Member
from consumerd.group.membership_settings import MembershipSettings
from consumerd.group.membership_tables import Hold, Link, Phase

__all__ = [
    "Assignment",
    "Hold",
    "Link",
    "Member",
    "MembershipSettings",
    "Phase",
    "Stream",
    "assign",
    "assign_topic",
    "events",
    "java_order",
    "partitions_of",
]
