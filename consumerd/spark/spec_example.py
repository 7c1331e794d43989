"""`config.example.toml`: the daemon's tables and, commented out, one pipeline on Spark.

`python -m consumerd.spark.spec_example` prints it; a test compares it with the file in the repository.
"""

from __future__ import annotations

import click

from consumerd.service.config.example import example_toml, table_lines
from consumerd.spark.spec_model import SparkSection


def spark_example() -> str:
    """The table [spark] with every key, from the models."""
    return "\n".join(table_lines(("spark",), SparkSection, commented=True)) + "\n"


def whole_example() -> str:
    """The text of `config.example.toml`."""
    return example_toml() + spark_example()


if __name__ == "__main__":
    click.echo(whole_example(), nl=False)
