"""The 0.7 log on disk: segments, flushes, retention, recovery, and archives of segment files that are read as they
are.
"""
