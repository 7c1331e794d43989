"""The fake cluster of franz-go, a client of Go: a broker that nobody here wrote, of the protocol of 4.x.

Strategy: `tests/interop/kfake` is a program around it, which `.ci/run` compiles beside its set-up. Elsewhere it is
compiled at first use where there is Go, and kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.maven import cache_directory

SOURCE: Final = Path(__file__).parents[1] / "interop" / "kfake"
#: Seconds to compile it.
_PATIENCE: Final = 400.0


class KfakeMissingError(Exception):
    """There is no program, and no Go to compile it."""


def kfake_program() -> Path:
    """The program, compiled if necessary. Raises KfakeMissingError, CalledProcessError. Blocks."""
    if found := shutil.which("kfake"):
        return Path(found)
    source = b"".join((SOURCE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    program = cache_directory() / f"kfake-{hashlib.sha256(source).hexdigest()[:16]}"
    if not program.exists():
        if (go := shutil.which("go")) is None:
            raise KfakeMissingError("Go is not installed, which compiles franz-go's fake cluster")
        made = program.with_name(f"{program.name}.{os.getpid()}")
        made.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-o", made, "."], cwd=SOURCE, env=environment, check=True, timeout=_PATIENCE)
        made.replace(program)
    return program


@asynccontextmanager
async def kfake(program: Path) -> AsyncIterator[str]:
    """Run it; yields the address of its broker."""
    process = await asyncio.create_subprocess_exec(
        program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        yield address
    finally:
        process.stdin.close()
        await process.wait()
