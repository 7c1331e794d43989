import socket
import subprocess
import sys
from pathlib import Path

from consumerd.errors import ExitCode

#: What a daemon with the handler `null`, without HTTP and without worker processes, does not need. Each takes memory in
#: every daemon and time at every start.
UNUSED = (
    "aiohttp",
    "asyncpg",
    "consumerd.admin",
    "consumerd.broker",
    "consumerd.daemon.status_page",
    "consumerd.embedded",
    "consumerd.handlers.dead_letter_topic",
    "consumerd.migrate",
    "consumerd.producer",
    "consumerd.spark",
    "consumerd.testing",
    "fastavro",
    "fsspec",
    "matplotlib",
    "msgspec",
    "multiprocessing",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pygments",
    "pyspark",
    "rich",
)

#: Runs the whole command; nothing listens where its configuration has ZooKeeper.
PROGRAM = """\
import sys
from consumerd.cli.main import run
code = run(["run", "-c", sys.argv[1]])
print(*(name for name in sys.modules if name.startswith(tuple(sys.argv[2:]))))
import rich.console  # can still be imported
sys.exit(code)
"""


def test_imports_no_module_that_a_plain_daemon_does_not_use(tmp_path: Path) -> None:
    path = tmp_path / "events.toml"
    with socket.socket() as bound:  # which does not listen, so that connections are refused
        bound.bind(("127.0.0.1", 0))
        path.write_text(
            '[group]\nid = "g"\ntopics = { events = 1 }\n[handler]\nname = "null"\n'
            f'[zookeeper]\nconnect = "127.0.0.1:{bound.getsockname()[1]}"\nconnection_timeout = 0.1\n'
        )
        ended = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, str(path), *UNUSED],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert ended.stdout.split() == []
    assert ended.returncode == ExitCode.ZOOKEEPER, ended.stderr
