"""What every room may use. Of ring 0: errors, names, addresses, settings, ports, the choice of the native codec.
Of ring 1: clock, files, credentials, plugins, threads, the instruments of metrics.

Files in reading order: errors, partition, address, ports, version, lazy, native, clock, turns, rounds, calls, backoff,
budget, files, threads, credentials, plugins, frames, java.
"""
