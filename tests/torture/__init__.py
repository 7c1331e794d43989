"""Random faults on real processes, and an account of every message: `make torture`, `python -m tests.torture`.

Strategy: `schedule` draws episodes of faults from a seed, as data. `stage` runs what an operator runs: ZooKeeper (one
server or three), a broker, a producer and members, each on real processes and behind fault proxies of its own. `play`
performs episodes one after the other: most have several faults at once; some have one alone, a clean stop or a kill,
and only those are timed. `watch` looks at the group through a session of its own. `account` counts at the end the
result for each message, with the audit of `consumerd.demo`, `sinks` compares what exactly-once sinks hold, and
`report` says which figures break a promise.

It is a package of the tests because it consists of their parts (`tests.support`, `consumerd.demo`) and is for
developers alone; `tests/kill/test_torture.py` runs it in pytest.
"""
