"""A Kafka 0.7 broker on `consumerd.storage` (ring 1).

In: requests of 0.7 on a socket. Out: responses, appended logs, and nodes in ZooKeeper.

Files in reading order: server, config, connections, sockets, requests, memory, partitions, registration, policies,
stats, errors.

Easy to miss:

- A producer of 0.7 does not notice that its connection was closed, and loses the next batch: our broker never closes a
  connection because it is idle.
- `os.sendfile` of uncached pages blocks the event loop on the disk; a thread reads them first.
- Threads that compute delay the event loop by 5 ms at every system call (the interpreter's lock): long computations run
  in steps on the loop instead.
"""
