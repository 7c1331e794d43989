"""Framed, pipelined connections to brokers (ring 1). See `connection` for the rules they keep.

In: `connect` and frames. Out: response frames in the order of the requests, or an error after which the connection is
closed.

Files in reading order: connect, addresses, connection, framing, errors, tls.

Easy to miss:

- The kernel of a stopped process still acknowledges what is written to it: only a timeout of our own ends such a write.
"""
