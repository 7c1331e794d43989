"""Leaving an old cluster (ring 1): comparing the copied messages with the original ones, and replaying archives.

In: two clusters, or an archive and a cluster. Out: the messages that differ, and translated offsets.

Files in reading order: verify, message_source, archive_source, cluster_source, ranges, findings, offsets_plan,
offsets_translation, restore, archived_topics, restored_log, restored_topics, restored_offsets.
"""
