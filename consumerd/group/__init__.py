"""Pure decisions of a consumer group: who owns what, and what a member does next."""

from consumerd.group.assignment import Assignment, Stream, assign, assign_topic, java_order, partitions_of

__all__ = ["Assignment", "Stream", "assign", "assign_topic", "java_order", "partitions_of"]
