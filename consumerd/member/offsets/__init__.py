"""Handled offsets and the stores of committed ones (ring 1).

In: handled ranges (`HandledPrefix`), and the partitions to load or commit. Out: positions in ZooKeeper, in Kafka or in
both.

Files in reading order: tracker, store, guards, metadata, kafka_store, dual_store, choice, end_times,
errors.

Easy to miss:

- OFFSET_COMMIT for a topic that is gone is refused, and accepted once the topic was created again: it is not repeated
  meanwhile.
- Brokers before 2.1 delete committed offsets by their age, later ones in groups without members. Unchanged offsets are
  therefore written again; otherwise a partition starts from its initial offset at the next start.
- A commit may arrive after its topic was deleted and created again. In ZooKeeper it then looks like an offset of the
  new topic, but for the age of the node: the first commit of a position in the new topic deletes the offset node and
  creates it again.
- A pipelined commit may be retried: without one lock around commits, an older position could overwrite a newer one.
"""
