"""Reading brokers of Kafka 0.8 and later, and their segment files, from Spark.

Files in reading order: client, origin, commits, reading, segment_parts, stored.
"""
