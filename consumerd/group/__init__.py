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
from consumerd.group.assignors import Spelling
from consumerd.group.membership import Member
from consumerd.group.membership_tables import Hold, Link, MembershipSettings, Phase
from consumerd.group.rules import GroupRules, Topics, V07Rules, V08Rules

__all__ = [
    "Assignment",
    "Deal",
    "GroupRules",
    "Hold",
    "Link",
    "Member",
    "MembershipSettings",
    "Phase",
    "Spelling",
    "Stream",
    "Topics",
    "V07Rules",
    "V08Rules",
    "assign",
    "assign_topic",
    "deal",
    "events",
    "java_order",
    "partitions_of",
]
