"""Pure decisions of a consumer group: who owns what, and what a member does next."""

from consumerd.group import events
from consumerd.group.assignment import (
    Assignment,
    Deal,
    Stream,
    assign,
    assign_topic,
    deal,
    java_order,
    partitions_of,
)
from consumerd.group.membership import Member
from consumerd.group.membership_settings import MembershipSettings
from consumerd.group.membership_tables import Hold, Link, Phase

__all__ = [
    "Assignment",
    "Deal",
    "Hold",
    "Link",
    "Member",
    "MembershipSettings",
    "Phase",
    "Stream",
    "assign",
    "assign_topic",
    "deal",
    "events",
    "java_order",
    "partitions_of",
]
