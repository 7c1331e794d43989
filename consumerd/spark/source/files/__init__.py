"""The output of the daemon's `files` handler: planned in the driver, read by executors.

Files in reading order: lines, ranges, origin, reading.
"""
