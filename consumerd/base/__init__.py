"""What every room may use: errors and exit codes, names, clock, files, credentials, instruments of metrics (ring 0).

Files in reading order: budget, errors, address, files, frames, java, lazy, native, partition, plugins, ports, backoff,
clock, credentials, threads, turns, version.
"""
