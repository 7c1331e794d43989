"""The live view of the cluster: its brokers, their topics, and the groups that consume them.

In: a session. Out: brokers, addresses, topics and groups, kept up to date by watches.

Files in reading order: view, view_v08, watched, directory, reading, topic_nodes, dialects, entry,
groups.

Easy to miss:

- A misspelled chroot that a session creates looks like a cluster without topics. `cluster.entry` lets a session create
  its chroot only once brokers or consumers were found there, or with `zookeeper.allow_empty`; a wiped ensemble is then
  filled again.
"""
