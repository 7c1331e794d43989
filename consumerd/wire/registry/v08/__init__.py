"""Names and values of znodes as Kafka 0.8 and later writes them: JSON.

Files in reading order: json, broker, subscription, topic.
"""
