"""A proxy whose every answer takes a while, in a process of its own: the work of the tests does not slow it further.

Run as: delaying_proxy.py PORT TARGET_PORT ROUND_TRIP (seconds). It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from consumerd.testing.fault_proxy import FaultProxy


async def main(port: int, target_port: int, round_trip: float) -> None:
    async with FaultProxy("127.0.0.1", target_port, port=port) as proxy:
        proxy.delay(round_trip / 2)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
