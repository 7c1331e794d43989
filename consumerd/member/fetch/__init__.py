"""Fetching owned partitions into bounded lanes (ring 1). `FetchPool` is the entry point.

In: an owned partition with its start offset (`FetchPool.add`). Out: batches in its `Lane`, within a `ByteBudget`.

Files in reading order: pool, fetcher, lane, response, policies, log_changes, listener, settings, event, errors.
"""
