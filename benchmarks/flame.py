"""Flame graphs of `consumerd run` at full speed, with the handler `null` and with one that takes single messages.

Broker, ZooKeeper and logs are those of `benchmarks.daemon`. py-spy, which is not a dependency, samples the daemon from
its first fetch on; samples are merged by function. docs/images holds the last graphs.

    python -m benchmarks.flame [--py-spy py-spy] [--messages 4000000] [--seconds 6] [FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.daemon import COMMIT, PARTITIONS, write_logs
from benchmarks.race import quiet
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.demo.zookeeper import ZooKeeperServer

TOPIC = "plain"
HANDLERS = {"null": "null", "messages": "benchmarks.taking:each"}


async def record(py_spy: str, pid: int, seconds: int, graph: Path) -> None:
    """Sample a process. Raises SystemExit where py-spy fails."""
    command = ["record", "--pid", str(pid), "--duration", str(seconds), "--rate", "250", "--function"]
    child = await asyncio.create_subprocess_exec(
        py_spy, *command, "--output", str(graph), stdout=asyncio.subprocess.DEVNULL
    )
    if await child.wait():
        raise SystemExit(f"{py_spy} failed with exit code {child.returncode}; may it trace process {pid}?")


def cleaned(text: str, label: str) -> str:
    """The graph with a title of its own, and paths of files that begin with the name of their package."""
    text = re.sub(r">[^<]*py-spy record[^<]*<", f">consumerd run, handler {label}<", text)
    return re.sub(r"\((?:[^()<]*/)?(?:site-packages|python3\.\d+)/([^()<]*)\)", r"(\1)", text)


async def graphs(py_spy: str, messages: int, seconds: int, target: Path) -> None:
    """Write one graph for each handler into `target`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_logs(folder / "data", messages, 100, [TOPIC])
        async with (
            ZooKeeperServer(folder / "zookeeper") as server,
            BrokerProcess(folder, f"{server.connect}/kafka", partitions=PARTITIONS),
        ):
            for label, handler in HANDLERS.items():
                config = {
                    "group": {"id": label, "topics": {TOPIC: 1}},
                    "zookeeper": {"connect": f"{server.connect}/kafka"},
                    "commit": {"interval": COMMIT},
                    "handler": {"name": handler},
                }
                async with DaemonProcess(folder, config, name=label) as daemon:
                    graph = target / f"flame-{label}.svg"
                    await record(py_spy, daemon.pid, seconds, graph)
                    graph.write_text(cleaned(graph.read_text(), label))


def main(arguments: list[str] | None = None) -> int:
    """Write the graphs."""
    parser = argparse.ArgumentParser(prog="benchmarks.flame", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--py-spy", default="py-spy", help="the program (default: that of the path)")
    parser.add_argument("--messages", type=int, default=4_000_000, help="per partition, of which there are four")
    parser.add_argument("--seconds", type=int, default=6, help="how long the daemon is sampled")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/images"), help="default: docs/images")
    options = parser.parse_args(arguments)
    quiet()
    # For the handler of this folder: daemons do not look into the working directory.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    asyncio.run(graphs(options.py_spy, options.messages, options.seconds, options.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
