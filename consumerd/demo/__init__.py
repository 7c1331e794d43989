"""The demo, and its servers on loopback: a real ZooKeeper and consumerd's processes. The pytest plugin uses both.

In: a command line. Out: servers and processes of ours on loopback, and an account of every message.

Files in reading order: zookeeper, processes, children, ports, corpus, recorder, ledger, audit, errors,
feed, early_spark, pipeline, play, result, view, watch.
"""
