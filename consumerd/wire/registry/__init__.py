"""The names and values of Kafka's znodes, in both dialects: that of 0.7, and the JSON of 0.8 and later.

Parse leniently what peers write, format exactly as 0.7.2 and 0.8.2 do.

In: texts of znodes. Out: values, or a `RegistryError`; and the paths and texts of our own nodes.

Files in reading order: paths, values, text, subscription, topic_filter, dialect, spoken, other_clients, nudge, errors.

Easy to miss:

- A node of the wrong dialect breaks every JVM member's rebalance: the dialect is detected before anything is
  registered.
"""
