"""`consumerd spark`: the data pipeline, step by step or whole, and reading of partitions."""

from __future__ import annotations

import click

from consumerd.cli import spark_read, spark_steps

EXAMPLES = """\b
Examples:
  consumerd spark run -c /etc/consumerd/events.toml
  consumerd spark land -c events.toml --pipeline clicks --master 'local[4]'
  consumerd spark reconcile -c events.toml --json | jq .gaps
  consumerd spark read --path /archive --subscribe events --count

The same steps run on a cluster by spark-submit: see deploy/spark.
"""


@click.group("spark", epilog=EXAMPLES)
def command() -> None:
    """Turn partitions and archives into clean tables, with Spark.

    A pipeline lands messages in a bronze table as they are, refines them by a declared schema to silver and quarantine,
    and aggregates; `reconcile` proves that nothing is missing. Pipelines are declared in [spark.pipelines.NAME] of the
    configuration file, and checked by `consumerd check`. Requires the extra `spark`.
    """


for _step in (*spark_steps.COMMANDS, spark_read.command):
    command.add_command(_step)
