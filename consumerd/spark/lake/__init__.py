"""Files and commits of the pipeline's tables, without Spark: its tasks run this, and so do processes without a JVM.

In: Arrow batches. Out: Parquet files, each described by one `DataFile`, which a commit to a table names.

Files in reading order: data_file, folders.

Easy to miss:

- pyspark is not imported here, nor by anything that is imported here.
- A file that no commit names is not part of the table, whatever it holds: a killed writer leaves such files.
- Parquet's statistics of a column of floats leave out NaN, which Spark takes for the greatest value.
"""
