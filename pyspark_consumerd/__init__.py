"""Lets Spark find the data source by itself: it looks for `DefaultSource` in top-level modules named `pyspark_*`.

Spark gives up the search for all data sources at the first module that cannot be imported. So where something is
missing (the extra `spark` was not installed, or pyspark is too old), this one says so and has no `DefaultSource`.
"""

import logging

try:
    from consumerd.spark.source.datasource import ConsumerdDataSource as DefaultSource
except ImportError as error:
    logging.getLogger(__name__).warning(
        'the data source "consumerd" is left out: %s; install consumerd with its extra, consumerd[spark]', error
    )
else:
    __all__ = ["DefaultSource"]
