"""The process: its configuration file (`config`), its life from start to end, and what it says of itself (`daemon`).

In: a file, the environment, signals. Out: members that run, logs, metrics, the status page, an exit code.
"""
