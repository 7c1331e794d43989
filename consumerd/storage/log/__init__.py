"""The 0.7 log on disk: segments, flushes, retention, recovery, and archives of segment files that are read as they
are.

Files in reading order: archive_items, archive_resync, errors, archive, archive_packed, archive_tar, files, recovery,
retention, segment, archive_names, dump, loading, log, manager.
"""
