"""A long run: is memory flat, and are descriptors and tasks, while faults come in? `make soak`, `python -m tests.soak`.

Strategy: the stage, the faults and the rules about repetitions are those of `tests.torture`. What differs is the time:
`stage` gives each daemon two more subscriptions, with the exactly-once sinks for files and PostgreSQL, and sends by
rate; `sampling` asks every process now and then for its size, descriptors, tasks, lag; `account` counts by ranges of
messages, so that an hour of them fits into memory; `verdict` says which promise is broken, and `plot` draws the hour.
One member stays for the whole run, and suffers all but kills and stops: a leak shows in a process that lives long.
`full_speed` is another run, without faults: one daemon reads logs of all kinds of messages as fast as it can.
"""
