"""An object store on loopback: moto's server of S3, which has its conditional puts."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("moto", reason="moto is not installed")

_KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
_REGION = "us-east-1"


@contextlib.contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """The storage options of a store with this bucket. In capitals they are the environment of its clients."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            options = {"aws_endpoint_url": f"http://127.0.0.1:{port}", "aws_region": _REGION, **_KEYS}
            client_of(options).create_bucket(Bucket=bucket)
            yield options
        finally:
            server.kill()


def client_of(options: Mapping[str, str]) -> Any:
    """A client of the store."""
    import boto3

    return boto3.client("s3", endpoint_url=options["aws_endpoint_url"], region_name=_REGION, **_KEYS)
