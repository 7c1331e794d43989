"""Logs of Kafka 0.7, on live brokers and in segment files: planned in the driver, read by executors.

Files in reading order: boundaries, client, segment_file, reading, segment_log, archive_origin, zookeeper, commits,
origin.
"""
