"""The handlers that come with consumerd; each is named by an entry point in pyproject.toml.

In: batches. Out: what the handler's name says; those with ranges store a batch and its position in one step.

Files in reading order: null, print, console, records, exec, http, http_body, ranges, range_logs, range_folders,
range_objects, disk, files, parquet, parquet_rows, postgres. `delta` and `iceberg` are in `consumerd.spark.lake.sink`.
"""
