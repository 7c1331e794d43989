import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode

#: What a daemon with the handler `null`, without HTTP, worker processes and variables in the environment, does not need
#: before the first message. Each takes memory in every daemon and time at every start.
UNUSED = (
    "aiohttp",
    "annotated_types",
    "asyncpg",
    "colorama",
    "consumerd.operate.admin",
    "consumerd.storage.broker",
    "consumerd.service.config.reloading",
    "consumerd.member.consumer.connector",
    "consumerd.member.consumer.simple",
    "consumerd.service.daemon.checks",
    "consumerd.service.daemon.status_page",
    "consumerd.demo",
    "consumerd.handlers.dead_letter_topic",
    "consumerd.net.client.sasl_oauth",
    "consumerd.operate.migrate",
    "consumerd.member.offsets.dual_store",
    "consumerd.producer",
    "consumerd.wire.registry.regex.parser",
    "consumerd.spark",
    "consumerd.testing",
    "consumerd.wire.v08.records.encode",
    "cramjam",
    "dotenv",
    "email",
    "fastavro",
    "fsspec",
    "google_crc32c",
    "hashlib",
    "hmac",
    "importlib.metadata",
    "locale",
    "matplotlib",
    "msgspec",
    "multiprocessing",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "pygments",
    "pyspark",
    "rich",
    "secrets",
    "snappy",
    "sysconfig",
    "urllib.request",
    "zipfile",
)

#: What it does not need either before it knows that it speaks 0.8.
UNUSED_V08 = (
    "consumerd.net.client.cluster",
    "consumerd.net.cluster.view",
    "consumerd.service.config.build_v08",
    "consumerd.member.consumer.backends_v08",
    "consumerd.member.consumer.coordinated",
    "consumerd.member.consumer.fixed",
    "consumerd.member.fetch.v08",
    "consumerd.group.coordinated_events",
    "consumerd.member.offsets.kafka_store",
    "consumerd.wire.v08.apis",
    "consumerd.wire.v08.codec",
    "consumerd.wire.v08.records.fetched",
)

#: What it does not need for a group that a broker coordinates, and whose offsets are there, too.
UNUSED_COORDINATED = (
    "aiozk",
    "consumerd.net.cluster.",
    "consumerd.member.consumer.consumer",
    "consumerd.member.consumer.coordination",
    "consumerd.member.consumer.snapshot",
    "consumerd.service.daemon.dialect",
    "consumerd.member.fetch.v07",
    "consumerd.group.events",
    "consumerd.group.membership_holdings",
    "consumerd.net.zk.session",
    "unicodedata",
)

#: Runs the whole command; nothing listens where its configuration has the servers.
PROGRAM = """\
import sys
from consumerd.cli.main import run
code = run(["run", "-c", sys.argv[1]])
print(*(name for name in sys.modules if name.startswith(tuple(sys.argv[2:]))))
import rich.console  # can still be imported
import gc
assert gc.isenabled() and gc.get_freeze_count() > 10_000
assert id(vars(sys.modules["consumerd.member.consumer.running_member"])) not in map(id, gc.get_objects())  # frozen
sys.exit(code)
"""


@pytest.mark.parametrize("limit", [10, 14])
def test_too_few_open_files_are_one_sentence(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "events.toml"
    path.write_text(
        'handler.name = "null"\n[group]\nid = "g"\ntopics = { events = 1 }\n[zookeeper]\nconnect = "127.0.0.1:1"\n'
    )
    command = f'ulimit -n {limit} && exec "$0" -P -m consumerd run -c "$1"'
    ended = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, path], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.stderr == (
        f"consumerd: only {limit} open files are allowed (ulimit -n, LimitNOFILE): raise it to 256\n"
    )
    assert ended.returncode == ExitCode.CONFIG


@pytest.mark.parametrize(
    ("servers", "unused", "code"),
    [
        ('[zookeeper]\nconnect = "{}"', UNUSED + UNUSED_V08, ExitCode.ZOOKEEPER),
        ('coordination = "kafka"\n[kafka]\nbootstrap = ["{}"]', UNUSED + UNUSED_COORDINATED, ExitCode.BROKER),
    ],
    ids=["zookeeper", "kafka"],
)
def test_imports_no_module_that_a_plain_daemon_does_not_use(
    tmp_path: Path, servers: str, unused: tuple[str, ...], code: ExitCode
) -> None:
    path = tmp_path / "events.toml"
    with socket.socket() as bound:  # which does not listen, so that connections are refused
        bound.bind(("127.0.0.1", 0))
        path.write_text(
            f'handler.name = "null"\n[group]\nid = "g"\ntopics = {{ events = 1 }}\n'
            f"{servers.format(f'127.0.0.1:{bound.getsockname()[1]}')}\nconnection_timeout = 0.1\n"
        )
        ended = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, str(path), *unused],
            capture_output=True, text=True, check=False, timeout=120,
            env={name: value for name, value in os.environ.items() if not name.startswith("CONSUMERD_")},
        )  # fmt: skip
    assert ended.stdout.split() == []
    assert ended.returncode == code, ended.stderr
