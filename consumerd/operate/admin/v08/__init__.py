"""Groups, offsets and topics of Kafka 0.8 and later, seen and changed from outside.

In: the same calls as in `consumerd.operate.admin`. Out: the same results, from ZooKeeper or from brokers.

Files in reading order: group_source, snapshot, broker_groups, diagnosis, logs, next_messages, transactions,
topic_nodes, topic_requests.
"""
