"""Segments of brokers since 0.8 (`.log` files), read as they lie on a disk, without a broker (ring 1).

In: streams of bytes. Out: batches with their records, and the flaws between them.

Files in reading order: dialect, finding, kinds, checking, batches, copies, transactions, fields, group_offsets,
transaction_log, cluster_metadata.

Easy to miss:

- A compacted segment has gaps between offsets, inside batches and between them. A batch of which compaction left no
  record stays for its producer's sequence number.
- The base offset of a batch of magic 2 is that of the first record that its producer wrote; that of a compressed
  message of magic 0 and 1 is the offset of its *last* one.
- A broker that reserves the space of a segment (`log.preallocate`) leaves zeros after the last batch when it is killed.
"""
