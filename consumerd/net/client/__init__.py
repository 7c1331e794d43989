"""Client of brokers since 0.8 (ring 1): API versions per connection, metadata, leaders, coordinators, retries.

In: `make_client`, then `ClusterClient.call_node` and `call_coordinator`. Out: bodies of responses, or the errors of
`errors`.

Files in reading order: settings, factory, cluster, metadata, opening, channel, sasl_session, retrying, sasl,
sasl_gssapi, sasl_oauth, sasl_msk, fetching, offsets, epochs, topic_configs, errors.

Easy to miss:

- Brokers of 0.8 close the connection on API_VERSIONS, those of 0.9 neither answer nor close it, and early ones with
  SASL close it on a version of the request that they do not know. The client infers the broker's version from this
  reaction, and asks again on the next connection.
- A broker of 0.9 takes any request on a SASL listener for an invalid token. Without framing of tokens it does not
  answer the last token of GSSAPI, so a client must not wait for that answer.
- On a SASL listener a broker answers API_VERSIONS without authentication and closes the connection on the next request.
  A TLS listener answers a client without TLS with a TLS alert, which reads as a frame of 336 MiB.
- A broker looks whether a session of SASL has expired when it works on a request, which may have waited behind others.
  It takes a late SASL_HANDSHAKE, but a second one within a second for a request without authentication.
- Brokers hash SCRAM passwords unchanged: some reject a client that normalises them (SASLprep).
- The versions that a broker states hold for the connection on which it stated them, and no longer.
- METADATA of 0.8.2 lists no broker before a topic exists, and a broker answers requests before the METADATA of others
  lists it.
- A broker that is registered in ZooKeeper may not have its own metadata yet: it rejects a new topic with
  INVALID_REPLICATION_FACTOR.
- A KRaft broker that was killed can register again only after its former registration has expired.
- A broker processes one request of a connection at a time: requests that it may hold back (FETCH with a wait,
  JoinGroup) need a separate connection.
- A broker of 0.7 takes METADATA for a MULTIPRODUCE without messages, and answers nothing: the client then asks with a
  FETCH of 0.7.
"""
