"""The producer for brokers of Kafka 0.8 and later.

Strategy: `V08Producer` collects messages in one batch per partition, keeps them in order and within a memory limit, and
sends each batch to the partition's leader, through `consumerd.net.client`, until it is acknowledged or its delivery
timeout has passed. Since 0.11 it is idempotent: brokers recognise a batch that is sent again.

In: messages of `V08Producer.send`. Out: record batches at the leaders, in order, once where brokers recognise repeats.

Files in reading order: settings, producer, routing, batches, sizes, sender, delivery, transaction_tables,
transactions, lines.

Easy to miss:

- An open batch is sent when nothing was sent to its leader since the leader's last answer; full batches, retries and
  flushes wait only for `in_flight`. A partition's queue waits at one broker at most, and no broker or look-up of
  leaders holds another broker's batches back (`tests/unit/producer/v08/test_sender.py`).
- With acks 0 a broker that is not the leader can only close the connection: the producer checks for that before it
  sends more.
- Brokers of 0.11 to 2.3 forget an idempotent producer with its last message, and reject the next sequence number: a
  batch that cannot have been stored gets numbers of a fresh producer id.
"""
