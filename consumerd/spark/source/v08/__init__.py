"""Reading brokers of Kafka 0.8 and later from Spark.

Files in reading order: client, split, origin, commits, reading.
"""
