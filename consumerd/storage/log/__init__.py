"""The 0.7 log on disk: segments, flushes, retention, recovery; and archives of segment files, which are only read.

In: sets to append, offsets to read. Out: segments on disk, and slices of them.

Files in reading order: errors, files, segment, log, manager, loading, recovery, retention, archive_items,
archive, archive_resync, dump, archive_names, archive_tiered, archive_packed, archive_tar.

Easy to miss:

- That a file exists does not make its name durable: a process may have created it and been killed before the sync of
  the directory. A start syncs the files and directories that it finds before it appends.
"""
