"""Fetching from brokers of Kafka 0.6 and 0.7.

In: the loop of `consumerd.member.fetch.fetcher`. Out: FETCH and OFFSETS requests of 0.7.

Files in reading order: brokers, link, poller, pace, offset_lookups, boundaries.

Easy to miss:

- A fetch never crosses a segment, so a short response does not mean the end of the log.
- A broker answers a bad OFFSETS request by closing the connection: OFFSETS use separate connections, so that fetches of
  other partitions do not fail with it.
"""
