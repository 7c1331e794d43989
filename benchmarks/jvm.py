"""A consumer of Jafka as a process: a high-level consumer of the protocol of 0.7 on the JVM, which counts messages.

Strategy: the program is `java/JafkaCounter.java`, compiled when it is needed. The JVM uses all its compilers, as in
service, and not only the first one as in tests, which start many JVMs for a few messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.embedded.children import Child
from consumerd.java import find_java
from tests.support.jafka import jafka_jars, java_command
from tests.support.jafka_clients import compile_java

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PROGRAM = Path(__file__).parent / "java" / "JafkaCounter.java"
SETTINGS = {
    "autooffset.reset": "smallest",
    "zk.sessiontimeout.ms": 6000,
    "zk.synctime.ms": 2000,
    "fetch.size": 1 << 20,
    "socket.buffersize": 1 << 20,
}
#: Seconds for a start or an end.
PATIENCE = 120.0


class JafkaCounter:
    """A member of `group` that reads `topic` with `streams` threads and commits every `commit` seconds."""

    def __init__(self, folder: Path, zookeeper: str, group: str, topic: str, streams: int, commit: float) -> None:
        java, jars, classes = find_java(), jafka_jars(), folder / "classes"
        if not classes.is_dir():
            compile_java(java, [PROGRAM], jars, classes)
        settings = SETTINGS | {"autocommit.interval.ms": round(commit * 1000)}
        pairs = [f"{key}={value}" for key, value in settings.items()]
        arguments = [zookeeper, group, topic, str(streams), *pairs]
        command = java_command(java, [*jars, classes], folder / group, PROGRAM.stem, *arguments)
        # Of two settings for the same, the JVM takes the later one.
        place = command.index("-cp")
        command[place:place] = ["-Xmx512m", "-XX:TieredStopAtLevel=4"]
        self.child = Child(command, log=folder / group / "jafka.log", name=f"jafka-{group}", pipe=True)

    async def __aenter__(self) -> Self:
        self.child.start()
        try:
            await self.child.wait_for_line("READY".__eq__, PATIENCE)
        except BaseException:
            self.child.end_now()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.end_now()

    async def first(self) -> float:
        """`time.time()` of its first message."""
        line = await self.child.wait_for_line(lambda line: line.startswith("FIRST "), PATIENCE)
        return int(line.split()[1]) / 1000

    async def leave(self) -> int:
        """Let it leave the group; returns how many messages it counted."""
        self.child.close_stdin()
        line = await self.child.wait_for_line(lambda line: line.startswith("DONE "), PATIENCE)
        await self.child.wait(PATIENCE)
        return int(line.split()[1])
