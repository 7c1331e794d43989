"""The producer for brokers of Kafka 0.8 and later.

Strategy: `V08Producer` collects messages in one batch per partition, keeps them in order and within a memory limit, and
sends each batch to the partition's leader, through `consumerd.net.client`, until it is acknowledged or its delivery
timeout has passed. Since 0.11 it is idempotent: brokers recognise a batch that is sent again.
"""
