"""The handler `forward`: batches to a cluster of Kafka 0.8 or later, with identities, keys and topics (ring 1).

`transform` has the base class of handlers that send what they make of a batch in a transaction.

In: batches of a member. Out: the messages in a cluster of Kafka 0.8 or later, with their identities in headers.

Files in reading order: handler, settings, mapping, topics, identity, feed, positions, target_log, keys, transform,
errors.

Easy to miss:

- A recreated topic begins at offset 0: its messages have the identities of the old ones.
"""
