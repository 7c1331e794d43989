"""Archives of segment files: finding, verifying and exporting them (ring 1).

In: directories and tars of segments. Out: findings, or files of rows with a manifest, made on worker processes.

Files in reading order: sources, opening, pool, worker_processes, verify, contiguity, findings, export,
export_worker, manifest, outputs, rows, ndjson, parquet, arrays, segment_rows, dumped, group_offsets,
folders, listing, segment_ends, cluster_metadata, copies, zstd, options, extras, errors.

Easy to miss:

- A chain of intact messages inside a segment may be the content of a snappy message that was stored uncompressed. The
  search for a boundary tries every earlier offset for an enclosing message.
- The workers of a process pool survive a killed parent, and wait for tasks for ever: they watch for its death
  themselves.
"""
