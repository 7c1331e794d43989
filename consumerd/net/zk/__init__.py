"""The one supervised ZooKeeper session of a process (ring 1), on aiozk's protocol.

In: `Session` and its calls. Out: replies, watch events and events of the session; a lease that says how long it surely
lives.

Files in reading order: session, base_session, lifecycle, supervisor, connection, requests, multi, watches, sasl, acl,
connect_string, errors.

Easy to miss:

- `children(watch=True)` of a missing node sets no watch; `exists(watch=True)` does.
- ZooKeeper checks names by UTF-16 units: it refuses characters above U+FFFF, as surrogates.
- A server that sheds load answers ThrottledOp without executing the request, a `sync` too. Such an answer does not pass
  the leader, so it proves nothing about the session: the lease stays, and the connection is kept, as another one would
  add load.
- ZooKeeper has no check that a node is missing. A multi that creates and deletes the node does the same, and no client
  sees the node.
"""
