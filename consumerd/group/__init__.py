"""Pure decisions of a consumer group: the owner of each partition, and the next actions of a member."""

from consumerd.group import events
from consumerd.group.assignment import (
    Assignment,
    Stream,
    TopicAssignment,
    assign,
    assign_topic,
    java_order,
    partitions_of,
    topic_assignment,
)
from consumerd.group.assignors import Spelling
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_tables import Hold, Link, MembershipSettings, Phase
from consumerd.group.rules import GroupRules, Topics, V07Rules, V08Rules

__all__ = [
    "Assignment",
    "GroupRules",
    "Hold",
    "Link",
    "MembershipSettings",
    "Phase",
    "Spelling",
    "Stream",
    "TopicAssignment",
    "Topics",
    "V07Rules",
    "V08Rules",
    "ZooKeeperMember",
    "assign",
    "assign_topic",
    "events",
    "java_order",
    "partitions_of",
    "topic_assignment",
]
