"""`consumerd group exporter` as a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp


@asynccontextmanager
async def exporting(*arguments: str) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
    """Run the exporter; yields a function that returns the lines of its metrics, once it has read the cluster."""
    command = (sys.executable, "-m", "consumerd", "group", "exporter", *arguments, "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120), aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{(await process.stdout.readline()).split()[1].decode()}"
            while (await client.get(f"{url}/readyz")).status != 200:
                await asyncio.sleep(0.05)

            async def lines() -> list[str]:
                return (await (await client.get(f"{url}/metrics")).text()).splitlines()

            yield lines
    finally:
        process.terminate()
        assert await process.wait() == 0
