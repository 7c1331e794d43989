"""A real PostgreSQL server on loopback, from the machine's packages, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from consumerd.base.java import MissingRuntimeError
from consumerd.demo.ports import free_port

#: Seconds for whatever has to come on a slow machine.
PATIENCE = 60.0


def find_postgres() -> Path:
    """The folder of `initdb` and `postgres`, the newest of Debian's. Raises MissingRuntimeError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    path = str(found[-1]) if found else shutil.which("initdb")
    if path is None:
        raise MissingRuntimeError("PostgreSQL was not found (Debian: apt-get install postgresql)")
    return Path(path).parent


class PostgresServer:
    """One server with a database `postgres`, whose data ends with it. It refuses to run as root: another user does."""

    def __init__(self) -> None:
        self._programs = find_postgres()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="consumerd-postgres-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            name = "postgres" if any(each.pw_name == "postgres" for each in pwd.getpwall()) else "nobody"
            user = pwd.getpwnam(name)
            os.chown(self._directory, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.port = free_port()

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> PostgresServer:
        data = self._directory / "data"
        try:
            subprocess.run(
                [self._programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"],
                cwd=self._directory, check=True, capture_output=True, timeout=PATIENCE, **self._user,
            )  # fmt: skip
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Return when it answers."""
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        command = [str(self._programs / "postgres"), "-D", str(self._directory / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._directory, stderr=log, stdout=log, **self._user)
        until = time.monotonic() + PATIENCE
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, capture_output=True, check=False, timeout=PATIENCE).returncode == 0

    def kill(self) -> None:
        """End it at once: it recovers at the next start."""
        if self._process is not None:
            # SIGQUIT is the immediate shutdown; a SIGKILL would leave its children with their shared memory.
            self._process.send_signal(3)
            self._process.wait(PATIENCE)
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
