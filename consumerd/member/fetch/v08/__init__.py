"""Fetching from brokers of Kafka 0.8 and later.

In: the loop of `consumerd.member.fetch.fetcher`. Out: FETCH requests to the leaders, or to
the followers that they name, in sessions.

Files in reading order: brokers, read_replica, broker_source, exchange, polls.

Easy to miss:

- A leader does not have the end of an epoch above its own: it answers OffsetForLeaderEpoch with -1, which brokers of an
  older message format do, too. That a later leader was elected is visible in metadata since 2.1; before, in the end of
  the next epoch.
- A follower that lags behind a position reports a diverging log, not an offset out of range (since 2.7).
- A leader that names a follower returns no messages, and does so for each request with our rack.
- Only brokers since 3.1 fetch by topic id. Earlier ones that know ids show them in metadata only, and answer a fetch by
  name from whatever log has the name.
- Topics have ids since 2.8. Before, only restarted leader epochs show that a topic was recreated.
- During a transaction a log has two ends: the high watermark, and the last stable offset.
- A broker may return an empty response although the log has messages: over a quota, while a new leader learns the high
  watermark, or from remote storage. A gap at the end of a log is accepted only when the response repeats.
- Since 2.0 a broker over whose quota a client is answers a FETCH at once, without any of its partitions, and says for
  how long the client is to be silent.
- A fetch session belongs to no connection: it survives its end, and a request that begins another one ends it. A
  response over a quota continues a session, but begins none. The broker keeps one for two minutes after its last use.
- In a session a broker leaves out a partition whose last stable offset alone has changed, and it returns the data of a
  partition again until a request names another offset or forgets it.
"""
