"""Spark's properties of the S3 file system -> the options that deltalake has for the same store.

So a session that reads a bucket also writes tables there. What is not set in Spark is read from the environment, in the
driver and in executors: `AWS_ACCESS_KEY_ID`, `AWS_REGION` and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_PREFIX: Final = "spark.hadoop.fs.s3a."
_NAMES: Final = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}


def store_options(path: str, property_of: Callable[[str], str | None]) -> dict[str, str]:
    """The options for a table at `path`, for S3 alone. `property_of`: the value of a Spark property."""
    if path.partition("://")[0] not in ("s3", "s3a"):
        return {}

    def value(name: str) -> str:
        return property_of(_PREFIX + name) or ""

    options = {option: value(name) for name, option in _NAMES.items() if value(name)}
    if endpoint := value("endpoint"):
        scheme = "http" if value("connection.ssl.enabled") == "false" else "https"
        options["AWS_ENDPOINT_URL"] = url = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if url.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    if style := value("path.style.access"):
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false" if style == "true" else "true"
    return options
