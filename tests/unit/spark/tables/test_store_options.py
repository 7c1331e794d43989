from __future__ import annotations

import pytest

from consumerd.spark.tables.store_options import store_options

S3A = "spark.hadoop.fs.s3a."


@pytest.mark.parametrize(
    ("properties", "options"),
    [
        ({}, {}),
        (
            {"access.key": "a", "secret.key": "b", "session.token": "c", "endpoint.region": "eu-1"},
            {
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_SESSION_TOKEN": "c",
                "AWS_REGION": "eu-1",
            },
        ),
        ({"endpoint": "minio:9000"}, {"AWS_ENDPOINT_URL": "https://minio:9000"}),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false", "path.style.access": "true"},
            {
                "AWS_ENDPOINT_URL": "http://minio:9000",
                "AWS_ALLOW_HTTP": "true",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            },
        ),
        ({"endpoint": "http://minio"}, {"AWS_ENDPOINT_URL": "http://minio", "AWS_ALLOW_HTTP": "true"}),
    ],
)
def test_takes_the_store_from_sparks_properties(properties: dict[str, str], options: dict[str, str]) -> None:
    given = {f"{S3A}{name}": value for name, value in properties.items()}
    assert store_options("s3a://lake/t", given.get) == options
    assert store_options("/lake/t", given.get) == store_options("gs://lake/t", given.get) == {}
