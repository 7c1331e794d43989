"""Tables of a catalog over the source: `CREATE TABLE ... USING consumerd OPTIONS (...)`.

Strategy: Spark makes the source once while the table is created, with the table's options among words of its own
(`provider`, `location`, `owner`, ...), and once for every read, with none of them (4.2). What it does keep is the
schema. So the options travel as metadata of its first column, and a reader that was given none takes them from there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_schema

from consumerd.spark.source.columns import arrow_schema
from consumerd.spark.source.option_texts import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.types import StructType

    from consumerd.spark.source.columns import Column

#: What only a catalog says.
_PROVIDER: Final = "provider"
#: Before the names of the table's options, as they were given.
_OPTION: Final = "option."
_METADATA: Final = "consumerd.options"
#: What is in the schema is shown to everybody who may see the table.
_NOT_KEPT: Final = "kafka.sasl.password"


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table that is being created."""
    return _PROVIDER in options and "owner" in options


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Of what Spark hands in while a table is created, the options of the source. Raises OptionError for a password."""
    found = {name.removeprefix(_OPTION): value for name, value in options.items() if name.startswith(_OPTION)}
    if "path" in options:  # which the catalog takes for the table's location, and makes a URI of
        found["path"] = options["path"].removeprefix("file:")
    if any(name.lower() == _NOT_KEPT for name in found):
        raise OptionError(
            f"option {_NOT_KEPT} would be kept in the catalog for everybody to see; use kafka.sasl.password.file"
        )
    return found


def with_options(columns: Iterable[Column], options: Mapping[str, str]) -> StructType:
    """The schema of these columns, with the table's options in it."""
    schema = from_arrow_schema(arrow_schema(column.name for column in columns))  # DDL is read by a JVM only
    schema.fields[0].metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return schema


def options_in(schema: StructType) -> dict[str, str]:
    """The options that `with_options` has put there; none in any other schema."""
    for field in schema.fields:
        kept: Any = (field.metadata or {}).get(_METADATA)
        if isinstance(kept, str):
            found = json.loads(kept)
            return {str(name): str(value) for name, value in found.items()}
    return {}
